// Weights as a handler is given them: six numbers of their format, and their components.
#pragma once
#include <algorithm>
#include <cstdint>

#include "weights.h"
#include "xla/ffi/api/ffi.h"

// A stack [matrices, rows, n], or one matrix. `format` has element, scale, zero, second, block_rows and block_elems;
// `parts` are codes, scales, zeros and second, those that a format lacks with no elements. Whether they hold as many
// codes as that takes: false if not.
static inline bool read(const int64_t* format, const xla::ffi::AnyBuffer (&parts)[4], const float* book, int64_t n,
                        Weights& w) {
  const auto shape = parts[0].dimensions();
  if (shape.size() < 2) return false;
  w.element = WmElement(format[0]), w.scale = WmScale(format[1]);
  w.zero = WmZero(format[2]), w.second = WmSecond(format[3]);
  w.rows = shape[shape.size() - 2], w.n = n, w.matrices = 1;
  for (size_t i = 0; i + 2 < shape.size(); ++i) w.matrices *= shape[i];
  w.block_rows = format[4] ? format[4] : std::max<int64_t>(1, w.rows);
  w.block_elems = format[5] ? format[5] : std::max<int64_t>(1, n);
  w.codes = static_cast<const uint8_t*>(parts[0].untyped_data());
  w.scales = static_cast<const uint8_t*>(parts[1].untyped_data());
  w.zeros = static_cast<const uint8_t*>(parts[2].untyped_data());
  w.seconds = static_cast<const float*>(parts[3].untyped_data());
  w.book = book;
  return int64_t(parts[0].size_bytes()) == w.matrices * w.rows * w.row_nbytes();
}
