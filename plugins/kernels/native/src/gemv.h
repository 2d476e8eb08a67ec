// Products of a few rows of activations with weights in any format, from the stored codes: nothing is repacked, and
// nothing but codes and scales is read from memory. Included once for each instruction set (targets.h), after floats.h,
// elements.h and gemv_call.h.
//
// A loader (gemv_portable.h, …) makes vectors of float32 from a group of codes, in whatever order of elements is
// cheapest; the activations are put in that order once (`arrange`). Each lane's elements are of one block wherever
// blocks are multiples of the loader's GRAIN, so that a group's sums are scaled with one fused product, whatever it
// holds. Scales of a row become float32 before it (`factors`). A zero point is taken off, and a minimum added, by way of
// the sums of the activations: Σ (e - z) · s · x = s · Σ e · x - z · s · Σ x. Every weight is exact.
//
// A NaN among codes or scales is NaN in its row. Subnormals count as 0 where they are flushed, as in XLA's threads:
// that is scale byte 0 of E8M0 (2^-127), and no element under any scale.

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors go between functions that are inlined, and no others

namespace gemv {

#include "gemv_vectors.h"
#include "gemv_scales.h"

// ---- Activations ----

// Which element of a group comes to each place: `place` the other way round, not to be worked out for every element.
template <class L>
struct Order {
  uint16_t element[L::GROUP];
  constexpr Order() : element() {
    for (int k = 0; k < L::GROUP; ++k) element[L::place(k)] = uint16_t(k);
  }
};

template <class L, typename From>
static void arrange_from(const From* x, int64_t n, typename L::X* out) {
  static constexpr Order<L> ORDER;
  const int64_t whole = n / L::GROUP * L::GROUP;
  for (int64_t g = 0; g < whole; g += L::GROUP)
    for (int i = 0; i < L::GROUP; ++i) out[g + i] = L::taken(x[g + ORDER.element[i]]);
  for (int i = 0; whole < n && i < L::GROUP; ++i) {
    const int64_t k = whole + ORDER.element[i];
    out[whole + i] = L::taken(k < n ? x[k] : From{});
  }
}

template <class L>
static bool arrange_floats(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  typename L::X* to = static_cast<typename L::X*>(out);
  if (from_bf16) arrange_from<L>(static_cast<const Bf16*>(x), n, to);
  else if constexpr (!L::HALVES) arrange_from<L>(static_cast<const float*>(x), n, to);
  if (sums == nullptr) return true;
  constexpr int IN_LANE = L::GROUP / L::VECS / LANES;  // of a vector of activations
  for (int64_t g = 0; g < n; g += L::GROUP, to += L::GROUP, sums += LANES)
    for (int l = 0; l < LANES; ++l) {
      float sum = 0;
      for (int j = 0; j < L::VECS; ++j)
        for (int i = 0; i < IN_LANE; ++i) sum += L::value_of(to[(j * LANES + l) * IN_LANE + i]);
      sums[l] = sum;
    }
  return true;
}

template <class L>
static bool arrange_fixed(const void* x, bool from_bf16, int64_t n, void* out, float* sums);

template <class L>
static bool arrange(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  if constexpr (L::FIXED) return arrange_fixed<L>(x, from_bf16, n, out, sums);
  else return arrange_floats<L>(x, from_bf16, n, out, sums);
}

// What float32 activations have in common.
struct Floats {
  using X = float;
  static constexpr bool HALVES = false, FIXED = false;
  template <typename T>
  WM_INLINE float taken(T v) { return widened(v); }
  WM_INLINE float value_of(float v) { return v; }
  WM_INLINE V activations(const float* x, int j) { return load(x + j * LANES); }
  WM_INLINE V dot(V w, V x, V sum) { return fused(w, x, sum); }
};

// ---- Products ----

// `far`: ahead of the last row, one byte after the other, whatever the rows are, because a single stream is what memory
// gives fastest; ahead of the first row alone, the last one of the next pass would come too late. `own`: near in its row.
WM_INLINE void ask_far(const uint8_t* far, const Ahead& ahead) {
  if (ahead.second) __builtin_prefetch(far, 0, 2);
  else __builtin_prefetch(far);
}
WM_INLINE void ask_for(const uint8_t* far, const uint8_t* own, const Ahead& ahead) {
  ask_far(far, ahead);
  if (ahead.near) __builtin_prefetch(own);
}

// How scales may come to a loader's products.
template <class L>
constexpr int takes() {
  if constexpr (L::FIXED) return L::TAKES;
  else return set_of(Scaled::ROW) | (L::PLAIN ? 0 : set_of(Scaled::LANES)) | (L::PLAIN || L::HALVES ? 0 : set_of(Scaled::EACH));
}

// Which groups of rows: full ones; the last ones, which are not; or, if these fill half of a register at most, the same of
// two rows in one register. Sums are then put where they are without: numbers are the same.
enum class Part { WHOLE, TAIL, HALVES };

// Elements of the first half of these loaders' groups are in the lower half of the lanes.
template <class L, int R, Scaled HOW>
constexpr bool HALVED = WM_SIMD == 512 && R % 2 == 0 && L::NBYTES == 64 && HOW == Scaled::LANES;

// Whether sums of lanes are scaled after each group.
template <Scaled HOW>
constexpr bool BY_GROUP = HOW == Scaled::LANES || HOW == Scaled::UNITS;

// Sums of a row that go on from group to group and wait for none of each other: AVX2 has registers for those of two rows.
template <class L, Scaled HOW>
constexpr int KEPT = WM_SIMD == 256 && HOW == Scaled::ROW && !L::FIXED ? 2 : 1;

// Groups first … until of R rows of weights, times M rows of activations: added to sum[r][m]. codes: of group `first` of
// each row; s: scales of each row, from its start; UNITS: those times the units of each row of activations, [M, units].
template <class L, int R, int M, Scaled HOW, Part PART>
WM_INLINE void add(const L& l, const Gemv& q, const uint8_t* const (&codes)[R], const float* const (&s)[R],
                   const Arranged* xs, int64_t first, int64_t until, V (&total)[R][M][KEPT<L, HOW>]) {
  V sum[R][M][KEPT<L, HOW>];  // in registers: what is given would be written every time
  std::memcpy(sum, total, sizeof sum);
  // A group is summed in two chains, its even vectors and its odd ones. One row of activations has too few sums to keep a
  // core at work, and makes both at a time; several make one after the other, so that a row's numbers are the same alone
  // and among others.
  constexpr int CHAINS = HOW == Scaled::LANES && L::VECS >= 8 && !L::FIXED ? 2 : KEPT<L, HOW>;
  constexpr int AT_ONCE = M == 1 ? CHAINS : 1;
  constexpr bool TAIL = PART != Part::WHOLE;
  constexpr int EACH = PART == Part::HALVES ? 2 : 1;  // rows in a register
  const Ahead ahead = R == 1 && q.ahead.linear ? Ahead{q.ahead.linear, true, 0, 0} : q.ahead;
  const int64_t row_nbytes = q.w.row_nbytes();
  // What is near may lie past the end of a row: then in the one R further, which is read as this one's next.
  const int64_t near = ahead.near + q.near_rows * (R - 1) * row_nbytes, ends = row_nbytes - q.near_left;
  const uint8_t* soon = codes[0] + (R - 1) * row_nbytes + ahead.bytes;
  for (int64_t g = first, at = 0; g < until; ++g, at += L::NBYTES) {
    typename L::Codes stored[R];
    const int64_t from = at + near + (at < ends ? 0 : (R - 1) * row_nbytes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (r % EACH == 0) stored[r] = l.load(codes[r] + at);
      if (!TAIL && (L::NBYTES >= 64 || at % 64 < L::NBYTES))  // once a line
        for (int b = 0; b < L::NBYTES; b += 64) ask_for(soon + R * at + r * L::NBYTES + b, codes[r] + from + b, ahead);
    }
#pragma GCC unroll 2
    for (int chain = 0; chain < CHAINS; chain += AT_ONCE) {
      V here[AT_ONCE][R][M];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
          for (int c = 0; c < AT_ONCE; ++c) here[c][r][m] = BY_GROUP<HOW> ? V{} : sum[r][m][(chain + c) % KEPT<L, HOW>];
      if constexpr (HOW == Scaled::UNITS) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
            here[0][r][m] = l.whole(stored[r], static_cast<const typename L::X*>(xs[m].x) + g * L::ARRANGED);
      } else if constexpr (L::FIXED) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r += EACH)
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
            here[0][r][m] = l.template products<PART == Part::HALVES>(
                stored[r], static_cast<const typename L::X*>(xs[m].x) + g * L::ARRANGED, sum[r][m][0], HOW == Scaled::LANES);
      } else {
#pragma GCC unroll 16
        for (int j = chain; j < L::VECS; j += CHAINS / AT_ONCE) {
          decltype(L::activations(nullptr, 0)) x[M];
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) {
            const typename L::X* own = static_cast<const typename L::X*>(xs[m].x) + g * L::GROUP;
            if constexpr (PART == Part::HALVES) in_both(own + j * (L::GROUP / L::VECS), x[m]);
            else x[m] = L::activations(own, j);
          }
#pragma GCC unroll 4
          for (int r = 0; r < R; r += EACH) {
            const auto w = l.value(stored[r], j);
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) here[j % AT_ONCE][r][m] = L::dot(w, x[m], here[j % AT_ONCE][r][m]);
          }
        }
      }
      if constexpr (PART == Part::HALVES)
