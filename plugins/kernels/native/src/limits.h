// What a core can do at most: reading memory, and multiplying and adding in float32.
namespace {

#if WM_SIMD == 512
constexpr int LANES = 16;
#elif WM_SIMD == 256
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef uint64_t Words __attribute__((vector_size(LANES * 4), aligned(8)));
constexpr int CHAINS = 12;  // more than two multiply-adds a cycle, four cycles each, can be under way

static inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if WM_SIMD == 512
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif WM_SIMD == 256
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  for (int i = 0; i < LANES; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

// Every byte of `bytes` once, four streams beside each other; the result only makes sure that it is read.
uint64_t read_all(const uint8_t* x, int64_t bytes) {
  constexpr int64_t STREAMS = 4, STEP = 4 * sizeof(Words);
  const int64_t each = bytes / (STREAMS * STEP) * STEP;
  Words sums[STREAMS] = {};
  for (int64_t at = 0; at < each; at += STEP)
    for (int64_t s = 0; s < STREAMS; ++s) {
      const Words* from = reinterpret_cast<const Words*>(x + s * each + at);
      sums[s] |= (from[0] | from[1]) | (from[2] | from[3]);
    }
  uint64_t all = 0;
  for (const Words& sum : sums)
    for (unsigned i = 0; i < sizeof(Words) / 8; ++i) all |= sum[i];
  return all;
}

// `rounds` times CHAINS · LANES multiply-adds, all in registers.
float multiply_adds(int64_t rounds, float by) {
  Floats sums[CHAINS], factor;
  for (int i = 0; i < LANES; ++i) factor[i] = by;
  for (int c = 0; c < CHAINS; ++c) sums[c] = factor * float(c);  // each its own, or the compiler keeps one of them
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < CHAINS; ++c) sums[c] = multiply_add(sums[c], factor, factor);
  }
  float all = 0;
  for (const Floats& sum : sums)
    for (int i = 0; i < LANES; ++i) all += sum[i];
  return all;
}

}  // namespace
