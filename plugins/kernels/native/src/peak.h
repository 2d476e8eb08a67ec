// Fused products as many as a core can do, from registers alone. Included once for each instruction set.

namespace peak {

constexpr int LANES = WM_SIMD ? WM_SIMD / 32 : 4, SUMS = WM_SIMD == 512 ? 24 : 12;  // enough to hide latencies
typedef float Floats __attribute__((vector_size(4 * LANES)));

// Floating-point operations of `rounds`; `sum` keeps compilers from leaving them out.
static double products(int64_t rounds, float* sum) {
  Floats all[SUMS], a, b;
  for (int l = 0; l < LANES; ++l) a[l] = 0.5f, b[l] = sum[0];
  for (int i = 0; i < SUMS; ++i) all[i] = b;
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; ++i) {
#if WM_SIMD == 512
      all[i] = (Floats)_mm512_fmadd_ps((__m512)all[i], (__m512)a, (__m512)b);
#elif WM_SIMD == 256
      all[i] = (Floats)_mm256_fmadd_ps((__m256)all[i], (__m256)a, (__m256)b);
#else
      all[i] = all[i] * a + b;
#endif
    }
  for (int i = 0; i < SUMS; ++i) sum[0] += all[i][0];
  return 2.0 * LANES * SUMS * double(rounds);
}

}  // namespace peak
