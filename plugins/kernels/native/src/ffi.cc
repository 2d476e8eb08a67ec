// XLA's door of the native kernels: handlers of its FFI, for models.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "floats.h"
#include "targets.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

#define WM_KERNELS "mxfp4_matmul.h"
#include "each_isa.h"

namespace ffi = xla::ffi;

namespace {

using Arrange = void (*)(const float*, int64_t, float*);
using Product = void (*)(int64_t, const uint8_t*, const uint8_t*, int64_t, int64_t, const float*, int64_t, float*,
                         int64_t);

struct Kernels {
  Arrange arrange;
  Product product;
};

Kernels kernels(int64_t isa) {
#if WM_X86
  if (isa == WM_ISA_AVX512) return {avx512::arrange, avx512::product};
  if (isa == WM_ISA_AVX2) return {avx2::arrange, avx2::product};
#endif
  return {portable::arrange, portable::product};
}

constexpr int64_t PIECE_NBYTES = 64 << 10;  // of codes: small enough that threads end together
constexpr int64_t WORTH_NBYTES = 128 << 10;  // of codes for each thread: waking one takes as long as reading some of them
constexpr int64_t MOST_ROWS = 4;            // of activations that share a pass over the weights

// y [A, out] = x [A, in] · w[expert[a]]ᵀ; w is codes [E, out, in / 2] and scales [E, out, in / 32]. A negative expert
// gives zeros. Assignments in a row that have one expert share passes.
ffi::Error grouped(ffi::ThreadPool pool, int64_t isa, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> expert,
                   ffi::Buffer<ffi::U8> codes, ffi::Buffer<ffi::U8> scales, ffi::ResultBuffer<ffi::F32> y) {
  const auto d = codes.dimensions();
  const int64_t experts = d[0], out = d[1], n = d[2] * 2, a = x.dimensions()[0];
  if (x.dimensions()[1] != n) return ffi::Error::InvalidArgument("x and w differ in their last dimension");
  const Kernels k = kernels(isa);
  const int64_t stride = (n + 127) / 128 * 128;
  std::vector<float> arranged(size_t(a * stride));
  for (int64_t i = 0; i < a; ++i) k.arrange(x.typed_data() + i * n, n, arranged.data() + i * stride);
  struct Pass {
    int64_t first, count, expert;
  };
  std::vector<Pass> passes;
  for (int64_t i = 0; i < a; ++i) {
    const int64_t e = expert.typed_data()[i];
    if (e < 0 || e >= experts) {
      std::fill_n(y->typed_data() + i * out, out, 0.0f);
      continue;
    }
    if (!passes.empty() && passes.back().expert == e && passes.back().first + passes.back().count == i &&
        passes.back().count < MOST_ROWS)
      ++passes.back().count;
    else
      passes.push_back({i, 1, e});
  }
  const int64_t grain = std::max<int64_t>(4, PIECE_NBYTES / std::max<int64_t>(1, n / 2) / 4 * 4);
  const int64_t pieces = (out + grain - 1) / grain;
  const int64_t threads = out * n / 2 * int64_t(passes.size()) / WORTH_NBYTES;
  parallel(pool, threads, pieces * int64_t(passes.size()), [&](int64_t i) {
    const Pass& p = passes[size_t(i / pieces)];
    const int64_t row = i % pieces * grain, count = std::min(grain, out - row);
    const int64_t at = p.expert * out + row;
    k.product(p.count, codes.typed_data() + at * (n / 2), scales.typed_data() + at * (n / 32), n, count,
              arranged.data() + p.first * stride, stride, y->typed_data() + p.first * out + row, out);
  });
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_mxfp4_grouped, grouped,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
#pragma GCC visibility pop
