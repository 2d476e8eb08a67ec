// Products of many rows of activations with packed weights, exact: float32 products and sums. Included once for each
// instruction set, after gemm_call.h and floats.h.
//
// Activations are put in order once, for all weights that they meet. Weights are decoded some columns of a strip at a
// time into cache, and meet every row of activations that wants them before they are let go. The innermost loop is that
// of tile.h.
#include "strip.h"
#include "tile.h"

namespace gemm {

constexpr int64_t ROWS = 532;        // of activations at a time
constexpr int64_t MOST_DEPTH = 4096 / STRIP;  // columns of a strip that are decoded at a time: half of the fastest cache
constexpr int64_t SCRATCH = STRIP * (MOST_DEPTH + ROWS) + SCALES_SCRATCH;

static inline int64_t depth_of(int64_t n) { return even_depth(n, MOST_DEPTH, 128); }  // squares of codes are whole

static int64_t arranged(int64_t n) { return n; }

template <bool BF16>
static void arrange_all(const GemmRows& q, int64_t i, float* out) {
  arrange_rows<MOST, 1>(q, i, depth_of(q.n), 1, out,
                        [](const void* x, int64_t at, int64_t left) { return columns(x, BF16, at, left); });
}

static void arrange_tile(const GemmRows& q, int64_t i, float* out) {
  (q.bf16 ? arrange_all<true> : arrange_all<false>)(q, i, out);
}

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
