// The plain door of the native kernels: C functions over buffers, for ctypes. No Python, no JAX, no state; every
// function may be called from any number of threads.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "floats.h"
#include "targets.h"
#if WM_X86
#include <cpuid.h>
#endif

#define WM_KERNELS "mxfp4.h"
#include "each_isa.h"

namespace {

template <typename Q, typename S>
int64_t by_dtype(int64_t (*bf16)(const Q&, S*), int64_t (*f16)(const Q&, S*), int64_t (*f32)(const Q&, S*), int dtype,
                 const Q& q, S* sums) {
  return dtype == 0 ? bf16(q, sums) : dtype == 1 ? f16(q, sums) : f32(q, sums);
}

}  // namespace

#define WM_QUANTIZE(space)                                                                                             \
  {                                                                                                                    \
    std::vector<uint32_t> scratch(size_t(block) * space::SCRATCH / 4 + 1);                                             \
    space::Quantize q{x,     rows,       n,          row_stride,         col_stride,  block,        rule,           \
                      thresholds, positive_zero != 0, poison != 0, codes, codes_stride, scales, scales_stride,         \
                      reinterpret_cast<uint8_t*>(scratch.data())};                                                       \
    space::Sums sums;                                                                                                  \
    const int64_t bad = by_dtype<space::Quantize, space::Sums>(                                                        \
        space::quantize_any<Bf16>, space::quantize_any<F16>, space::quantize_any<float>, dtype, q,                     \
        stats == nullptr ? nullptr : &sums);                                                                           \
    if (stats != nullptr) {                                                                                            \
      stats[0] += sums.count;                                                                                          \
      stats[1] = sums.largest > stats[1] ? sums.largest : stats[1];                                                    \
      stats[2] += sums.error;                                                                                          \
      stats[3] += sums.signal;                                                                                         \
    }                                                                                                                  \
    return bad;                                                                                                        \
  }

#define WM_API __attribute__((visibility("default")))

extern "C" {

// The best instruction set of this machine: a WmIsa.
WM_API int wm_isa() {
#if WM_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi"))
    return WM_ISA_AVX512;
  unsigned a, b, c = 0, d;  // clang knows no name of F16C
  __get_cpuid(1, &a, &b, &c, &d);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && (c & bit_F16C))
    return WM_ISA_AVX2;
#endif
  return WM_ISA_PORTABLE;
}

// x [rows, n] → codes [rows, n / 2] and scales [rows, n / block]; returns the flat index of the first value that is
// not finite, or -1. stats: count, max |error|, Σ error², Σ x²; added to; may be null.
WM_API int64_t wm_mxfp4_quantize(int isa, const void* x, int dtype, int64_t rows, int64_t n, int64_t row_stride,
                          int64_t col_stride, int64_t block, int rule, const int16_t* thresholds, int positive_zero,
                          int poison, uint8_t* codes, int64_t codes_stride, uint8_t* scales, int64_t scales_stride,
                          double* stats) {
#if WM_X86
  if (isa == WM_ISA_AVX512) WM_QUANTIZE(avx512)
  if (isa == WM_ISA_AVX2) WM_QUANTIZE(avx2)
#endif
  WM_QUANTIZE(portable)
}
}
