// Products of a few rows of activations with weights in any format, from the stored codes: nothing is repacked, and
// nothing but codes and scales is read from memory. Included once for each instruction set (targets.h), after floats.h,
// elements.h and gemv_call.h.
//
// Up to four rows of activations share a pass over the weights; up to eight where elements are wide (`MANY`).
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
  static constexpr bool TABLES = false;  // whether what makes weights of codes takes as many registers as sums of rows do
  template <typename T>
  WM_INLINE float taken(T v) { return widened(v); }
  WM_INLINE float value_of(float v) { return v; }
  WM_INLINE V activations(const float* x, int j) { return load(x + j * LANES); }
  WM_INLINE V dot(V w, V x, V sum) { return fused(w, x, sum); }
};

// ---- Products ----

#include "gemv_add.h"

// R rows of weights times m of M rows of activations, all of them unless the loader is FIXED, whose come one after the
// other: out[r][m]. s and z: scales and offsets of each row; met: where there are offsets, what each block meets of each row
// of activations.
template <class L, int R, int M, Scaled HOW>
WM_INLINE void block(const L& l, const Gemv& q, const uint8_t* const (&codes)[R], const float* const (&s)[R],
                     const float* const (&z)[R], const Arranged* xs, int m, const float* met, float (&out)[M][R]) {
  const int64_t whole = q.w.n / L::GROUP, left = q.w.row_nbytes() - whole * L::NBYTES;
  V sum[R][M] = {};
  if constexpr (HOW == Scaled::LANES)
    if (q.w.zero != WM_ZERO_NONE) add_offsets<R, M>(q.w, z, met, m, sum);
  const auto groups = [&](auto part, const uint8_t* const (&codes)[R], int64_t first, int64_t until)
      __attribute__((always_inline)) {
    if constexpr (MANY<L, M>) add_many<L, R, M, HOW, decltype(part)::value>(l, q, codes, s, xs, first, until, sum);
    else if constexpr (L::FIXED) add_fixed<L, R, M, HOW, decltype(part)::value>(l, q, codes, s, xs, m, first, until, sum);
    else add<L, R, M, HOW, decltype(part)::value>(l, q, codes, s, xs, first, until, sum);
  };
  bool linear = false;
  if constexpr (WM_SIMD == 512 && L::PLAIN && M == 1)  // the next row's products begin while those of one wait for another
    if ((linear = q.ahead.linear != 0))
      for (int r = 0; r < R; ++r) {
        V own[1][M] = {};
        add<L, 1, M, HOW, Part::WHOLE>(l, q, {codes[r]}, {s[r]}, xs, 0, whole, own);
        sum[r][0] = own[0][0];
      }
  if (!linear) groups(std::integral_constant<Part, Part::WHOLE>(), codes, 0, whole);
  if (left) {
    const uint8_t* soon = codes[0] + (R - 1) * q.w.row_nbytes() + R * whole * L::NBYTES + q.ahead.bytes;
    for (int64_t at = 0; at < R * left; at += 64) ask_far(soon + at, q.ahead);
    alignas(64) uint8_t tail[R][L::NBYTES];
    const uint8_t* p[R];
    for (int r = 0; r < R; ++r) p[r] = tail[r];
    constexpr bool HALVED_HERE = HALVED<L, R, HOW> && !MANY<L, M>;
    const bool halves = HALVED_HERE && left <= L::NBYTES / 2;
    if constexpr (HALVED_HERE)
      if (halves) {
#if WM_SIMD == 512
        for (int r = 0; r < R; r += 2)
          first_of_both(codes[r] + whole * L::NBYTES, codes[r + 1] + whole * L::NBYTES, left, tail[r]);
#else
        for (int r = 0; r < R; ++r) {
          const uint8_t* const from = codes[r] + whole * L::NBYTES;
          if (left < L::NBYTES / 2) first_of<L::NBYTES / 2>(from, left, tail[r]);
          else p[r] = from;
        }
#endif
        groups(std::integral_constant<Part, Part::HALVES>(), p, whole, whole + 1);
      }
    if (!halves) {
      for (int r = 0; r < R; ++r) first_of<L::NBYTES>(codes[r] + whole * L::NBYTES, left, tail[r]);
      groups(std::integral_constant<Part, Part::TAIL>(), p, whole, whole + 1);
    }
  }
  float found[(R * M + 3) / 4 * 4];
#pragma GCC unroll 4
  for (int i = 0; i < R * M; i += 4) {
    if (i >= R * m) break;
    V four[4] = {};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      if (i + j < R * M) four[j] = sum[(i + j) % R][(i + j) / R];
    totals(four, found + i);
  }
  for (int i = 0; i < m; ++i)
    for (int r = 0; r < R; ++r) {
      float y = found[i * R + r] * l.unit;
      if (HOW == Scaled::ROW) y *= s[r][0];
      if (HOW == Scaled::ROW && q.w.zero != WM_ZERO_NONE) y += met[i] * z[r][0];
      out[i][r] = y;
    }
}

