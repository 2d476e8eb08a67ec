// All kernels of quantize.cc.
#include "quantize_block.h"
#include "block_errors_strip.h"
#include "gptq_columns.h"
