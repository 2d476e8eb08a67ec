// What a handler of grouped products is given: stacks of weights, activations, and who chose which matrix.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "stored.h"

namespace ffi = xla::ffi;

struct Stack {
  Weights w;
  float* y;  // [A, rows]
};

// Assignments that chose one matrix: which rows of x, and of the result.
struct Group {
  int64_t matrix;
  std::vector<int64_t> assignments;
};

// Of `count` assignments; without `chosen` all are of the first matrix. In the order in which the first of each comes;
// `none` hears of assignments that chose no matrix.
template <typename None>
static inline std::vector<Group> groups_of(const int32_t* chosen, int64_t count, int64_t matrices, const None& none) {
  std::vector<Group> found;
  std::vector<int64_t> group(size_t(matrices), -1);
  for (int64_t a = 0; a < count; ++a) {
    const int64_t matrix = chosen == nullptr ? 0 : chosen[a];
    if (matrix < 0 || matrix >= matrices) {
      none(a);
      continue;
    }
    int64_t& g = group[size_t(matrix)];
    if (g < 0) {
      g = int64_t(found.size());
      found.push_back({matrix, {}});
    }
    found[size_t(g)].assignments.push_back(a);
  }
  return found;
}

// y[s] [A, rows] = x [N, n] · w[s][expert]ᵀ for stacks of weights [E, rows, n]; A is a multiple of N, and assignment a
// is of row a / each of x.
struct Grouped {
  const uint8_t* x;
  bool bf16;  // x is bfloat16, else float32
  int64_t n, rows, count, each;  // rows of x, assignments, assignments of a row
  std::vector<Stack> stacks;
  std::vector<Group> groups;
};

// Reads it, and makes results zero whose expert is none (a negative one); without experts, all are of the first matrix.
// `formats` and `args` have for each stack what stored.h reads. `book`: see struct Weights.
static inline ffi::Error read(ffi::Span<const int64_t> formats, ffi::AnyBuffer x, ffi::Buffer<ffi::S32> expert,
                              ffi::Buffer<ffi::F32> book, ffi::RemainingArgs args, ffi::RemainingRets rets,
                              Grouped& call) {
  const size_t stacks = rets.size();
  const auto shape = x.dimensions();
  call.bf16 = x.element_type() == ffi::BF16;
  if (shape.size() != 2 || (!call.bf16 && x.element_type() != ffi::F32))
    return ffi::Error::InvalidArgument("x is to be float32 or bfloat16 [N, in]");
  if (formats.size() != 6 * stacks || args.size() != 4 * stacks)
    return ffi::Error::InvalidArgument("formats, arguments and results are of different numbers of weights");
  call.x = static_cast<const uint8_t*>(x.untyped_data());
  call.rows = shape[0], call.n = shape[1], call.count = shape[0];
  call.stacks.resize(stacks);
  for (size_t s = 0; s < stacks; ++s) {
    auto y = rets.get<ffi::AnyBuffer>(s);
    if (y.has_error()) return y.error();
    ffi::AnyBuffer parts[4] = {x, x, x, x};
    for (size_t i = 0; i < 4; ++i) {
      const auto part = args.get<ffi::AnyBuffer>(4 * s + i);
      if (part.has_error()) return part.error();
      parts[i] = *part;
    }
    Weights& w = call.stacks[s].w;
    const bool whole = read(formats.begin() + 6 * s, parts, book.typed_data(), call.n, w);
    call.stacks[s].y = static_cast<float*>((*y)->untyped_data());
    const auto out = (*y)->dimensions();
    if (!whole || out.size() != 2 || out[1] != w.rows)
      return ffi::Error::InvalidArgument("x, weights and result are not of shapes that go together");
    if (s && (w.matrices != call.stacks[0].w.matrices || out[0] != call.count))
      return ffi::Error::InvalidArgument("stacks of one call have as many matrices and results");
    call.count = out[0];
  }
  const int32_t* chosen = expert.element_count() > 0 ? expert.typed_data() : nullptr;
  if (call.count % std::max<int64_t>(1, call.rows) || (chosen && int64_t(expert.element_count()) != call.count))
    return ffi::Error::InvalidArgument("assignments are not as many for each row of x");
  call.each = call.count / std::max<int64_t>(1, call.rows);
  if (stacks == 0) return ffi::Error::Success();
  const int64_t matrices = call.stacks[0].w.matrices;
  call.groups = groups_of(chosen, call.count, matrices, [&](int64_t a) {
    for (const Stack& s : call.stacks) std::fill_n(s.y + a * s.w.rows, s.w.rows, 0.0f);
  });
  return ffi::Error::Success();
}
