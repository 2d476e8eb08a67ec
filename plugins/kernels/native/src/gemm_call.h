// What a product of many rows is told, whatever the instruction set.
#pragma once
#include <cstdint>

#include "weights.h"

// Rows of activations that share a matrix, and where their results go.
struct GemmRows {
  const uint8_t* x;  // [N, n], float32 or bfloat16
  bool bf16;
  int64_t n;
  const int64_t* assignments;  // [count]: which rows of the result these are
  int64_t count, each;         // assignments that a row of x has
  float* y;                    // [A, rows of weights]
  int64_t y_stride;

  const void* x_of(int64_t i) const { return x + assignments[i] / each * n * (bf16 ? 2 : 4); }
  float* y_of(int64_t i) const { return y + assignments[i] * y_stride; }
};

struct GemmKernel {
  int64_t strip;    // rows of weights that are decoded at a time; work is cut at multiples of it
  int64_t tile;     // rows of activations that are put in order at a time
  int64_t rows;     // most rows of activations at a time
  int64_t scratch;  // floats that `product` works in; all memory is aligned to 64 bytes
  int64_t (*arranged)(int64_t n);  // floats that a row of activations takes when it is in order
  // Puts tile i of the rows in order, where `product` expects it of all.
  void (*arrange)(const GemmRows& q, int64_t i, float* arranged);
  // Of rows first … last of a matrix with all rows of activations.
  void (*product)(const Weights& w, int64_t matrix, int64_t first, int64_t last, const GemmRows& q,
                  const float* arranged, float* scratch);

  int64_t tiles(int64_t count) const { return (count + tile - 1) / tile; }
};
