// Weights as they are stored: the components of a scheme (pipeline/tensors/scheme.py), or plain floats, row-major.
#pragma once
#include <cstdint>

// In the order of `native.scheme.ELEMENTS`.
enum WmElement : int32_t {
  WM_F32, WM_BF16, WM_F16, WM_E2M1, WM_E2M3, WM_E3M2, WM_E4M3, WM_E5M2, WM_MXINT8, WM_NF4,
  WM_INT8, WM_INT4, WM_INT3, WM_INT2, WM_UINT8, WM_UINT4, WM_UINT3, WM_UINT2,
  WM_Q2_K, WM_Q3_K, WM_Q4_K, WM_Q5_K, WM_Q6_K, WM_Q5_0, WM_Q5_1, WM_IQ4_NL  // blocks that are structs of ggml
};
enum WmScale : int32_t {
  WM_SCALE_NONE, WM_SCALE_E8M0, WM_SCALE_E4M3, WM_SCALE_F16, WM_SCALE_BF16, WM_SCALE_F32, WM_SCALE_DYNAMIC8
};
constexpr int SCALE_NBYTES[] = {0, 1, 1, 2, 2, 4, 1};
enum WmZero : int32_t { WM_ZERO_NONE, WM_ZERO_INT, WM_ZERO_MIN_F16 };
enum WmSecond : int32_t { WM_SECOND_NONE, WM_SECOND_F32, WM_SECOND_INVERSE_F32, WM_SECOND_DYNAMIC8 };

constexpr bool is_struct(WmElement e) { return e >= WM_Q2_K; }
constexpr bool has_minima(WmElement e) { return e == WM_Q2_K || e == WM_Q4_K || e == WM_Q5_K || e == WM_Q5_1; }
constexpr int struct_elems(WmElement e) { return e <= WM_Q6_K ? 256 : 32; }
constexpr int STRUCT_NBYTES[] = {84, 110, 144, 176, 210, 22, 24, 18};
constexpr int struct_nbytes(WmElement e) { return STRUCT_NBYTES[e - WM_Q2_K]; }
constexpr int ELEMENT_BITS[] = {32, 16, 16, 4, 6, 6, 8, 8, 8, 4, 8, 4, 3, 2, 8, 4, 3, 2};
constexpr int bits_of(WmElement e) { return ELEMENT_BITS[e]; }  // of those that are none

// A stack of matrices [matrices, rows, n]. A value is element · scale, (element - zero) · scale, or element · scale +
// minimum; `second` multiplies (or divides) the scale again, one a matrix; or (dynamic8) there is one for every 256
// scales of the stack, in order, and then an offset that is added to all. Structs hold all that in `codes`.
struct Weights {
  WmElement element;
  WmScale scale;
  WmZero zero;
  WmSecond second;
  int64_t matrices, rows, n;
  int64_t block_rows, block_elems;  // never 0: a block of all rows has `rows` of them
  const uint8_t *codes, *scales, *zeros;
  const float* seconds;
  const float* book;  // of scales that are codes, what each is worth

  int64_t row_nbytes() const {
    if (is_struct(element)) return n / struct_elems(element) * struct_nbytes(element);
    return n * bits_of(element) / 8;
  }
  int64_t across() const { return (n + block_elems - 1) / block_elems; }  // scales of a row of blocks
  int64_t down() const { return (rows + block_rows - 1) / block_rows; }
  // Which row of blocks a row is in; that most blocks are of one row saves a division for each.
  int64_t band(int64_t row) const { return block_rows == 1 ? row : row / block_rows; }
};
