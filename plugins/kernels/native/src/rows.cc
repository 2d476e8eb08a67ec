// XLA's door of what is done to rows by themselves, embed, rope and rms_norm: handlers of its FFI, for models.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "elements.h"
#include "floats.h"
#include "parallel.h"
#include "stored.h"
#include "targets.h"

#define WM_KERNELS "rows_all.h"
#include "each_isa.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t PIECE = 32 << 10;  // elements: to wake a thread takes as long as some of them

// y [ids, n] of float32 or bfloat16: the rows that ids ask for of a matrix, whose format and components are as stored.h
// reads them.
ffi::Error embed(ffi::ThreadPool pool, int64_t isa, ffi::Span<const int64_t> format, ffi::Buffer<ffi::S32> ids,
                 ffi::Buffer<ffi::F32> book, ffi::AnyBuffer codes, ffi::AnyBuffer scales, ffi::AnyBuffer zeros,
                 ffi::AnyBuffer second, ffi::Result<ffi::AnyBuffer> y) {
  const int64_t count = int64_t(ids.element_count());
  const auto shape = y->dimensions();
  const bool half = y->element_type() == ffi::BF16;
  if (shape.size() != 2 || shape[0] != count || (!half && y->element_type() != ffi::F32))
    return ffi::Error::InvalidArgument("the result is float32 or bfloat16 [ids, n]");
  if (y->element_count() == 0) return ffi::Error::Success();
  Weights w;
  const ffi::AnyBuffer parts[4] = {codes, scales, zeros, second};
  if (format.size() != 6 || !read(format.begin(), parts, book.typed_data(), shape[1], w) || w.matrices * w.rows == 0)
    return ffi::Error::InvalidArgument("weights and result are not of shapes that go together");
  const int64_t rows = std::max<int64_t>(1, PIECE / shape[1]);
#define WM_RUN(space)                                                                                      \
  {                                                                                                        \
    parallel(pool, pool.num_threads(), (count + rows - 1) / rows, [&](int64_t i) {                         \
      const int64_t first = i * rows, last = std::min(count, first + rows);                                \
      if (half) space::embed::rows(w, ids.typed_data(), first, last, static_cast<Bf16*>(y->untyped_data())); \
      else space::embed::rows(w, ids.typed_data(), first, last, static_cast<float*>(y->untyped_data()));   \
    });                                                                                                    \
    return ffi::Error::Success();                                                                          \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

#define WM_RUN(space)                                                                                                  \
  {                                                                                                                    \
    const space::rope::Call c{at.dimensions()[0] * at.dimensions()[1], dims[2], dims[3], int64_t(inv_freq.element_count()), \
                              at.typed_data(), inv_freq.typed_data(), concentration, interleaved != 0};                \
    const int64_t rows = std::max<int64_t>(1, PIECE / std::max<int64_t>(1, c.heads * c.dims));                         \
    parallel(pool, pool.num_threads(), (c.rows + rows - 1) / rows, [&](int64_t i) {                                    \
      std::vector<float> angles(size_t(3 * c.wide()));                                                                 \
      const int64_t first = i * rows, last = std::min(c.rows, first + rows);                                           \
      if (x.element_type() == ffi::BF16)                                                                               \
        space::rope::turn(c, static_cast<const Bf16*>(x.untyped_data()), static_cast<Bf16*>(y->untyped_data()), first, \
                          last, angles.data());                                                                        \
      else                                                                                                             \
        space::rope::turn(c, static_cast<const float*>(x.untyped_data()), static_cast<float*>(y->untyped_data()), first, \
                          last, angles.data());                                                                        \
    });                                                                                                                \
    return ffi::Error::Success();                                                                                      \
  }

// y, like x [B, T, heads, dims]: each head turned by the angles of its position, at [B, T], and inv_freq.
ffi::Error rope(ffi::ThreadPool pool, int64_t isa, float concentration, int64_t interleaved, ffi::AnyBuffer x,
                ffi::Buffer<ffi::S32> at, ffi::Buffer<ffi::F32> inv_freq, ffi::Result<ffi::AnyBuffer> y) {
  const auto dims = x.dimensions();
  if (dims.size() != 4 || at.dimensions().size() != 2 || at.dimensions()[0] != dims[0] || at.dimensions()[1] != dims[1])
    return ffi::Error::InvalidArgument("x is [B, T, heads, dims] and positions are [B, T]");
  if ((x.element_type() != ffi::BF16 && x.element_type() != ffi::F32) || y->element_type() != x.element_type())
    return ffi::Error::InvalidArgument("x and the result are float32 or bfloat16");
  if (2 * int64_t(inv_freq.element_count()) > dims[3])
    return ffi::Error::InvalidArgument("there are more frequencies than pairs of dims");
  if (x.element_count() == 0) return ffi::Error::Success();
  WM_BY_ISA(isa, WM_RUN)
}
#undef WM_RUN

// y, like x [..., D]: each row over its root mean square, times weight [D].
ffi::Error rms_norm(ffi::ThreadPool pool, int64_t isa, float eps, int64_t plus_one, ffi::AnyBuffer x,
                    ffi::AnyBuffer weight, ffi::Result<ffi::AnyBuffer> y) {
  const int64_t n = int64_t(weight.element_count()), all = int64_t(x.element_count());
  const bool half = x.element_type() == ffi::BF16, half_weight = weight.element_type() == ffi::BF16;
  if ((!half && x.element_type() != ffi::F32) || y->element_type() != x.element_type() ||
      (!half_weight && weight.element_type() != ffi::F32))
    return ffi::Error::InvalidArgument("x, weight and the result are float32 or bfloat16");
  if (all == 0) return ffi::Error::Success();
  if (n == 0 || x.dimensions().size() == 0 || x.dimensions().back() != n)
    return ffi::Error::InvalidArgument("the weight is for rows of another length");
  const int64_t rows = std::max<int64_t>(1, PIECE / n);
#define WM_RUN(space)                                                                                                   \
  {                                                                                                                     \
    const auto run = [&](auto element, auto of_weight) {                                                                \
      using E = decltype(element);                                                                                      \
      using W = decltype(of_weight);                                                                                    \
      const E* from = static_cast<const E*>(x.untyped_data());                                                          \
      E* to = static_cast<E*>(y->untyped_data());                                                                       \
      parallel(pool, pool.num_threads(), (all / n + rows - 1) / rows, [&](int64_t i) {                                  \
        for (int64_t r = i * rows; r < std::min(all / n, (i + 1) * rows); ++r)                                          \
          space::rms_norm::row(from + r * n, static_cast<const W*>(weight.untyped_data()), n, eps, plus_one != 0, to + r * n); \
      });                                                                                                               \
    };                                                                                                                  \
    if (half) half_weight ? run(Bf16{}, Bf16{}) : run(Bf16{}, float{});                                                 \
    else half_weight ? run(float{}, Bf16{}) : run(float{}, float{});                                                    \
    return ffi::Error::Success();                                                                                       \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_embed, embed,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Attr<ffi::Span<const int64_t>>("format")
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_rope, rope,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Attr<float>("concentration")
                                  .Attr<int64_t>("interleaved")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_rms_norm, rms_norm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Attr<float>("eps")
                                  .Attr<int64_t>("plus_one")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
#pragma GCC visibility pop
