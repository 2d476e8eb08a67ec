// The innermost loop of products, `tile`, and how rows are put in order for it. Included once for each instruction set,
// after gemm_call.h and lanes.h.
//
// It is an outer product: two registers of one matrix and a broadcast number of the other for each of M rows, whose sums
// stay in registers. It reads 2 + M numbers for 2 M products of registers, where a loop along the columns reads 10 for 24
// and has sums of lanes to make: measured on Zen 5, 96 % and 31 % of the FMA peak.

namespace gemm {

constexpr int MOST = WM_SIMD == 512 ? 14 : WM_SIMD == 256 ? 6 : 3;  // rows whose sums fit registers, at most LANES

#if WM_SIMD == 512
WM_INLINE Floats everywhere(float v) { return (Floats)_mm512_set1_ps(v); }
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif WM_SIMD == 256
WM_INLINE Floats everywhere(float v) { return (Floats)_mm256_set1_ps(v); }
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
WM_INLINE Floats everywhere(float v) { return Floats{v, v, v, v, v, v, v, v}; }
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }
#endif

WM_INLINE void put(const Floats sum[2], float* sums, bool add) {
  for (int h = 0; h < 2; ++h) store(sums + h * LANES, add ? load(sums + h * LANES) + sum[h] : sum[h]);
}

// sums [M][STRIP] = (or +=) x · w: w is [depth][STRIP], x is [depth][M], as `decode` and `arrange` leave them.
template <int M>
static void tile(const float* w, const float* x, int64_t depth, float* sums, bool add) {
  Floats sum[M][2] = {};
  for (int64_t k = 0; k < depth; ++k, w += STRIP, x += M) {
    const Floats w0 = load(w), w1 = load(w + LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Floats v = everywhere(x[m]);
      sum[m][0] = fused(w0, v, sum[m][0]);
      sum[m][1] = fused(w1, v, sum[m][1]);
    }
  }
  for (int m = 0; m < M; ++m) put(sum[m], sums + m * STRIP, add);
}

using Tile = void (*)(const float*, const float*, int64_t, float*, bool);

template <int M>
static inline Tile tile_of(int64_t rows) {
  if constexpr (M == 1) return tile<1>;
  else return rows == M ? tile<M> : tile_of<M - 1>(rows);
}

// Rows of the i-th of `parts` parts of `rows`, as even as can be, and the first of them.
static inline int64_t share(int64_t rows, int64_t parts, int64_t i) { return rows / parts + (i < rows % parts); }
static inline int64_t first_of(int64_t rows, int64_t parts, int64_t i) {
  return rows / parts * i + least(rows % parts, i);
}

// LANES columns of a row of activations, of which `count` are there.
WM_INLINE Ints columns(const void* x, bool bf16, int64_t at, int64_t count) {
  Ints v = {};
  if (!bf16) {
    const float* from = static_cast<const float*>(x) + at;
    if (count >= LANES) std::memcpy(&v, from, sizeof v);
    else std::memcpy(&v, from, size_t(count) * 4);
    return v;
  }
  uint16_t half __attribute__((vector_size(2 * LANES))) = {};
  const uint16_t* from = static_cast<const uint16_t*>(x) + at;
  if (count >= LANES) std::memcpy(&half, from, sizeof half);
  else std::memcpy(&half, from, size_t(count) * 2);
  return __builtin_convertvector(half, Ints) << 16;
}

// Columns k … k + depth of m rows of activations → [depth][m].
template <bool BF16>
static void arrange(const GemmRows& q, int64_t first, int64_t m, int64_t k, int64_t depth, float* out) {
  const void* from[LANES];
  for (int64_t i = 0; i < LANES; ++i) from[i] = q.x_of(first + least(i, m - 1));
  for (int64_t c = 0; c < depth; c += LANES) {
    Ints v[LANES];
    if (depth - c >= LANES)
      for (int i = 0; i < LANES; ++i) v[i] = columns(from[i], BF16, k + c, LANES);
    else
      for (int i = 0; i < LANES; ++i) v[i] = columns(from[i], BF16, k + c, depth - c);
    transpose(v);
    for (int64_t j = 0; j < least(LANES, depth - c); ++j) {
      float* to = out + (c + j) * m;  // what lies behind is written next, but for what is another tile's
      if ((c + j) * m + LANES <= depth * m) store(to, (Floats)v[j]);
      else std::memcpy(to, &v[j], size_t(m) * 4);
    }
  }
}

}  // namespace gemm
