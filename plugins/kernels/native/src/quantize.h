// What one call of quantize is about: a matrix, its scheme and its recipe in numbers. `plugins/kernels/quantize/native`
// fills it in, field by field in this order.
#pragma once
#include <cstdint>

#include "weights.h"

enum WmFamily : int32_t { WM_FLOAT, WM_INTEGER, WM_TABLE };
enum WmTies : int32_t { WM_TIES_EVEN, WM_TIES_ZERO, WM_TIES_AWAY, WM_TIES_DOWN, WM_TIES_UP };
enum WmSign : int32_t { WM_SIGNED, WM_POSITIVE, WM_MINUS };
enum WmEnds : int32_t { WM_ENDS_AMAX, WM_ENDS_BOTH, WM_ENDS_FIRST };  // what of a block its scale is made of

struct QuantizeCall {
  // The matrix [rows, n]; strides in elements.
  const void* x;
  int64_t rows, n, row_stride, col_stride;
  int64_t block_rows, block_elems;  // never 0: a block of all rows has `rows` of them
  const float *low, *high;  // extremes of every band of block_rows rows, for scales that rows share; or null
  // What comes out. Scales and zeros are contiguous [down, across].
  uint8_t* codes;
  int64_t codes_stride;
  void *scales, *zeros;
  double* stats;  // count, max |error|, Σ error², Σ x²: added to; or null
  const float *edges, *values;  // of a table: 15 boundaries that a larger value is past, 16 values
  // Of a search: the factors of a real scale that are tried, or the steps from a power of two, the usual one first; and
  // what the squared error of a column counts, [n], or null.
  const float* tried;
  const double* importance;
  float* shares;    // instead of codes what blocks share, [SHARES][blocks of a row][rows]; or null. Of blocks in one row
  int32_t options;  // how many of `tried` there are; 0: no search
  int32_t dtype;  // 0 BF16, 1 F16, 2 F32
  // The element.
  int32_t family, bits;
  int32_t mantissa, bias;  // of a float
  int32_t least, most;  // of an integer: the codes that are used
  // The scale.
  int32_t scale, zero, second;
  int32_t ends;
  int32_t carry, emax;  // of powers of two: what, added to a float32 pattern, carries where the rule rounds up
  int32_t tiny;  // the byte that blocks of byte 0 are divided by
  int32_t ties, sign, reciprocal, unrounded, poison, middle;
  float largest;  // of a float
  float unit;     // of an integer: what code 1 is worth
  float span;     // what amax, or the distance of the extremes, is divided by
  float least_scale, zero_scale;
  float second_value;
  // What is found: the largest factor of a block, and where nothing could be stored, what.
  int32_t reach;  // its pattern as a float32
  float refused;  // largest magnitude of the block
};

enum WmFound : int32_t { WM_DONE, WM_NOT_FINITE, WM_SCALE_PAST, WM_ZERO_PAST };

// Of what blocks share: divisor, total, point, minimum, stored minimum, as in block_scales.h.
constexpr int SHARES = 5;

// Elements that are worked on at once: what is made of them stays in L1 cache.
constexpr int64_t STRIP = 1024, TALL_STRIP = 512, TALL_ROWS = 32, SLACK = 64;
constexpr int BLOCK_ARRAYS = 9, SEARCH_ARRAYS = 6;  // of 4 bytes a block

// The least piece of a matrix that holds its blocks whole and is not too small to be worth a call; in codes whole bytes.
struct Region {
  int64_t rows, cols, blocks;
  bool tall;  // rows, not columns, are neighbours in memory
};

inline Region region_of(const QuantizeCall& q) {
  const int64_t band = q.block_rows, width = q.block_elems;
  int64_t grain = width;
  for (int k = 0; k < 3 && grain % 8 != 0; ++k) grain *= 2;
  // A search adds up a block's errors row by row, and so it must find them: in pieces of rows that hold blocks whole.
  const bool in_order = q.options == 0 || band == 1 || grain <= TALL_STRIP;
  const bool tall = q.row_stride == 1 && q.col_stride != 1 && q.rows >= 8 && in_order;
  const int64_t wide = tall ? TALL_STRIP : STRIP;
  const int64_t cols = grain < wide ? wide / grain * grain : grain;
  const int64_t rows = tall ? (TALL_ROWS + band - 1) / band * band : band;
  Region found{rows < q.rows ? rows : q.rows, width < q.n && cols < q.n ? cols : q.n, 0, tall};
  found.blocks = ((found.rows + band - 1) / band) * ((found.cols + width - 1) / width);
  return found;
}

// Bytes of each of the arrays of what blocks share; whole cache lines.
inline int64_t array_bytes(const Region& region) { return (region.blocks + SLACK + 15) / 16 * 64; }
