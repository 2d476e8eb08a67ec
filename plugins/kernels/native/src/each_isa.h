// Includes WM_KERNELS, a file of kernels, once for each instruction set that is wanted, in a namespace of its name. WM_SIMD is
// the width of its registers in bits, 0 where nothing is known of them. WM_BY_ISA(isa, run) is run(namespace) of the one that
// `isa` names, and run returns; `any_isa` is one of these namespaces.
#include <cstdlib>
#if WM_X86
#include <immintrin.h>
#endif

#if WM_WITH_PORTABLE
#define WM_SIMD 0
namespace portable {
#include WM_KERNELS
}
namespace any_isa = portable;
#undef WM_SIMD
#define WM_IF_PORTABLE(isa, run) \
  if (isa == WM_ISA_PORTABLE) run(portable);
#else
#define WM_IF_PORTABLE(isa, run)
#endif

#if WM_WITH_AVX2
#define WM_SIMD 256
namespace avx2 {
WM_TARGET_BEGIN(WM_AVX2)
#include WM_KERNELS
WM_TARGET_END
}
#if !WM_WITH_PORTABLE
namespace any_isa = avx2;
#endif
#undef WM_SIMD
#define WM_IF_AVX2(isa, run) \
  if (isa == WM_ISA_AVX2) run(avx2);
#else
#define WM_IF_AVX2(isa, run)
#endif

#if WM_WITH_AVX512
#define WM_SIMD 512
namespace avx512 {
WM_TARGET_BEGIN(WM_AVX512)
#include WM_KERNELS
WM_TARGET_END
}
#if !WM_WITH_PORTABLE && !WM_WITH_AVX2
namespace any_isa = avx512;
#endif
#undef WM_SIMD
#define WM_IF_AVX512(isa, run) \
  if (isa == WM_ISA_AVX512) run(avx512);
#else
#define WM_IF_AVX512(isa, run)
#endif

#define WM_BY_ISA(isa, run)   \
  {                           \
    WM_IF_AVX512(isa, run)    \
    WM_IF_AVX2(isa, run)      \
    WM_IF_PORTABLE(isa, run)  \
    std::abort();             \
  }
