// What one call of wm_columns is about: columns of a matrix that are rounded one after the other, each less what those
// before it lost. `plugins/kernels/gptq/native` fills it in, field by field in this order.
#pragma once
#include <cstdint>

constexpr int TILE_ROWS = 32;

struct ColumnsCall {
  int64_t rows, count;     // values of a column, and columns
  const int64_t* columns;  // [count]: which of the matrix they are
  const float* shares;     // [SHARES][blocks][rows], see quantize.h
  int64_t blocks;
  const double* upper;  // [count, count]: how much of an error of the row's column the column is to make good
  const double* w;      // [count, rows]
  double* errors;       // [count, rows]: what is lost, divided by the column's entry on the diagonal
  uint8_t* codes;       // [columns of the matrix, rows], one a byte
};
