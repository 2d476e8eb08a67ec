// What products of gradients are told, whatever the instruction set.
#pragma once
#include <cstdint>

#include "gemm_call.h"

// Rows of dy, whose `y` are those of the result, and the matrix [out, in] that they were made with.
struct GradientTerm {
  GemmRows dy;
  const uint8_t* w;
  bool bf16;  // w is bfloat16, else float32
};

// Assignments that one matrix [out, in] had: of a row of dy [.., out], and of a row of x [.., in].
struct WeightGradient {
  const uint8_t *dy, *x;
  bool dy_bf16, x_bf16;
  int64_t out, in;
  const int64_t* assignments;  // [count]
  int64_t count, dy_each, x_each;  // assignments that a row has
  float *dw, *db;

  const void* dy_of(int64_t i) const { return dy + assignments[i] / dy_each * out * (dy_bf16 ? 2 : 4); }
  const void* x_of(int64_t i) const { return x + assignments[i] / x_each * in * (x_bf16 ? 2 : 4); }
};