#pragma GCC unroll 4
        for (int r = 0; r < R; r += 2)
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int c = 0; c < AT_ONCE; ++c) {
              here[c][r + 1][m] = upper_half(here[c][r][m]);
              here[c][r][m] = lower_half(here[c][r][m]);
            }
      if constexpr (HOW == Scaled::UNITS) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
            sum[r][m][0] = fused(here[0][r][m], L::scales(s[r] + m * q.units, g), sum[r][m][0]);
      } else if constexpr (HOW == Scaled::LANES) {
        const int64_t block = q.first[g];
        const int32_t* which = q.spread + g * LANES;
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          V scale = spread(s[r] + block, which, q.few);
          if (TAIL) scale = of_lanes_there(scale, which);
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int c = 0; c < AT_ONCE; ++c) sum[r][m][0] = fused(here[c][r][m], scale, sum[r][m][0]);
        }
      } else {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int c = 0; c < AT_ONCE; ++c) sum[r][m][(chain + c) % KEPT<L, HOW>] = here[c][r][m];
      }
    }
  }
  std::memcpy(total, sum, sizeof sum);
}

// What is added to each row's blocks, times the sums of activations that the blocks' lanes meet. Of any loader, and a
// function of its own, so that each of these is compiled once.
template <int R, int M>
static __attribute__((noinline)) void add_offsets(const Gemv& q, const float* const (&z)[R], const Arranged* xs,
                                                  V (&sum)[R][M][1]) {
  for (int64_t g = 0; g < q.groups; ++g) {
    const int32_t* which = q.spread + g * LANES;
    V x[M];
    for (int m = 0; m < M; ++m) x[m] = load(xs[m].sums + g * LANES);
    for (int r = 0; r < R; ++r) {
      const V offset = of_lanes_there(spread(z[r] + q.first[g], which, q.few), which);
      for (int m = 0; m < M; ++m) sum[r][m][0] = fused(offset, x[m], sum[r][m][0]);
    }
  }
}

