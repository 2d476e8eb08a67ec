// Products of a few rows of activations with weights in any format, from the stored codes: nothing is repacked, and
// nothing but codes and scales is read from memory. Included once for each instruction set (targets.h), after floats.h,
// elements.h and gemv_call.h.
//
// A loader (gemv_portable.h, …) makes vectors of float32 from a group of codes, in whatever order of elements is
// cheapest; the activations are put in that order once (`arrange`). Each lane's elements are of one block wherever
// blocks are multiples of the loader's GRAIN, so that a group's sums are scaled with one fused product, whatever it
// holds. Scales of a row become float32 before it (`factors`). A zero point is taken off, and a minimum added, by way of
// the sums of the activations: Σ (e - z) · x = Σ e · x - z · Σ x. Every weight is exact.
//
// A NaN among codes or scales is NaN in its row. Subnormals count as 0 where they are flushed, as in XLA's threads:
// that is scale byte 0 of E8M0 (2^-127), and no element under any scale.

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors go between functions that are inlined, and no others

namespace gemv {

#define WM_INLINE static inline __attribute__((always_inline))
#define WM_METHOD inline __attribute__((always_inline))
constexpr int LANES = WM_SIMD == 512 ? 16 : 8;
typedef float V __attribute__((vector_size(4 * LANES)));
typedef V Loose __attribute__((aligned(4), may_alias));

WM_INLINE V load(const float* p) { return *reinterpret_cast<const Loose*>(p); }

#if WM_SIMD == 512
WM_INLINE V fused(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
WM_INLINE float total(V v) { return _mm512_reduce_add_ps((__m512)v); }
WM_INLINE V spread(const float* s, const int32_t* at) {
  return (V)_mm512_permutexvar_ps(_mm512_loadu_si512(at), _mm512_loadu_ps(s));
}
#else
#if WM_SIMD == 256
WM_INLINE V fused(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
WM_INLINE V spread(const float* s, const int32_t* at) {
  return (V)_mm256_permutevar8x32_ps(_mm256_loadu_ps(s), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
#else
WM_INLINE V fused(V a, V b, V c) { return a * b + c; }
WM_INLINE V spread(const float* s, const int32_t* at) {
  V v;
  for (int l = 0; l < LANES; ++l) v[l] = s[at[l]];
  return v;
}
#endif
WM_INLINE float total(V v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
#endif

WM_INLINE float float_of(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

template <typename T>
WM_INLINE T at(const uint8_t* p, int64_t i) {
  T v;
  std::memcpy(&v, p + i * int64_t(sizeof(T)), sizeof(T));
  return v;
}

// A float of a sign and BITS, FRACTION of them its fraction; those past TOP are NaN, but INFINITY. In integers, so that
// nobody flushes subnormals.
template <int BITS, int FRACTION, int BIAS, uint32_t TOP, uint32_t INFINITE>
WM_INLINE float small_float(uint32_t c) {
  const uint32_t m = c & ((1u << BITS) - 1);
  const float tiny = float(int32_t(m)) * power_of_two(1 - BIAS - FRACTION);
  uint32_t bits, subnormal;
  std::memcpy(&subnormal, &tiny, 4);
  bits = m < (1u << FRACTION) ? subnormal : (m << (23 - FRACTION)) + (uint32_t(127 - BIAS) << 23);
  bits = m > TOP ? 0x7FC00000u : bits;
  bits = m == INFINITE ? 0x7F800000u : bits;
  return float_of(bits | (c >> BITS & 1) << 31);
}
WM_INLINE float from_f16(uint32_t c) { return small_float<15, 10, 15, 0x7C00, 0x7C00>(c); }
WM_INLINE float from_e4m3(uint32_t c) { return small_float<7, 3, 7, 0x7E, 0xFF>(c); }

// The float32 scales, and zero points or minimums, of a row of blocks.
static void factors(const Weights& w, int64_t matrix, int64_t band, float* __restrict__ s, float* __restrict__ z) {
  const int64_t n = w.across(), from = (matrix * w.down() + band) * n;
  switch (w.scale) {
    case WM_SCALE_NONE:
      for (int64_t i = 0; i < n; ++i) s[i] = 1;
      break;
    case WM_SCALE_E8M0:
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t byte = w.scales[from + i];
        s[i] = float_of(byte == 0xFF ? 0x7FC00000u : byte << 23);
      }
      break;
    case WM_SCALE_E4M3:
      for (int64_t i = 0; i < n; ++i) s[i] = from_e4m3(w.scales[from + i]);
      break;
    case WM_SCALE_F16:
      for (int64_t i = 0; i < n; ++i) s[i] = from_f16(at<uint16_t>(w.scales, from + i));
      break;
    case WM_SCALE_BF16:
      for (int64_t i = 0; i < n; ++i) s[i] = float_of(uint32_t(at<uint16_t>(w.scales, from + i)) << 16);
      break;
    case WM_SCALE_F32:
      std::memcpy(s, w.scales + from * 4, size_t(n) * 4);
      break;
    case WM_SCALE_DYNAMIC8: {
      const float offset = w.seconds[(w.matrices * w.down() * n + 255) / 256];
      for (int64_t i = 0; i < n; ++i) s[i] = w.book[w.scales[from + i]] * w.seconds[(from + i) / 256] + offset;
      break;
    }
  }
  const float second = w.second == WM_SECOND_F32 || w.second == WM_SECOND_INVERSE_F32 ? w.seconds[matrix] : 1;
  if (w.second == WM_SECOND_F32)
    for (int64_t i = 0; i < n; ++i) s[i] *= second;
  if (w.second == WM_SECOND_INVERSE_F32)
    for (int64_t i = 0; i < n; ++i) s[i] /= second;
  if (w.zero == WM_ZERO_INT)
    for (int64_t i = 0; i < n; ++i) z[i] = float(w.zeros[from + i]);
  if (w.zero == WM_ZERO_MIN_F16)
    for (int64_t i = 0; i < n; ++i) z[i] = from_f16(at<uint16_t>(w.zeros, from + i));
}

// ---- Activations ----

template <class L, typename From>
static void arrange_from(const From* x, int64_t n, typename L::X* out) {
  const int64_t whole = n / L::GROUP * L::GROUP;
  for (int64_t g = 0; g < whole; g += L::GROUP)
    for (int k = 0; k < L::GROUP; ++k) out[g + L::place(k)] = L::taken(x[g + k]);
  if (whole < n)
    for (int k = 0; k < L::GROUP; ++k) out[whole + L::place(k)] = L::taken(whole + k < n ? x[whole + k] : From{});
}

template <class L>
static void arrange(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  typename L::X* to = static_cast<typename L::X*>(out);
  if (from_bf16) arrange_from<L>(static_cast<const Bf16*>(x), n, to);
  else arrange_from<L>(static_cast<const float*>(x), n, to);
  if (sums == nullptr) return;
  constexpr int IN_LANE = L::GROUP / L::VECS / LANES;  // of a vector of activations
  for (int64_t g = 0; g < n; g += L::GROUP, to += L::GROUP, sums += LANES)
    for (int l = 0; l < LANES; ++l) {
      float sum = 0;
      for (int j = 0; j < L::VECS; ++j)
        for (int i = 0; i < IN_LANE; ++i) sum += L::value_of(to[(j * LANES + l) * IN_LANE + i]);
      sums[l] = sum;
    }
}

// What float32 activations have in common.
struct Floats {
  using X = float;
  static constexpr bool HALVES = false;
  template <typename T>
  WM_INLINE float taken(T v) { return widened(v); }
  WM_INLINE float value_of(float v) { return v; }
  WM_INLINE V activations(const float* x, int j) { return load(x + j * LANES); }
  WM_INLINE V dot(V w, V x, V sum) { return fused(w, x, sum); }
};

// ---- Products ----

// R rows of weights times M rows of activations: out[r][m]. s and z: scales and zeros of each row.
template <class L, int R, int M, Scaled HOW>
WM_INLINE void block(const L& l, const Gemv& q, const uint8_t* const (&codes)[R], const float* const (&s)[R],
                     const float* const (&z)[R], const Arranged* xs, int64_t ahead, float (&out)[R][M]) {
  const int64_t whole = q.w.n / L::GROUP, left = q.w.row_nbytes() - whole * L::NBYTES;
  const WmZero zero = q.w.zero;
  alignas(64) uint8_t tail[R][L::NBYTES];
  V sum[R][M] = {};
  V offset[M] = {};  // ROW: of the activations
  for (int part = 0; part < 2; ++part) {  // the groups that are full, and what is left of a row
    const uint8_t* p[R];
    for (int r = 0; r < R; ++r) p[r] = codes[r];
    int64_t g = 0, until = whole;
    if (part) {
      if (left == 0) break;
      g = whole, until = whole + 1;
      for (int r = 0; r < R; ++r) {
        std::memset(tail[r], 0, L::NBYTES);
        std::memcpy(tail[r], codes[r] + whole * L::NBYTES, size_t(left));
        p[r] = tail[r];
      }
    }
    for (; g < until; ++g) {
      typename L::Codes c[R];
      V here[R][M];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        c[r] = l.load(p[r]);
        for (int b = 0; b < L::NBYTES; b += 64) __builtin_prefetch(p[r] + ahead + b);
        p[r] += L::NBYTES;
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) here[r][m] = HOW == Scaled::LANES ? V{} : sum[r][m];
      }
#pragma GCC unroll 16
      for (int j = 0; j < L::VECS; ++j) {
        decltype(L::activations(nullptr, 0)) x[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
          x[m] = L::activations(static_cast<const typename L::X*>(xs[m].x) + g * L::GROUP, j);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          auto w = l.value(c[r], j);
          if constexpr (HOW == Scaled::EACH) {
            const int64_t i = g * L::GROUP + j * LANES;
            if (zero == WM_ZERO_INT) w -= load(z[r] + i);
            w *= load(s[r] + i);
            if (zero == WM_ZERO_MIN_F16) w += load(z[r] + i);
          }
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) here[r][m] = L::dot(w, x[m], here[r][m]);
        }
      }
      if constexpr (HOW == Scaled::LANES) {
        const int64_t first = q.first[g];
        const int32_t* at = q.spread + g * LANES;
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const V scale = spread(s[r] + first, at);
          if (zero != WM_ZERO_NONE) {
            const V taken = spread(z[r] + first, at);
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) {
              const V x = load(xs[m].sums + g * LANES);
              if (zero == WM_ZERO_INT) here[r][m] = fused(-taken, x, here[r][m]);
              else sum[r][m] = fused(taken, x, sum[r][m]);
            }
          }
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) sum[r][m] = fused(here[r][m], scale, sum[r][m]);
        }
      } else {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) sum[r][m] = here[r][m];
        if (HOW == Scaled::ROW && zero != WM_ZERO_NONE)
          for (int m = 0; m < M; ++m) offset[m] += load(xs[m].sums + g * LANES);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) {
      float y = total(sum[r][m]) * l.unit;
      if (HOW == Scaled::ROW) {
        const float of = zero == WM_ZERO_NONE ? 0 : total(offset[m]) * z[r][0];
        y = zero == WM_ZERO_INT ? (y - of) * s[r][0] : y * s[r][0] + of;
      }
      out[r][m] = y;
    }
}

// Scales of a row of blocks, for each element, in the loader's order.
template <class L>
static void for_each_element(const Gemv& q, const float* blocks, float* out) {
  for (int64_t k = 0; k < q.groups * L::GROUP; ++k) {
    const int64_t b = k / q.w.block_elems;
    out[k / L::GROUP * L::GROUP + L::place(int(k % L::GROUP))] = blocks[b < q.w.across() ? b : q.w.across() - 1];
  }
}

template <class L, int R, int M, Scaled HOW>
static void some(const Gemv& q, int64_t matrix, int64_t row, int64_t count, const Arranged* x, float* const* y,
                 float* scratch) {
  const Weights& w = q.w;
  const L l(w.element);
  const int64_t nbytes = w.row_nbytes(), room = HOW == Scaled::EACH ? q.groups * L::GROUP : w.across() + LANES;
  // The same place in the next R rows, if that is near; else further on in this one.
  const int64_t ahead = R * nbytes <= 8192 ? R * nbytes : 2048;
  const uint8_t* first = w.codes + (matrix * w.rows + row) * nbytes;
  float* blocks = scratch + 2 * R * room;
  int64_t held[R];
  for (int r = 0; r < R; ++r) held[r] = -1;
  for (int64_t at = 0; at < count; at += R) {
    const uint8_t* codes[R];
    const float *s[R], *z[R];
    for (int r = 0; r < R; ++r) {
      const int64_t i = at + r < count ? at + r : count - 1, band = (row + i) / w.block_rows;
      float* own = scratch + 2 * r * room;
      codes[r] = first + i * nbytes, s[r] = own, z[r] = own + room;
      if (band == held[r]) continue;
      held[r] = band;
      if (HOW != Scaled::EACH) {
        factors(w, matrix, band, own, own + room);
        continue;
      }
      factors(w, matrix, band, blocks, blocks + w.across());
      for_each_element<L>(q, blocks, own);
      if (w.zero != WM_ZERO_NONE) for_each_element<L>(q, blocks + w.across(), own + room);
    }
    float out[R][M];
    block<L, R, M, HOW>(l, q, codes, s, z, x, ahead, out);
    for (int r = 0; r < R && at + r < count; ++r)
      for (int m = 0; m < M; ++m) y[m][row + at + r] = out[r][m];
  }
}

template <class L, Scaled HOW>
static void of_rows(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                    float* const* y, float* scratch) {
  constexpr int R = WM_SIMD == 512 ? 4 : 2;  // so that sums and weights stay in registers
  if (m == 1) return some<L, R, 1, HOW>(q, matrix, row, count, x, y, scratch);
  if (m == 2) return some<L, R, 2, HOW>(q, matrix, row, count, x, y, scratch);
  const Arranged four[] = {x[0], x[1], x[2], x[m - 1]};
  float* const to[] = {y[0], y[1], y[2], y[m - 1]};
  some<L, R / 2, 4, HOW>(q, matrix, row, count, four, to, scratch);
}

template <class L>
static void product(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                    float* const* y, float* scratch) {
  if (q.scaled == Scaled::ROW) return of_rows<L, Scaled::ROW>(q, matrix, row, count, m, x, y, scratch);
  if constexpr (!L::PLAIN) {
    if (q.scaled == Scaled::LANES) return of_rows<L, Scaled::LANES>(q, matrix, row, count, m, x, y, scratch);
    if constexpr (!L::HALVES)
      for (int i = 0; i < m; ++i) some<L, 1, 1, Scaled::EACH>(q, matrix, row, count, x + i, y + i, scratch);
  }
}

template <class L>
constexpr GemvKernel kernel_of() {
  return {LANES, L::GROUP, L::NBYTES, L::GRAIN, L::HALVES, arrange<L>, product<L>};
}

#if WM_SIMD == 512
#include "gemv_avx512.h"
#elif WM_SIMD == 256
#include "gemv_avx2.h"
#else
#include "gemv_portable.h"
#endif

// For weights of this element; activations of any dtype.
static const GemvKernel* kernel(WmElement e) {
  static constexpr GemvKernel F32 = kernel_of<PlainF32>(), BF16 = kernel_of<PlainBf16>(), F16 = kernel_of<PlainF16>();
  static constexpr GemvKernel FOUR = kernel_of<Few<4>>(), THREE = kernel_of<Few<3>>(), TWO = kernel_of<Few<2>>();
  static constexpr GemvKernel SIX = kernel_of<Six>(), INT8 = kernel_of<Int8>();
  static constexpr GemvKernel E4M3 = kernel_of<Float8<WM_E4M3>>(), E5M2 = kernel_of<Float8<WM_E5M2>>();
  static constexpr const GemvKernel* ALL[] = {&F32,  &BF16, &F16,   &FOUR, &SIX,  &SIX,  &E4M3,  &E5M2, &INT8,
                                              &FOUR, &INT8, &FOUR, &THREE, &TWO, &INT8, &FOUR, &THREE, &TWO};
  return ALL[e];
}

}  // namespace gemv
