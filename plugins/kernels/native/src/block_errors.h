// What one call of wm_block_errors is about: a block of each of some rows, rounded under scales that are given.
// `plugins/kernels/quantize_by_outputs/native` fills it in, field by field in this order.
#pragma once
#include <cstdint>

struct BlockErrorsCall {
  const float* x;  // the blocks: `width` values each, a row's `stride` after those of the row before
  int64_t rows, width, stride;
  // What blocks share, see quantize.h: [rows], or null where the scheme does not have it.
  const float *divisor, *total, *point, *minimum, *stored_minimum;
  float* errors;   // [rows, width]: what codes decode to less what they stand for; or null
  uint8_t* codes;  // one a byte, as x lies; or null
};
