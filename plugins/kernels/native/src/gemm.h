// Products of many rows of activations with packed weights, exact: float32 products and sums. Included once for each
// instruction set, after gemm_call.h and floats.h.
//
// Weights are decoded a strip at a time into cache, and a strip meets every row of activations that wants it before it is
// let go. The innermost loop (`tile`) is an outer product: two registers of weights and a broadcast activation for each of
// M rows, whose sums stay in registers. It reads 2 + M numbers for 2 M products of registers, where a loop along the
// columns reads 10 for 24 and has sums of lanes to make: measured on Zen 5, 96 % and 31 % of the FMA peak.
#include "strip.h"

namespace gemm {

constexpr int MOST = WM_SIMD == 512 ? 14 : WM_SIMD == 256 ? 6 : 3;      // rows whose sums fit registers, at most LANES
constexpr int64_t ROWS = 126;                                            // of activations at a time
constexpr int64_t SCRATCH = (STRIP + ROWS) * DEPTH + LANES + SCALES_SCRATCH;  // floats that `product` works in

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

// y [count] = (or +=) a strip's sums.
WM_INLINE void put(const Floats sum[2], float* y, int64_t count, bool add) {
  float all[STRIP];
  store(all, sum[0]);
  store(all + LANES, sum[1]);
  if (count == STRIP)
    for (int r = 0; r < STRIP; ++r) y[r] = add ? y[r] + all[r] : all[r];
  else
    for (int64_t r = 0; r < count; ++r) y[r] = add ? y[r] + all[r] : all[r];
}

// y [rows first … first + M of q, row … row + count] = (or +=) x · w: w is [depth][STRIP], x is [depth][M], as `decode`
// and `arrange` leave them.
template <int M>
static void tile(const float* w, const float* x, int64_t depth, const GemmRows& q, int64_t first, int64_t row,
                 int64_t count, bool add) {
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
  for (int m = 0; m < M; ++m) put(sum[m], q.y_of(first + m) + row, count, add);
}

using Tile = void (*)(const float*, const float*, int64_t, const GemmRows&, int64_t, int64_t, int64_t, bool);

template <int M>
static inline Tile tile_of(int64_t rows) {
  if constexpr (M == 1) return tile<1>;
  else return rows == M ? tile<M> : tile_of<M - 1>(rows);
}

// Rows of the i-th of `parts` parts of `rows`, as even as can be.
static inline int64_t share(int64_t rows, int64_t parts, int64_t i) { return rows / parts + (i < rows % parts); }

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

// Columns k … k + depth of m rows of activations → [depth][m]. Writes up to LANES floats past the end.
static void arrange(const GemmRows& q, int64_t first, int64_t m, int64_t k, int64_t depth, float* out) {
  for (int64_t c = 0; c < depth; c += LANES) {
    Ints v[LANES] = {};
    for (int64_t i = 0; i < m; ++i) v[i] = columns(q.x_of(first + i), q.bf16, k + c, depth - c);
    transpose(v);
    for (int64_t j = 0; j < least(LANES, depth - c); ++j) store(out + (c + j) * m, (Floats)v[j]);
  }
}

// y [rows of q, first … last] = x · w[matrix, first … last]ᵀ; at most ROWS rows, `first` a multiple of STRIP.
static void product(const Weights& w, int64_t matrix, int64_t first, int64_t last, const GemmRows& q, float* scratch) {
  const DecodeHalf decode = strip_decoder(w);
  const int64_t tiles = (q.count + MOST - 1) / MOST;
  float *scales = scratch + STRIP * DEPTH, *arranged = scales + SCALES_SCRATCH;
  for (int64_t k = 0; k < w.n; k += DEPTH) {
    const int64_t depth = least(DEPTH, w.n - k);
    for (int64_t i = 0, m = 0, height; i < tiles; ++i, m += height) {
      height = share(q.count, tiles, i);
      arrange(q, m, height, k, depth, arranged + m * depth);
    }
    for (int64_t row = first; row < last; row += STRIP) {
      const int64_t count = least(STRIP, last - row);
      const Part part{w, matrix, row, count, k, depth, scratch, scales};
      for (int half = 0; half < 2; ++half) decode(part, half);
      for (int64_t i = 0, m = 0, height; i < tiles; ++i, m += height) {
        height = share(q.count, tiles, i);
        tile_of<MOST>(height)(scratch, arranged + m * depth, depth, q, m, row, count, k != 0);
      }
    }
  }
}

constexpr GemmKernel KERNEL = {STRIP, ROWS, SCRATCH, product};

}  // namespace gemm