// R rows of weights times M rows of activations: out[r][m]. s and z: scales and offsets of each row; all: the sum of each
// row of activations, for ROW with offsets.
template <class L, int R, int M, Scaled HOW>
WM_INLINE void block(const L& l, const Gemv& q, const uint8_t* const (&codes)[R], const float* const (&s)[R],
                     const float* const (&z)[R], const Arranged* xs, const float* all, float (&out)[R][M]) {
  const int64_t whole = q.w.n / L::GROUP, left = q.w.row_nbytes() - whole * L::NBYTES;
  V sum[R][M][KEPT<L, HOW>] = {};
  if constexpr (BY_GROUP<HOW>)
    if (q.w.zero != WM_ZERO_NONE) add_offsets<R, M>(q, z, xs, sum);
  bool linear = false;
  if constexpr (WM_SIMD == 512 && L::PLAIN && M == 1)  // the next row's products begin while those of one wait for another
    if ((linear = q.ahead.linear != 0))
      for (int r = 0; r < R; ++r) {
        V own[1][M][KEPT<L, HOW>] = {};
        add<L, 1, M, HOW, Part::WHOLE>(l, q, {codes[r]}, {s[r]}, xs, 0, whole, own);
        sum[r][0][0] = own[0][0][0];
      }
  if (!linear) add<L, R, M, HOW, Part::WHOLE>(l, q, codes, s, xs, 0, whole, sum);
  if (left) {
    const uint8_t* soon = codes[0] + (R - 1) * q.w.row_nbytes() + R * whole * L::NBYTES + q.ahead.bytes;
    for (int64_t at = 0; at < R * left; at += 64) ask_far(soon + at, q.ahead);
    alignas(64) uint8_t tail[R][L::NBYTES];
    const uint8_t* p[R];
    for (int r = 0; r < R; ++r) p[r] = tail[r];
    const bool halves = HALVED<L, R, HOW> && left <= L::NBYTES / 2;
    if constexpr (HALVED<L, R, HOW>)
      if (halves) {
        for (int r = 0; r < R; r += 2)
          first_of_both(codes[r] + whole * L::NBYTES, codes[r + 1] + whole * L::NBYTES, left, tail[r]);
        add<L, R, M, HOW, Part::HALVES>(l, q, p, s, xs, whole, whole + 1, sum);
      }
    if (!halves) {
      for (int r = 0; r < R; ++r) first_of<L::NBYTES>(codes[r] + whole * L::NBYTES, left, tail[r]);
      add<L, R, M, HOW, Part::TAIL>(l, q, p, s, xs, whole, whole + 1, sum);
    }
  }
  float found[(R * M + 3) / 4 * 4];
#pragma GCC unroll 4
  for (int i = 0; i < R * M; i += 4) {
    V four[4] = {};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      if (i + j < R * M)
        for (const V& kept : sum[(i + j) / M][(i + j) % M]) four[j] += kept;
    totals(four, found + i);
  }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) {
      float y = found[r * M + m] * l.unit;
      if (HOW == Scaled::ROW) y *= s[r][0];
      if (HOW == Scaled::ROW && q.w.zero != WM_ZERO_NONE) y += all[m] * z[r][0];
      out[r][m] = y;
    }
}

