// Products of many rows of activations with packed weights, exact: float32 products and sums. Included once for each
// instruction set, after gemm_call.h and floats.h.
//
// Activations are put in order once, for all weights that they meet. Weights are decoded some columns of a strip at a
// time into cache, and meet every row of activations that wants them before they are let go. The innermost loop, `tile`,
// is an outer product: two registers of weights and a broadcast activation for each of M rows, whose sums stay in
// registers. It reads 2 + M numbers for 2 M products of registers, where a loop along the columns reads 10 for 24 and
// has sums of lanes to make: measured on Zen 5, 96 % and 31 % of the FMA peak.
#include "strip.h"

namespace gemm {

constexpr int MOST = WM_SIMD == 512 ? 14 : WM_SIMD == 256 ? 6 : 3;  // rows whose sums fit registers, at most LANES
constexpr int64_t ROWS = 532;        // of activations at a time
constexpr int64_t MOST_DEPTH = 256;  // columns of a strip that are decoded at a time: they stay in the fastest cache
constexpr int64_t SCRATCH = STRIP * (MOST_DEPTH + ROWS) + SCALES_SCRATCH;

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

// LANES columns of a row of activations, of which `left` are there.
WM_INLINE Ints columns(const void* x, bool bf16, int64_t at, int64_t left) {
  Ints v = {};
  if (!bf16) {
    std::memcpy(&v, static_cast<const float*>(x) + at, left >= LANES ? sizeof v : size_t(left) * 4);
    return v;
  }
  uint16_t half __attribute__((vector_size(2 * LANES))) = {};
  std::memcpy(&half, static_cast<const uint16_t*>(x) + at, left >= LANES ? sizeof half : size_t(left) * 2);
  return __builtin_convertvector(half, Ints) << 16;
}

// Tile i of the rows of activations, TALL rows at most: `deep` columns at a time, as numbers of EACH columns, [number][m]
// for m rows; the columns at an end are rounded up to `whole` of them. Tiles lie one after another for the columns that
// are decoded first, and so on. read(row, column, left): LANES numbers, of which only those of `left` columns are there.
template <int TALL, int EACH, typename Read>
WM_INLINE void arrange_rows(const GemmRows& q, int64_t i, int64_t deep, int64_t whole, float* out, const Read& read) {
  const int64_t tiles = (q.count + TALL - 1) / TALL, first = first_of(q.count, tiles, i), m = share(q.count, tiles, i);
  const void* from[LANES];
  for (int64_t l = 0; l < LANES; ++l) from[l] = q.x_of(first + least(l, m - 1));
  for (int64_t k = 0; k < q.n; k += deep) {
    const int64_t numbers = (least(deep, q.n - k) + whole - 1) / whole * whole / EACH;
    float* part = out + k / EACH * q.count + first * numbers;
    for (int64_t c = 0; c < numbers; c += LANES) {
      const int64_t at = k + c * EACH, left = q.n - at;
      Ints v[LANES];
      if (left >= EACH * LANES)
        for (int l = 0; l < LANES; ++l) v[l] = read(from[l], at, EACH * LANES);
      else
        for (int l = 0; l < LANES; ++l) v[l] = read(from[l], at, left);
      transpose(v);
      for (int64_t j = 0; j < least(LANES, numbers - c); ++j) {
        float* to = part + (c + j) * m;  // what lies behind is written next, but for what is another tile's
        if ((c + j) * m + LANES <= numbers * m) store(to, (Floats)v[j]);
        else std::memcpy(to, &v[j], size_t(m) * 4);
      }
    }
  }
}

static inline int64_t depth_of(int64_t n) { return even_depth(n, MOST_DEPTH, 8); }

static int64_t arranged(int64_t n) { return n; }

template <bool BF16>
static void arrange(const GemmRows& q, int64_t i, float* out) {
  arrange_rows<MOST, 1>(q, i, depth_of(q.n), 1, out,
                        [](const void* x, int64_t at, int64_t left) { return columns(x, BF16, at, left); });
}

static void arrange_tile(const GemmRows& q, int64_t i, float* out) { (q.bf16 ? arrange<true> : arrange<false>)(q, i, out); }

// The lines of a row of a strip come into cache while others are computed.
WM_INLINE void will_write(float* y) {
  for (int64_t i = 0; i < STRIP; i += 16) __builtin_prefetch(y + i, 1);
}

// y [rows of q, first … last] = x · w[matrix, first … last]ᵀ; `first` is a multiple of STRIP. `make` makes of a part
// what `multiply` multiplies with the rows of a tile: `deep` columns at a time, which are summed in order.
template <int TALL, typename Make, typename Multiply>
WM_INLINE void products(const StripDecoder& decoder, Part part, int64_t deep, int64_t first, int64_t last,
                        const GemmRows& q, float* sums, const Make& make, const Multiply& multiply) {
  const int64_t n = part.w.n, tiles = (q.count + TALL - 1) / TALL, scales = columns_of_scales(part.w, deep);
  for (part.row = first; part.row < last; part.row += STRIP) {
    part.rows = least(STRIP, last - part.row);
    for (int64_t k = 0; k < n; k += deep) {
      if (k % scales == 0) {
        part.k = k, part.depth = least(scales, n - k);
        decoder.find_scales(part);
      }
      part.k = k, part.depth = least(deep, n - k);
      make(part);
      const bool done = k + deep >= n;
      for (int64_t i = 0, m = 0, height; i < tiles; ++i, m += height) {
        height = share(q.count, tiles, i);
        for (int64_t r = m; done && r < m + height; ++r) will_write(q.y_of(r) + part.row);
        multiply(part, m, height, sums + m * STRIP, k != 0);
        for (int64_t r = m; done && r < m + height; ++r) {
          float* y = q.y_of(r) + part.row;
          if (part.rows == STRIP) std::memcpy(y, sums + r * STRIP, STRIP * 4);
          else std::memcpy(y, sums + r * STRIP, size_t(part.rows) * 4);
        }
      }
    }
  }
}

static void product(const Weights& w, int64_t matrix, int64_t first, int64_t last, const GemmRows& q, const float* x,
                    float* scratch) {
  const StripDecoder& decoder = strip_decoder(w);
  float *scales = scratch + STRIP * MOST_DEPTH, *sums = scales + SCALES_SCRATCH;
  products<MOST>(
      decoder, Part{w, matrix, 0, 0, 0, 0, scratch, scales, 0}, depth_of(w.n), first, last, q, sums,
      [&](const Part& p) {
        for (int half = 0; half < 2; ++half) decoder.half(p, half);
      },
      [&](const Part& p, int64_t m, int64_t height, float* to, bool add) {
        tile_of<MOST>(height)(p.out, x + p.k * q.count + m * p.depth, p.depth, to, add);
      });
}

constexpr GemmKernel KERNEL = {STRIP, MOST, ROWS, SCRATCH, arranged, arrange_tile, product};

}  // namespace gemm
