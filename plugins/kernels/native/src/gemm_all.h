// What each instruction set has of products with many rows.
#include "gemm.h"
#if WM_SIMD != 512  // gemm.cc includes it, with VNNI
#include "gemm_int.h"
#endif
