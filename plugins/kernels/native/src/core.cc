// What every unit's caller asks first: which instructions the machine has.
#include "targets.h"
#if WM_X86
#include <cpuid.h>
#endif

#define WM_API __attribute__((visibility("default")))

extern "C" {

// The best instruction set of this machine: a WmIsa.
WM_API int wm_isa() {
#if WM_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni"))
    return WM_ISA_AVX512;
  unsigned a, b, c = 0, d;  // clang knows no name of F16C
  __get_cpuid(1, &a, &b, &c, &d);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && (c & bit_F16C))
    return WM_ISA_AVX2;
#endif
  return WM_ISA_PORTABLE;
}
}
