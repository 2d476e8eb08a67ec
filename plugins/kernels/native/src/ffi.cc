// XLA's door of the native kernels: products of a few rows, exact.
#include "elements.h"
#include "floats.h"
#include "gemv_grouped.h"

#define WM_KERNELS "gemv.h"
#include "each_isa.h"

#if WM_WITH_AVX2
#define WM_FIXED 1
#define WM_SIMD 256
namespace avx2fixed {
WM_TARGET_BEGIN(WM_AVX2)
#include WM_KERNELS
WM_TARGET_END
}
#undef WM_SIMD
#undef WM_FIXED
#endif
#if WM_WITH_AVX512
#define WM_SIMD 512
#define WM_PAIRED 1
namespace avx512bf16 {
WM_TARGET_BEGIN(WM_AVX512_BF16)
#include WM_KERNELS
WM_TARGET_END
}
#undef WM_PAIRED
#define WM_FIXED 1
namespace avx512fixed {
WM_TARGET_BEGIN(WM_AVX512)
#include WM_KERNELS
WM_TARGET_END
}
#undef WM_FIXED
#undef WM_SIMD
#endif

namespace {

std::vector<const GemvKernel*> kernels(int64_t isa, bool dots, bool bf16, WmElement e) {
  std::vector<const GemvKernel*> all;
  const auto add = [&](const GemvKernel* kernel) {
    if (kernel != nullptr) all.push_back(kernel);
  };
#if WM_WITH_AVX512
  if (isa == WM_ISA_AVX512) {
    // Intel's cores take twice as long for a product of bfloat16 pairs as for one of bytes; AMD's do not.
    const bool paired = dots && bf16 && __builtin_cpu_supports("avx512bf16");
    if (paired && !intel()) add(avx512bf16::gemv::kernel(e));
    if (dots) add(avx512fixed::gemv::kernel(e));
    if (paired && intel()) add(avx512bf16::gemv::kernel(e));
    add(avx512::gemv::kernel(e));
  }
#endif
#if WM_WITH_AVX2
  if (isa == WM_ISA_AVX2) {
    add(avx2fixed::gemv::kernel(e));
    add(avx2::gemv::kernel(e));
  }
#endif
#if WM_WITH_PORTABLE
  if (isa == WM_ISA_PORTABLE) add(portable::gemv::kernel(e));
#endif
  return all;
}

}  // namespace
