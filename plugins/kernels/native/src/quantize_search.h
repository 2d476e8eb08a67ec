// Which of the scales that a search tries loses least. Included once for each instruction set, after quantize_strip.h.
//
// Errors are of float32 values; their squares are float64, and a block's are added one after the other, row by row, as
// plugins/kernels/quantize/reference adds them: another order may choose another scale.

// What the arrays of a search are for; of each block of a region.
struct Searched {
  float* chosen;
  double *least, *sum;
};

// squares[i] of values that became y; what they count is `weights`, or 1.
static inline void square(const Strip& s, int64_t count, const double* weights, double* __restrict squares) {
  for (int64_t i = 0; i < count; ++i) {
    const double e = double(s.v[i]) - double(s.y[i]);
    squares[i] = e * e;
  }
  if (weights != nullptr)
    for (int64_t i = 0; i < count; ++i) squares[i] *= weights[i];
}

// Adds those of columns [first, first + count) of a band to the sums of their blocks, of `width` columns.
static inline void add_in_order(const double* squares, int64_t width, int64_t first, int64_t count,
                                double* __restrict sums) {
  constexpr int AT_ONCE = 8;  // blocks: one sum waits for its last addition
  int64_t block = first / width, left = (block + 1) * width - first;
  for (int64_t i = 0; i < count; left = width) {
    if (left == width && count - i >= AT_ONCE * width) {
      double t[AT_ONCE];
      for (int l = 0; l < AT_ONCE; ++l) t[l] = sums[block + l];
      for (int64_t k = i; k < i + width; ++k)
        for (int l = 0; l < AT_ONCE; ++l) t[l] += squares[k + l * width];
      for (int l = 0; l < AT_ONCE; ++l) sums[block + l] = t[l];
      i += AT_ONCE * width, block += AT_ONCE;
      continue;
    }
    const int64_t end = i + left < count ? i + left : count;
    double t = sums[block];
    for (; i < end; ++i) t += squares[i];
    sums[block++] = t;
  }
}

// A strip under the scales of `b`: what it loses, to the sums of its blocks.
template <typename T>
static void lose(const QuantizeCall& q, const Blocks& b, Strip& s, const T* x, int64_t first, int64_t count,
                 const double* weights, double* sums) {
  alignas(64) double squares[STRIP];
  Lanes lanes;
  widen(x, count, s.v);
  spread_all(q, b, s, first, count);
  code_any(q, b, s, first, count, &lanes, s.y);
  square(s, count, weights, squares);
  add_in_order(squares, q.block_elems, first, count, sums);
}
