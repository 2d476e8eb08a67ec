// All kernels of quantize.cc.
#include "quantize_block.h"
#include "gptq_columns.h"