// A row's scales times the units of activations that they meet, [units]; 0 past its end.
template <class L>
WM_INLINE void times_units(const Gemv& q, const float* s, const Arranged& x, float* out) {
  const float* units = static_cast<const typename L::X*>(x.x) + q.groups * L::ARRANGED;
  const int64_t count = q.w.n / UNIT, each = q.w.block_elems / UNIT;  // rows are whole blocks, and blocks whole units
  if (each == 1)
    for (int64_t i = 0; i < count; ++i) out[i] = s[i] * units[i];
  else
    for (int64_t i = 0; i < count; i += each, ++s)
      for (int64_t j = i; j < i + each; ++j) out[j] = *s * units[j];
  for (int64_t i = count; i < q.units; ++i) out[i] = 0;
}

template <class L, int R, int M, Scaled HOW>
static void some(const Gemv& q, int64_t matrix, int64_t row, int64_t count, const Arranged* x, float* const* y,
                 float* scratch) {
  const Weights& w = q.w;
  const L l(w.element);
  const int64_t nbytes = w.row_nbytes(), across = w.across(), room = factors_room(w);
  const uint8_t* first = w.codes + (matrix * w.rows + row) * nbytes;
  float *own = scratch, *offsets = scratch + room + LANES, all[M] = {};
  if (HOW == Scaled::ROW && w.zero != WM_ZERO_NONE)
    for (int m = 0; m < M; ++m) all[m] = total_of(x[m].sums, q.groups);
  int64_t band = 0, bands = 0;  // whose factors are there
  for (int64_t at = 0; at < count; at += R) {
    const int64_t last = at + R <= count ? row + at + R - 1 : row + count - 1;
    if (w.band(last) >= band + bands) {
      band = w.band(row + at);
      bands = std::min(w.band(row + count - 1) + 1 - band, room / (across ? across : 1));
      factors(w, matrix, band, bands, own, offsets);
    }
    const uint8_t* codes[R];
    const float *s[R], *z[R];
    for (int r = 0; r < R; ++r) {
      const int64_t i = row + at + r < last ? row + at + r : last, place = (w.band(i) - band) * across;
      codes[r] = first + (i - row) * nbytes, s[r] = own + place, z[r] = offsets + place;
    }
    if constexpr (HOW == Scaled::UNITS) {
      float* scaled = offsets + room + LANES;
      for (int r = 0; r < R; ++r, scaled += M * q.units) {
        for (int m = 0; m < M; ++m) times_units<L>(q, s[r], x[m], scaled + m * q.units);
        s[r] = scaled;
      }
    }
    float out[R][M];
    block<L, R, M, HOW>(l, q, codes, s, z, x, all, out);
    for (int r = 0; r < R && at + r < count; ++r)
      for (int m = 0; m < M; ++m) y[m][row + at + r] = out[r][m];
  }
}

