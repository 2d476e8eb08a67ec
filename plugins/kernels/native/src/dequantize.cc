// The plain door of decoding: C functions over buffers, for ctypes. No Python, no JAX, no state; to be called from any
// number of threads.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "elements.h"
#include "floats.h"
#include "targets.h"

#define WM_KERNELS "dequantize.h"
#include "each_isa.h"

#define WM_API __attribute__((visibility("default")))
#define WM_DEQUANTIZE(space)                                                                  \
  {                                                                                           \
    if (dtype == 0) return space::dequantize(w, clamp, static_cast<Bf16*>(out), value);       \
    if (dtype == 1) return space::dequantize(w, clamp, static_cast<F16*>(out), value);        \
    return space::dequantize(w, clamp, static_cast<float*>(out), value);                      \
  }

// Components as struct Weights has them → out [matrices, rows, n] of dtype 0 (bfloat16), 1 (float16) or 2 (float32).
// Returns the flat index of the first finite value past float16's range and that value, or -1; with `clamp` such values
// become ±65504.
extern "C" WM_API int64_t wm_dequantize(int isa, int element, int scale, int zero, int second, int64_t matrices,
                                        int64_t rows, int64_t n, int64_t block_rows, int64_t block_elems,
                                        const uint8_t* codes, const uint8_t* scales, const uint8_t* zeros,
                                        const float* seconds, int dtype, int clamp, void* out, float* value) {
  const Weights w{WmElement(element), WmScale(scale), WmZero(zero), WmSecond(second), matrices, rows,   n,
                  block_rows,         block_elems,    codes,        scales,           zeros,    seconds, nullptr};
  WM_BY_ISA(isa, WM_DEQUANTIZE)
}
