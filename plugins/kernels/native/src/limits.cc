// The limits of this machine, for benchmarks: what figures are held against. C functions for ctypes; a thread each.
#include <cstdint>

#include "targets.h"

#define WM_KERNELS "limits.h"
#include "each_isa.h"

#define WM_API __attribute__((visibility("default")))

#if WM_WITH_AVX512
namespace {
WM_TARGET_BEGIN(WM_AVX512)
int64_t dots_of_bytes(int64_t rounds, float by, float* result) {
  constexpr int CHAINS = 24;
  __m512i sums[CHAINS];
  const __m512i a = _mm512_set1_epi32(0x01010101), b = _mm512_set1_epi32(int(by));
#pragma GCC unroll 24
  for (int c = 0; c < CHAINS; ++c) sums[c] = b;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; ++c) {
      sums[c] = _mm512_dpbusd_epi32(sums[c], a, b);
      asm("" : "+v"(sums[c]));  // or they would be one, as they are equal
    }
  }
#pragma GCC unroll 24
  for (int c = 0; c < CHAINS; ++c) *result += float(_mm512_reduce_add_epi32(sums[c]));
  return 2 * rounds * CHAINS * 64;
}
WM_TARGET_END
}  // namespace
#endif

extern "C" {

// Returns how many operations of dot products of bytes it did; 0 where the machine has none.
WM_API int64_t wm_limit_dot_int8(int isa, int64_t rounds, float by, float* result) {
#if WM_WITH_AVX512
  if (isa == WM_ISA_AVX512) return dots_of_bytes(rounds, by, result);
#endif
  return 0;
}

WM_API uint64_t wm_limit_read(int isa, const uint8_t* x, int64_t bytes) {
#define WM_RUN(space) return space::read_all(x, bytes)
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

// Does 2 · 12 · lanes · rounds operations, and returns how many that were.
WM_API int64_t wm_limit_multiply_add(int isa, int64_t rounds, float by, float* result) {
#define WM_RUN(space)                                       \
  {                                                         \
    *result = space::multiply_adds(rounds, by);             \
    return 2 * rounds * space::CHAINS * space::LANES;       \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}
}
