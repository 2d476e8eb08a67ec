// Includes WM_KERNELS, a file of kernels, once for each instruction set, in a namespace of its name. WM_SIMD is the width of
// its registers in bits, 0 where nothing is known of them. WM_BY_ISA(isa, run) is run(namespace) of the one that `isa` names,
// and run returns.
#if WM_X86
#include <immintrin.h>
#endif

#define WM_SIMD 0
namespace portable {
#include WM_KERNELS
}
#undef WM_SIMD
#if WM_X86
#define WM_SIMD 256
namespace avx2 {
WM_TARGET_BEGIN(WM_AVX2)
#include WM_KERNELS
WM_TARGET_END
}
#undef WM_SIMD
#define WM_SIMD 512
namespace avx512 {
WM_TARGET_BEGIN(WM_AVX512)
#include WM_KERNELS
WM_TARGET_END
}
#undef WM_SIMD
#endif

#undef WM_BY_ISA
#if WM_X86
#define WM_BY_ISA(isa, run)                  \
  {                                          \
    if (isa == WM_ISA_AVX512) run(avx512);   \
    if (isa == WM_ISA_AVX2) run(avx2);       \
    run(portable);                           \
  }
#else
#define WM_BY_ISA(isa, run) run(portable);
#endif