template <class L, Scaled HOW>
static void of_rows(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                    float* const* y, float* scratch) {
  // So that sums and weights stay in registers.
  constexpr int R = WM_SIMD == 512 ? 4 : WM_SIMD == 256 && HOW == Scaled::LANES ? 1 : 2;
  static_assert(HOW != Scaled::UNITS || R <= 2, "scratch_floats has room for GEMV_MOST rows of UNITS");
  if (m == 1) return some<L, R, 1, HOW>(q, matrix, row, count, x, y, scratch);
  if constexpr (WM_SIMD != 0)  // elsewhere what is compiled counts for more
    if (m == 2) return some<L, R, 2, HOW>(q, matrix, row, count, x, y, scratch);
  const Arranged four[] = {x[0], x[1], x[m / 2], x[m - 1]};
  float* const to[] = {y[0], y[1], y[m / 2], y[m - 1]};
  some<L, R / 2 ? R / 2 : 1, 4, HOW>(q, matrix, row, count, four, to, scratch);
}

// Blocks of any size: scales go to the activations, once for all rows of weights that share them.
template <class L>
static void of_any_blocks(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                          float* const* y, float* scratch) {
  const Weights& w = q.w;
  const int64_t size = q.groups * L::GROUP;
  float *s = scratch, *z = s + w.across(), *scaled = z + w.across();
  Gemv plain = q;
  plain.w.scale = WM_SCALE_NONE, plain.w.zero = WM_ZERO_NONE, plain.w.second = WM_SECOND_NONE;
  plain.w.block_elems = w.n, plain.w.block_rows = w.rows;
  for (int64_t at = 0, until; at < count; at = until) {
    const int64_t band = w.band(row + at);
    until = (band + 1) * w.block_rows - row < count ? (band + 1) * w.block_rows - row : count;
    factors(w, matrix, band, 1, s, z);
    Arranged xs[GEMV_MOST];
    float offset[GEMV_MOST], *to[GEMV_MOST];
    for (int i = 0; i < m; ++i) {
      double sum = 0;
      float* out = scaled + i * size;
      for (int64_t k = 0, b = 0, left = w.block_elems; k < size; ++k, --left) {
        if (left == 0 && k < w.n) ++b, left = w.block_elems;
        const int64_t place = k / L::GROUP * L::GROUP + L::place(int(k % L::GROUP));
        const float v = static_cast<const float*>(x[i].x)[place];
        out[place] = k < w.n ? v * s[b] : 0;  // a scale may be infinite
        if (k >= w.n) continue;
        if (w.zero != WM_ZERO_NONE) sum += double(z[b]) * v;
      }
      offset[i] = float(sum), xs[i] = {out, nullptr, q.kernel}, to[i] = y[i];
    }
    of_rows<L, Scaled::ROW>(plain, matrix, row + at, until - at, m, xs, to, scaled + GEMV_MOST * size);
    for (int i = 0; i < m; ++i)
      for (int64_t r = row + at; r < row + until; ++r) y[i][r] += offset[i];
  }
}

// Rows that a loader of integers cannot take go to that of float32, which has the same groups, and lanes for UNITS.
template <class L>
static void product(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                    float* const* y, float* scratch) {
  constexpr int TAKES = takes<L>();
  if constexpr (has(TAKES, Scaled::ROW))
    if (L::PLAIN || q.scaled == Scaled::ROW) return of_rows<L, Scaled::ROW>(q, matrix, row, count, m, x, y, scratch);
  if constexpr (has(TAKES, Scaled::UNITS))
    if (q.scaled == Scaled::UNITS) return of_rows<L, Scaled::UNITS>(q, matrix, row, count, m, x, y, scratch);
  if constexpr (has(TAKES, Scaled::LANES))
    if (q.scaled != Scaled::EACH) return of_rows<L, Scaled::LANES>(q, matrix, row, count, m, x, y, scratch);
  if constexpr (has(TAKES, Scaled::EACH)) of_any_blocks<L>(q, matrix, row, count, m, x, y, scratch);
}

