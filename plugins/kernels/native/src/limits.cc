// The limits of this machine, for benchmarks: what figures are held against. C functions for ctypes; a thread each.
#include <cstdint>

#include "targets.h"

#define WM_KERNELS "limits.h"
#include "each_isa.h"

#define WM_API __attribute__((visibility("default")))

#if WM_X86
#define WM_BY_ISA(call)                         \
  {                                             \
    if (isa == WM_ISA_AVX512) return avx512::call; \
    if (isa == WM_ISA_AVX2) return avx2::call;     \
    return portable::call;                      \
  }
#else
#define WM_BY_ISA(call) return portable::call;
#endif

extern "C" {

WM_API uint64_t wm_limit_read(int isa, const uint8_t* x, int64_t bytes) { WM_BY_ISA(read_all(x, bytes)) }

// Does 2 · 12 · lanes · rounds operations, and returns how many that were.
WM_API int64_t wm_limit_multiply_add(int isa, int64_t rounds, float by, float* result) {
#if WM_X86
  if (isa == WM_ISA_AVX512) {
    *result = avx512::multiply_adds(rounds, by);
    return 2 * rounds * avx512::CHAINS * avx512::LANES;
  }
  if (isa == WM_ISA_AVX2) {
    *result = avx2::multiply_adds(rounds, by);
    return 2 * rounds * avx2::CHAINS * avx2::LANES;
  }
#endif
  *result = portable::multiply_adds(rounds, by);
  return 2 * rounds * portable::CHAINS * portable::LANES;
}
}
