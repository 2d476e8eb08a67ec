// Rows over their root mean square, times a weight. Included once for each instruction set, after floats.h and narrowed.h.
// Loops are written so that compilers make vectors of them.

namespace rms_norm {

constexpr int SUMS = 16;  // that go on side by side, whatever the registers: numbers are the same on all machines

// y = x / √(mean x² + eps) · weight, of n elements; weight + 1 if `plus_one`.
template <typename E, typename W>
static void row(const E* x, const W* weight, int64_t n, float eps, bool plus_one, E* y) {
  float sums[SUMS] = {};
  int64_t i = 0;
  for (; i + SUMS <= n; i += SUMS)
    for (int l = 0; l < SUMS; ++l) sums[l] += widened(x[i + l]) * widened(x[i + l]);
  for (int l = 0; i < n; ++i, ++l) sums[l] += widened(x[i]) * widened(x[i]);
  for (int l = SUMS / 2; l; l /= 2)
    for (int j = 0; j < l; ++j) sums[j] += sums[j + l];
  const float by = 1.0f / std::sqrt(sums[0] / float(n) + eps), more = plus_one ? 1.0f : 0.0f;
  for (i = 0; i < n; ++i) narrowed(widened(x[i]) * by * (widened(weight[i]) + more), y + i);
}

}  // namespace rms_norm