template <class L, int R, int M, Scaled HOW>
static void some(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int given, const Arranged* x, float* const* y,
                 float* scratch) {
  const int rows = L::FIXED && M > 2 ? given : M;
  const Weights& w = q.w;
  const L l(w.element);
  const int64_t nbytes = w.row_nbytes(), across = w.across(), room = factors_room(w);
  const uint8_t* first = w.codes + (matrix * w.rows + row) * nbytes;
  float *own = scratch, *offsets = own + room + LANES, *met = offsets + room + LANES;
  if (w.zero != WM_ZERO_NONE)
    for (int m = 0; m < rows; ++m) {
      if constexpr (HOW == Scaled::ROW) met[m] = total_of(x[m].sums, q.groups);
      else sums_of_blocks<L>(q, x[m].sums, met + m * blocks_room(w));
    }
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
    float out[M][R];
    block<L, R, M, HOW>(l, q, codes, s, z, x, rows, met, out);
    for (int m = 0; m < rows; ++m)
      for (int r = 0; r < R && at + r < count; ++r) y[m][row + at + r] = out[m][r];
  }
}

// Rows of weights that M rows of activations meet at a time, so that sums and weights stay in registers.
template <class L, Scaled HOW, int M>
constexpr int AT_A_TIME = WM_SIMD == 512 ? (M > 4 || (M > 2 && !L::FIXED) ? 2 : 4)
                          : WM_SIMD == 0 ? (M > 2 && !L::FIXED ? 1 : 2)
                          : L::FIXED     ? (M == 1 && L::GROUP == UNIT ? 4 : 2)  // digits take more registers
                          : L::PLAIN     ? (M > 2 ? 2 : 4)
                                         : (HOW == Scaled::LANES ? 1 : M == 1 ? 4 : 2);

// As many as M at most: who is missing is the last one again.
template <class L, int M, Scaled HOW>
static void at_most(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x, float* const* y,
                    float* scratch) {
  Arranged xs[M];
  float* ys[M];
  for (int i = 0; i < M; ++i) xs[i] = x[std::min(i, m - 1)], ys[i] = y[std::min(i, m - 1)];
  some<L, AT_A_TIME<L, HOW, M>, M, HOW>(q, matrix, row, count, m, xs, ys, scratch);
}

// Rows of activations that are multiplied in one call, and those of them that share a pass over weights. AVX2 has registers
// for sums of few: where making weights of codes takes less than that is worth, they are made again.
template <class L>
constexpr int MOST = MANY<L, 8> ? 8 : 4;
template <class L, Scaled HOW>
constexpr int share() {
  if constexpr (WM_SIMD != 256) return MOST<L>;
  else if constexpr (L::FIXED) return 2;
  else return HOW == Scaled::ROW || L::TABLES ? 4 : MOST<L>;
}

