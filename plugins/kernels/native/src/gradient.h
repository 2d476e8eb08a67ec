// The products that gradients are made of, exact: float32 products and sums. Included once for each instruction set,
// after gemm_call.h and floats.h.
//
// Both are the outer product of tile.h. Rows of the one matrix are laid into strips as they are, some of them at a time;
// the other is put in order a tile at a time. What is summed up is summed in order, so that results do not depend on
// how work is divided.
#include "lanes.h"
#include "tile.h"

namespace gemm {

constexpr int64_t DEEP = 256;           // products that are summed at a time
constexpr int64_t ACROSS = 12 * STRIP;  // columns at a time: what is laid into strips stays in a core's own cache
constexpr int64_t TILES = 8;            // that are put in order at a time, of weights' gradients: whole lines are read
constexpr int64_t TILE = DEEP * MOST + LANES;  // floats; what is stored past a row's end stays in it
constexpr int64_t GRADIENT_SCRATCH = DEEP * ACROSS + TILES * TILE + MOST * STRIP;

// Columns first … first + count of a row → row k of strips that have `depth` rows, with zeros behind them.
WM_INLINE void lay(const void* row, bool bf16, int64_t first, int64_t count, int64_t depth, int64_t k, float* strips) {
  for (int64_t c = 0; c < count; c += STRIP)
    for (int h = 0; h < STRIP; h += LANES) {
      const Ints v = c + h < count ? columns(row, bf16, first + c + h, count - c - h) : Ints{};
      store(strips + c * depth + k * STRIP + h, (Floats)v);
    }
}

// Rows y_of(0) … y_of(m - 1) = (or +=) x · strips, of which `count` columns are there; x is [depth][m].
template <typename RowOf>
WM_INLINE void meet(const float* x, int64_t m, const float* strips, int64_t depth, int64_t count, float* sums, bool add,
                    const RowOf& y_of) {
  const Tile multiply = tile_of<MOST>(m);
  for (int64_t c = 0; c < count; c += STRIP) {
    multiply(strips + c * depth, x, depth, sums, false);
    const int64_t there = least(STRIP, count - c);
    for (int64_t r = 0; r < m; ++r) {
      float *y = y_of(r) + c, *sum = sums + r * STRIP;
      if (there == STRIP) {
        const Floats both[2] = {load(sum), load(sum + LANES)};
        put(both, y, add);
      } else {
        for (int64_t i = 0; i < there; ++i) y[i] = add ? y[i] + sum[i] : sum[i];
      }
    }
  }
}

// y [rows of dy, in] = Σ over terms dy · w.
static void input_gradient(const GradientTerm* terms, int64_t many, int64_t in, float* scratch) {
  float *ordered = scratch + DEEP * ACROSS, *sums = ordered + TILES * TILE;
  for (int64_t c = 0, wide = even_depth(in, ACROSS, STRIP); c < in; c += wide) {
    const int64_t across = least(wide, in - c);
    bool add = false;
    for (int64_t t = 0; t < many; ++t) {
      const GradientTerm& term = terms[t];
      const GemmRows& q = term.dy;
      const int64_t tiles = (q.count + MOST - 1) / MOST, each = term.bf16 ? 2 : 4;
      for (int64_t k = 0, deep = even_depth(q.n, DEEP, 1); k < q.n; k += deep, add = true) {
        const int64_t depth = least(deep, q.n - k);
        for (int64_t i = 0; i < depth; ++i) lay(term.w + (k + i) * in * each, term.bf16, c, across, depth, i, scratch);
        for (int64_t i = 0; i < tiles; ++i) {
          const int64_t m = first_of(q.count, tiles, i), height = share(q.count, tiles, i);
          (q.bf16 ? arrange<true> : arrange<false>)(q, m, height, k, depth, ordered);
          meet(ordered, height, scratch, depth, across, sums, add, [&](int64_t r) { return q.y_of(m + r) + c; });
        }
      }
    }
  }
}

// Rows first … last of dw [out, in] = dyᵀ · x, and of db [out] the sums of dy.
static void weight_gradient(const WeightGradient& g, int64_t first, int64_t last, float* scratch) {
  float *ordered = scratch + DEEP * ACROSS, *sums = ordered + TILES * TILE;
  for (int64_t c = 0, wide = even_depth(g.in, ACROSS, STRIP); c < g.in; c += wide) {
    const int64_t across = least(wide, g.in - c);
    for (int64_t k = 0, deep = even_depth(g.count, DEEP, 1); k < g.count; k += deep) {
      const int64_t depth = least(deep, g.count - k);
      for (int64_t i = 0; i < depth; ++i) lay(g.x_of(k + i), g.x_bf16, c, across, depth, i, scratch);
      for (int64_t o = first; o < last; o += TILES * MOST) {
        const int64_t rows = least(TILES * MOST, last - o), tiles = (rows + MOST - 1) / MOST;
        for (int64_t i = 0; i < depth; ++i) {
          const void* dy = g.dy_of(k + i);
          for (int64_t t = 0; t < tiles; ++t) {
            const int64_t m = o + first_of(rows, tiles, t), height = share(rows, tiles, t);
            store(ordered + t * TILE + i * height, (Floats)columns(dy, g.dy_bf16, m, g.out - m));
          }
        }
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t m = o + first_of(rows, tiles, t), height = share(rows, tiles, t);
          const float* x = ordered + t * TILE;
          if (c == 0) {
            Floats all = {};
            for (int64_t i = 0; i < depth; ++i) all += load(x + i * height);
            for (int64_t r = 0; r < height; ++r) g.db[m + r] = k ? g.db[m + r] + all[r] : all[r];
          }
          meet(x, height, scratch, depth, across, sums, k != 0, [&](int64_t r) { return g.dw + (m + r) * g.in + c; });
        }
      }
    }
  }
}

}  // namespace gemm
