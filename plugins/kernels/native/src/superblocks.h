// What one call that makes structs of ggml is about. `plugins/kernels/quantize/native_structs` fills it in, field by field
// in this order; what the fields of a layout mean is said in `plugins/kernels/codecs/superblocks`.
#pragma once
#include <cstdint>

#include "weights.h"

struct SuperblockCall {
  // The matrix [rows, n]: columns are neighbours, rows `row_stride` elements apart.
  const void* x;
  int64_t rows, n, row_stride;
  const float* importance;  // [n], or null
  uint8_t* out;             // [rows, n / elements of a block, bytes of a block]
  const float* grid;        // `tops` factors of the range that are tried
  const float* book;        // [513], of a table: what the code nearest to v is worth, at 2 v, rounded up, from -256; or null
  const uint8_t* codes;     // [256], of a table: the code of what is worth -128 …; or null
  int32_t dtype;            // 0 BF16, 1 F16, 2 F32
  int32_t kind;   // a WmElement
  int32_t tops, refits, settled;
  int32_t least, most, least_scale, most_scale;
  float spread;  // times the mean square of a block
  float most_grown;  // times: what factors may become
  // What is found: the first value, or the first block, that cannot be stored; or -1.
  int64_t not_finite, factor_past, second_past;
};
