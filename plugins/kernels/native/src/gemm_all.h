// What each instruction set has of products with many rows.
#include "gemm.h"
#include "gemm_int.h"
#if WM_SIMD == 512
#include "gemm_fixed.h"
#endif
