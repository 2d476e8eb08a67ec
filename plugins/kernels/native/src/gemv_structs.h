// Products of a few rows of activations with structs of ggml, from the stored blocks: gemv.h's other half. A block is taken
// apart into bytes in the nearest cache, and meets its activations there. A minimum is taken off by way of the sums of the
// activations that it meets. Included in gemv.h.
#include "structs.h"

constexpr int STRUCT_GROUP = 16 * LANES;  // as many sums of activations as lanes, and a group has 16 elements or more

// Of each group of elements of a block, if there is room for them.
template <WmElement E>
static void sums_of_groups(const void* x, bool from_bf16, int64_t n, float* sums) {
  for (int64_t g = 0; sums != nullptr && g < n / structs::GROUP<E>; ++g) {
    float sum = 0;
    for (int64_t i = g * structs::GROUP<E>; i < (g + 1) * structs::GROUP<E>; ++i)
      sum += from_bf16 ? widened(static_cast<const Bf16*>(x)[i]) : static_cast<const float*>(x)[i];
    sums[g] = sum;
  }
}

// The totals of M sums, to row r of as many results.
template <int M>
WM_INLINE void put_totals(const V (&sum)[M], float* const* y, int64_t r) {
  V four[4] = {};
  float found[4];
  for (int m = 0; m < M; ++m) four[m] = sum[m];
  totals(four, found);
  for (int m = 0; m < M; ++m) y[m][r] = found[m];
}

// rows(M, x, y) of m (1 … 4) rows of activations, for an M that is compiled.
template <class Rows>
WM_INLINE void by_rows(int m, const Arranged* x, float* const* y, const Rows& rows) {
  if (m == 1) return rows(std::integral_constant<int, 1>(), x, y);
  if constexpr (WM_SIMD == 512)
    if (m == 2) return rows(std::integral_constant<int, 2>(), x, y);
  const Arranged four[] = {x[0], x[1], x[m / 2], x[m - 1]};
  float* const to[] = {y[0], y[1], y[m / 2], y[m - 1]};
  rows(std::integral_constant<int, 4>(), four, to);
}

#if WM_FIXED
#include "gemv_structs_fixed.h"
#else

WM_INLINE V from_int8(const int8_t* p) {
#if WM_SIMD == 512
  return (V)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif WM_SIMD == 256
  return (V)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  typedef int8_t Some __attribute__((vector_size(LANES), aligned(1), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Some*>(p), V);
#endif
}

template <WmElement E>
static bool arrange_struct(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  float* to = static_cast<float*>(out);
  for (int64_t i = 0; i < n; ++i)
    to[i] = from_bf16 ? widened(static_cast<const Bf16*>(x)[i]) : static_cast<const float*>(x)[i];
  sums_of_groups<E>(x, from_bf16, n, sums);
  return true;
}

template <WmElement E, int M>
static void struct_rows(const Gemv& q, int64_t matrix, int64_t row, int64_t count, const Arranged* xs, float* const* y) {
  constexpr int SIZE = structs::SIZE<E>, GROUP = structs::GROUP<E>, GROUPS = structs::GROUPS<E>;
  constexpr int NBYTES = struct_nbytes(E), CHAINS = M == 1 ? 4 : 2;  // of sums, which wait for none of each other
  typedef float Eight __attribute__((vector_size(32)));
  typedef Eight LooseEight __attribute__((aligned(4), may_alias));
  const Weights& w = q.w;
  const int64_t blocks = w.n / SIZE;
  const uint8_t* p = w.codes + (matrix * w.rows + row) * w.row_nbytes();
  for (int64_t r = row; r < row + count; ++r) {
    V sum[M][CHAINS] = {};
    Eight taken[M] = {};
    for (int64_t b = 0; b < blocks; ++b, p += NBYTES) {
      alignas(64) int8_t codes[SIZE];
      alignas(64) float factor[GROUPS], less[GROUPS];
      for (int at = 0; at < NBYTES; at += 64) ask_for(p + q.ahead.bytes + at, p + q.ahead.near + at, q.ahead);
      structs::codes_of<E>(p, codes);
      structs::factors_of<E>(p, factor, less);
#pragma GCC unroll 16
      for (int g = 0; g < GROUPS; ++g) {
        V here[M];
#pragma GCC unroll 8
        for (int i = 0; i < GROUP; i += LANES) {
          const V v = from_int8(codes + g * GROUP + i);
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) {
            const V x = load(static_cast<const float*>(xs[m].x) + b * SIZE + g * GROUP + i);
            here[m] = i ? fused(v, x, here[m]) : v * x;
          }
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) sum[m][g % CHAINS] = fused(here[m], V{} + factor[g], sum[m][g % CHAINS]);
      }
      if constexpr (structs::MINIMA<E>)
        for (int m = 0; m < M; ++m) {
          const float* of = xs[m].sums + b * GROUPS;
          if constexpr (GROUPS == 1) taken[m][0] += less[0] * of[0];
          else
            for (int i = 0; i < GROUPS; i += 8)
              taken[m] += *reinterpret_cast<const LooseEight*>(less + i) * *reinterpret_cast<const LooseEight*>(of + i);
        }
    }
    V all[M] = {};
    for (int m = 0; m < M; ++m) {
      for (int c = 0; c < CHAINS; ++c) all[m] += sum[m][c];
      const Eight& t = taken[m];
      if constexpr (structs::MINIMA<E>) all[m][0] -= ((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7]));
    }
    put_totals<M>(all, y, r);
  }
}

template <WmElement E>
static void struct_product(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                           float* const* y, float*) {
  by_rows(m, x, y, [&](auto some, const Arranged* xs, float* const* to) {
    struct_rows<E, decltype(some)::value>(q, matrix, row, count, xs, to);
  });
}

template <WmElement E>
constexpr GemvKernel struct_kernel_of() {
  return {LANES, STRUCT_GROUP, STRUCT_GROUP, 32, nullptr, set_of(Scaled::ROW), 4, arrange_struct<E>, struct_product<E>};
}

static const GemvKernel* struct_kernel(WmElement e) {
  static constexpr GemvKernel ALL[] = {
      struct_kernel_of<WM_Q2_K>(), struct_kernel_of<WM_Q3_K>(), struct_kernel_of<WM_Q4_K>(), struct_kernel_of<WM_Q5_K>(),
      struct_kernel_of<WM_Q6_K>(), struct_kernel_of<WM_Q5_0>(), struct_kernel_of<WM_Q5_1>(), struct_kernel_of<WM_IQ4_NL>()};
  return ALL + (e - WM_Q2_K);
}
#endif
