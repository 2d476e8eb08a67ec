// What each instruction set has of products with many rows.
#include "gemm.h"
#include "gemm_int.h"