template <class L, Scaled HOW>
static void of_rows(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                    float* const* y, float* scratch) {
  constexpr int SHARE = share<L, HOW>();
  const auto rows = [&](auto most) __attribute__((always_inline)) {
    at_most<L, decltype(most)::value, HOW>(q, matrix, row, count, m, x, y, scratch);
  };
  const auto in_passes = [&]() {
    for (int i = 0; i < m; i += SHARE)
      of_rows<L, HOW>(q, matrix, row, count, std::min(SHARE, m - i), x + i, y + i, scratch);
  };
  if (m == 1) return rows(std::integral_constant<int, 1>());
  if constexpr (WM_SIMD != 0)  // elsewhere what is compiled counts for more
    if (m == 2) return rows(std::integral_constant<int, 2>());
  if constexpr (SHARE == 2) return in_passes();
  if (m <= 4) return rows(std::integral_constant<int, 4>());
  if constexpr (SHARE == 4) return in_passes();
  if constexpr (SHARE > 4) {
    if (m <= 6) return rows(std::integral_constant<int, 6>());
    rows(std::integral_constant<int, 8>());
  }
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

template <class L>
static void product(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                    float* const* y, float* scratch) {
  constexpr int TAKES = takes<L>();
  if constexpr (has(TAKES, Scaled::ROW))
    if (L::PLAIN || q.scaled == Scaled::ROW) return of_rows<L, Scaled::ROW>(q, matrix, row, count, m, x, y, scratch);
  if constexpr (has(TAKES, Scaled::LANES))
    if (q.scaled != Scaled::EACH) return of_rows<L, Scaled::LANES>(q, matrix, row, count, m, x, y, scratch);
  if constexpr (has(TAKES, Scaled::EACH)) of_any_blocks<L>(q, matrix, row, count, m, x, y, scratch);
}

template <class L>
constexpr GemvKernel kernel_of() {
  int arranged = L::GROUP;
  int (*begins)(int) = nullptr;
  if constexpr (L::FIXED) arranged = L::ARRANGED;
#if WM_FIXED && WM_SIMD == 256
  begins = L::begins;
#endif
  return {LANES, L::GROUP, arranged, L::GRAIN, begins, takes<L>(), MOST<L>, arrange<L>, product<L>};
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
  static constexpr GemvKernel UINT4 = kernel_of<Integers<WM_UINT4>>(), UINT8 = kernel_of<Integers<WM_UINT8>>();
#if WM_STRUCTS
  if (is_struct(e)) return struct_kernel(e);
#endif
  switch (e) {
    case WM_E2M1: return &E2M1;
    case WM_INT4: return &INT4;
    case WM_UINT4: return &UINT4;
    case WM_MXINT8: return &MXINT8;
    case WM_INT8: return &INT8;
    case WM_UINT8: return &UINT8;
    default: return nullptr;
  }
#else
  static constexpr GemvKernel BF16 = kernel_of<PlainBf16>(), SIX = kernel_of<Six>();
  static constexpr GemvKernel E4M3 = kernel_of<E4m3>(), E5M2 = kernel_of<E5m2>();
  static constexpr GemvKernel FOUR = kernel_of<Few<4>>(), THREE = kernel_of<Few<3>>(), TWO = kernel_of<Few<2>>();
#if WM_PAIRED
  constexpr const GemvKernel *F32 = nullptr, *F16 = nullptr, *NF4 = nullptr, *INT8 = nullptr, *UINT8 = nullptr;
#else
  static constexpr GemvKernel OTHERS[] = {kernel_of<PlainF32>(), kernel_of<PlainF16>(), kernel_of<Nf4>(),
                                          kernel_of<Int8>(), kernel_of<Uint8>()};
  constexpr const GemvKernel *F32 = OTHERS, *F16 = OTHERS + 1, *NF4 = OTHERS + 2, *INT8 = OTHERS + 3;
  constexpr const GemvKernel* UINT8 = OTHERS + 4;
#endif
  static constexpr const GemvKernel* ALL[] = {F32, &BF16, F16,   &FOUR, &SIX,  &SIX, &E4M3, &E5M2, INT8,
                                              NF4, INT8,  &FOUR, &THREE, &TWO, UINT8, &FOUR, &THREE, &TWO};
#if WM_STRUCTS
  if (is_struct(e)) return struct_kernel(e);
#endif
  return is_struct(e) ? nullptr : ALL[e];
#endif
}
#undef WM_STRUCTS

}  // namespace gemv
