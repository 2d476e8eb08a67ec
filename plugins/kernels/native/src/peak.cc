// What this machine can do at most: the denominator of benchmarks of products.
#include <cstdint>

#include "targets.h"

#define WM_KERNELS "peak.h"
#include "each_isa.h"

#if WM_X86
namespace {
WM_TARGET_BEGIN(WM_AVX512_VNNI)
double integers(int64_t rounds, float* sum) {
  __m512i all[24]; const __m512i a = _mm512_set1_epi32(0x01010101), b = _mm512_set1_epi32(int(sum[0]));
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) all[i] = b;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < 24; ++i) {
      all[i] = _mm512_dpbusd_epi32(all[i], a, b);
      asm("" : "+v"(all[i]));  // or they would be one, as they are equal
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) sum[0] += float(_mm512_reduce_add_epi32(all[i]));
  return 2.0 * 64 * 24 * double(rounds);
}
WM_TARGET_END
}  // namespace
#endif

extern "C" {

// Operations done in `rounds`: of float32, or (`int8`) of dot products of bytes, 0 where the machine has none.
__attribute__((visibility("default"))) double wm_peak(int isa, int int8, int64_t rounds, float* sum) {
#if WM_X86
  if (int8) return isa == WM_ISA_AVX512 && __builtin_cpu_supports("avx512vnni") ? integers(rounds, sum) : 0;
  if (isa == WM_ISA_AVX512) return avx512::peak::products(rounds, sum);
  if (isa == WM_ISA_AVX2) return avx2::peak::products(rounds, sum);
#endif
  return int8 ? 0 : portable::peak::products(rounds, sum);
}
}
