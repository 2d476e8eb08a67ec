// XLA's door of products of a few rows whose activations are rounded to integers of eight bits; see gemv_rounded.h.
#include "elements.h"
#include "floats.h"
#include "gemv_grouped.h"

#define WM_ROUNDED 1
#define WM_KERNELS "gemv.h"
#if WM_X86
#include <immintrin.h>
#endif

// Forced AVX-512 is without dot products of bytes, and wider registers have nothing for these otherwise.
#define WM_WITH_NARROW (WM_WITH_AVX2 || WM_WITH_AVX512)
#if WM_WITH_PORTABLE
#define WM_SIMD 0
namespace portable {
#include WM_KERNELS
}
#undef WM_SIMD
#endif
#if WM_WITH_NARROW
#define WM_SIMD 256
namespace avx2 {
WM_TARGET_BEGIN(WM_AVX2)
#include WM_KERNELS
WM_TARGET_END
}
#undef WM_SIMD
#endif
#if WM_WITH_AVX512
#define WM_SIMD 512
namespace avx512vnni {
WM_TARGET_BEGIN(WM_AVX512_VNNI)
#include WM_KERNELS
WM_TARGET_END
}
#undef WM_SIMD
#endif

namespace {

std::vector<const GemvKernel*> kernels(int64_t isa, bool dots, bool, WmElement e) {
  const GemvKernel* found = nullptr;
#if WM_WITH_AVX512
  if (isa == WM_ISA_AVX512 && dots) found = avx512vnni::gemv::kernel(e);
#endif
#if WM_WITH_NARROW
  if (isa != WM_ISA_PORTABLE && found == nullptr) found = avx2::gemv::kernel(e);
#endif
#if WM_WITH_PORTABLE
  if (isa == WM_ISA_PORTABLE) found = portable::gemv::kernel(e);
#endif
  if (found == nullptr) return {};
  return {found};
}

}  // namespace