template <class L>
constexpr GemvKernel kernel_of() {
  if constexpr (L::FIXED) return {LANES, L::GROUP, L::ARRANGED, L::GRAIN, takes<L>(), arrange<L>, product<L>};
  else return {LANES, L::GROUP, L::GROUP, L::GRAIN, takes<L>(), arrange<L>, product<L>};
}

#if WM_ROUNDED
#include "gemv_rounded.h"
#elif WM_FIXED && WM_SIMD == 256
#include "gemv_fixed_avx2.h"
#elif WM_SIMD == 512
#include "gemv_avx512.h"
#if WM_FIXED
#include "gemv_fixed.h"
#endif
#elif WM_SIMD == 256
#include "gemv_avx2.h"
#else
#include "gemv_portable.h"
#endif
#if !WM_PAIRED && !WM_ROUNDED && !(WM_FIXED && WM_SIMD == 256)
#define WM_STRUCTS 1
#include "gemv_structs.h"
#endif

// For weights of this element: activations of any dtype or, with WM_PAIRED, bfloat16 ones that are multiplied as they are,
// where bfloat16 holds the weights too, or, with WM_FIXED, by way of integers or, with WM_ROUNDED, as integers; else null.
static const GemvKernel* kernel(WmElement e) {
#if WM_FIXED || WM_ROUNDED
  static constexpr GemvKernel E2M1 = kernel_of<Integers<WM_E2M1>>(), INT4 = kernel_of<Integers<WM_INT4>>();
  static constexpr GemvKernel MXINT8 = kernel_of<Integers<WM_MXINT8>>(), INT8 = kernel_of<Integers<WM_INT8>>();
#if WM_FIXED && WM_SIMD == 256
  constexpr const GemvKernel *UINT4 = nullptr, *UINT8 = nullptr;
#else
  static constexpr GemvKernel UNSIGNED[] = {kernel_of<Integers<WM_UINT4>>(), kernel_of<Integers<WM_UINT8>>()};
  constexpr const GemvKernel *UINT4 = UNSIGNED, *UINT8 = UNSIGNED + 1;
#endif
#if WM_STRUCTS
  if (is_struct(e)) return struct_kernel(e);
#endif
  switch (e) {
    case WM_E2M1: return &E2M1;
    case WM_INT4: return &INT4;
    case WM_UINT4: return UINT4;
    case WM_MXINT8: return &MXINT8;
    case WM_INT8: return &INT8;
    case WM_UINT8: return UINT8;
    default: return nullptr;
  }
#else
  static constexpr GemvKernel BF16 = kernel_of<PlainBf16>(), SIX = kernel_of<Six>(), EIGHT = kernel_of<Float8>();
  static constexpr GemvKernel FOUR = kernel_of<Few<4>>(), THREE = kernel_of<Few<3>>(), TWO = kernel_of<Few<2>>();
#if WM_PAIRED
  constexpr const GemvKernel *F32 = nullptr, *F16 = nullptr, *NF4 = nullptr, *INT8 = nullptr, *UINT8 = nullptr;
#else
  static constexpr GemvKernel OTHERS[] = {kernel_of<PlainF32>(), kernel_of<PlainF16>(), kernel_of<Nf4>(),
                                          kernel_of<Int8>(), kernel_of<Uint8>()};
  constexpr const GemvKernel *F32 = OTHERS, *F16 = OTHERS + 1, *NF4 = OTHERS + 2, *INT8 = OTHERS + 3;
  constexpr const GemvKernel* UINT8 = OTHERS + 4;
#endif
  static constexpr const GemvKernel* ALL[] = {F32, &BF16, F16,   &FOUR, &SIX,  &SIX, &EIGHT, &EIGHT, INT8,
                                              NF4, INT8,  &FOUR, &THREE, &TWO, UINT8, &FOUR, &THREE, &TWO};
#if WM_STRUCTS
  if (is_struct(e)) return struct_kernel(e);
#endif
  return is_struct(e) ? nullptr : ALL[e];
#endif
}
#undef WM_STRUCTS

}  // namespace gemv
