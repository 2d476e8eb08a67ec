// XLA's door of the native kernels: handlers of its FFI, for models.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elements.h"
#include "floats.h"
#include "gemv_call.h"
#include "targets.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

#define WM_KERNELS "gemv.h"
#include "each_isa.h"

#if WM_X86
#define WM_SIMD 512
#define WM_PAIRED 1
namespace avx512bf16 {
WM_TARGET_BEGIN(WM_AVX512_BF16)
#include WM_KERNELS
WM_TARGET_END
}
#undef WM_PAIRED
#undef WM_SIMD
#endif

namespace ffi = xla::ffi;

namespace {

#if WM_X86
bool has_bf16_dot() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}
#endif

// The kernels for weights of one element, the best first.
std::vector<const GemvKernel*> kernels(int64_t isa, bool bf16_dot, WmElement e) {
#if WM_X86
  if (isa == WM_ISA_AVX512) {
    const GemvKernel* all = avx512::gemv::kernel(e);
    const GemvKernel* best = bf16_dot && has_bf16_dot() ? avx512bf16::gemv::kernel(e) : nullptr;
    return best == nullptr ? std::vector{all} : std::vector{best, all};
  }
  if (isa == WM_ISA_AVX2) return {avx2::gemv::kernel(e)};
#endif
  return {portable::gemv::kernel(e)};
}

Scaled scaled(const Weights& w, const GemvKernel& kernel) {
  if (w.block_elems >= w.n) return Scaled::ROW;
  return w.block_elems % kernel.grain == 0 ? Scaled::LANES : Scaled::EACH;
}

// Assignments that chose one matrix: which rows of x, and of the result.
struct Group {
  int64_t matrix;
  std::vector<int64_t> assignments;
};

// In the order in which the first of each comes; rows of nobody's are left out.
std::vector<Group> groups_of(const int32_t* chosen, int64_t count, int64_t matrices) {
  std::vector<Group> groups;
  std::vector<int64_t> group(size_t(matrices), -1);
  for (int64_t a = 0; a < count; ++a) {
    const int64_t matrix = chosen == nullptr ? 0 : chosen[a];
    if (matrix < 0 || matrix >= matrices) continue;
    int64_t& g = group[size_t(matrix)];
    if (g < 0) {
      g = int64_t(groups.size());
      groups.push_back({matrix, {}});
    }
    groups[size_t(g)].assignments.push_back(a);
  }
  return groups;
}

// One stack of weights of a call.
struct Product {
  Gemv q;
  float* y;
  std::vector<int32_t> first, spread;
  std::vector<Arranged> x;  // a row each
  int64_t grain, pieces;    // rows of weights that are one piece of work, and how many of them a matrix has
};

void decide(Product& p, const std::vector<const GemvKernel*>& kernels, int64_t piece_nbytes) {
  Gemv& q = p.q;
  const Weights& w = q.w;
  const GemvKernel* kernel = kernels.front();
  if (kernel->halves && scaled(w, *kernel) == Scaled::EACH) kernel = kernels.back();
  q.kernel = kernel;
  q.scaled = scaled(w, *kernel);
  q.groups = (w.n + kernel->group - 1) / kernel->group;
  p.grain = std::max<int64_t>(4, piece_nbytes / std::max<int64_t>(1, w.row_nbytes()) / 4 * 4);
  p.pieces = (w.rows + p.grain - 1) / p.grain;
  if (q.scaled != Scaled::LANES) return;
  const int lanes = kernel->lanes, own = kernel->group / lanes;
  p.first.resize(size_t(q.groups));
  p.spread.resize(size_t(q.groups * lanes));
  for (int64_t g = 0; g < q.groups; ++g) {
    p.first[size_t(g)] = int32_t(g * kernel->group / w.block_elems);
    for (int l = 0; l < lanes; ++l) {
      const int64_t k = g * kernel->group + l * own / kernel->grain * kernel->grain;
      const int64_t block = std::min(k / w.block_elems, w.across() - 1);
      p.spread[size_t(g * lanes + l)] = int32_t(block) - p.first[size_t(g)];
    }
  }
  q.first = p.first.data(), q.spread = p.spread.data();
}

// What a call keeps of activations, in an order that some of its weights want.
struct Order {
  const GemvKernel* kernel;
  std::vector<float> x, sums;
};

template <ffi::DataType D>
using Buffer = ffi::Buffer<D>;

// y[s] [A, rows] = x [N, n] · w[s][expert]ᵀ for stacks of weights [E, rows, n]; A is a multiple of N, and assignment a
// is of row a / (A / N) of x. A negative expert gives zeros; without experts, all are of the first matrix. `formats` has
// six numbers for each stack: element, scale, zero, second, block_rows, block_elems; `args` has codes, scales, zeros and
// second, those that a format lacks with no elements. `book`: see struct Weights. `bf16_dot`: whether bfloat16 is
// multiplied as it is, where the machine can. `piece_nbytes`: of codes, for a thread at a time, so that all end together.
// `worth_nbytes`: of codes for each thread, as waking one takes as long as reading some.
ffi::Error grouped(ffi::ThreadPool pool, int64_t isa, int64_t bf16_dot, int64_t piece_nbytes, int64_t worth_nbytes,
                   ffi::Span<const int64_t> formats, ffi::AnyBuffer x, Buffer<ffi::S32> expert, Buffer<ffi::F32> book,
                   ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const size_t stacks = rets.size();
  const auto shape = x.dimensions();
  const bool bf16 = x.element_type() == ffi::BF16;
  if (shape.size() != 2 || (!bf16 && x.element_type() != ffi::F32))
    return ffi::Error::InvalidArgument("x is to be float32 or bfloat16 [N, in]");
  if (formats.size() != 6 * stacks || args.size() != 4 * stacks)
    return ffi::Error::InvalidArgument("formats, arguments and results are of different numbers of weights");
  const int64_t n = shape[1], many = shape[0];
  std::vector<Product> products(stacks);
  int64_t count = many, matrices = 1;
  for (size_t s = 0; s < stacks; ++s) {
    auto y = rets.get<ffi::AnyBuffer>(s);
    ffi::AnyBuffer parts[4] = {x, x, x, x};
    for (size_t i = 0; i < 4; ++i) {
      const auto part = args.get<ffi::AnyBuffer>(4 * s + i);
      if (part.has_error()) return part.error();
      parts[i] = *part;
    }
    if (y.has_error()) return y.error();
    const int64_t* f = formats.begin() + 6 * s;
    const auto d = parts[0].dimensions();
    Weights& w = products[s].q.w;
    w.element = WmElement(f[0]), w.scale = WmScale(f[1]), w.zero = WmZero(f[2]), w.second = WmSecond(f[3]);
    w.rows = d[d.size() - 2], w.n = n, w.matrices = 1;
    for (size_t i = 0; i + 2 < d.size(); ++i) w.matrices *= d[i];
    w.block_rows = f[4] ? f[4] : std::max<int64_t>(1, w.rows), w.block_elems = f[5] ? f[5] : std::max<int64_t>(1, n);
    w.codes = static_cast<const uint8_t*>(parts[0].untyped_data());
    w.scales = static_cast<const uint8_t*>(parts[1].untyped_data());
    w.zeros = static_cast<const uint8_t*>(parts[2].untyped_data());
    w.seconds = static_cast<const float*>(parts[3].untyped_data());
    w.book = book.typed_data();
    const auto out = (*y)->dimensions();
    if (int64_t(parts[0].size_bytes()) != w.matrices * w.rows * w.row_nbytes() || out.size() != 2 || out[1] != w.rows)
      return ffi::Error::InvalidArgument("x, weights and result are not of shapes that go together");
    if (s && (w.matrices != matrices || out[0] != count))
      return ffi::Error::InvalidArgument("stacks of one call have as many matrices and results");
    matrices = w.matrices, count = out[0];
    products[s].y = static_cast<float*>((*y)->untyped_data());
    decide(products[s], kernels(isa, bf16 && bf16_dot != 0, w.element), piece_nbytes);
  }
  const bool chosen = expert.element_count() > 0;
  if (count % std::max<int64_t>(1, many) || (chosen && int64_t(expert.element_count()) != count))
    return ffi::Error::InvalidArgument("assignments are not as many for each row of x");
  if (count == 0) return ffi::Error::Success();
  const int64_t each = count / many;

  std::vector<Order> orders;
  orders.reserve(stacks);
  for (Product& p : products) {
    const GemvKernel* k = p.q.kernel;
    const int64_t stride = p.q.groups * k->group, lanes = p.q.groups * k->lanes;
    const auto same = [&](const Order& o) { return o.kernel == k; };
    auto o = std::find_if(orders.begin(), orders.end(), same);
    if (o == orders.end()) {
      orders.push_back({k, std::vector<float>(size_t(many * stride)), std::vector<float>(size_t(many * lanes))});
      o = orders.end() - 1;
      const auto* from = static_cast<const uint8_t*>(x.untyped_data());
      for (int64_t i = 0; i < many; ++i)
        k->arrange(from + i * n * (bf16 ? 2 : 4), bf16, n, o->x.data() + i * stride, o->sums.data() + i * lanes);
    }
    for (int64_t i = 0; i < many; ++i) p.x.push_back({o->x.data() + i * stride, o->sums.data() + i * lanes});
  }

  const std::vector<Group> groups = groups_of(chosen ? expert.typed_data() : nullptr, count, matrices);
  int64_t pieces = 0, nbytes = 0;
  for (const Product& p : products) {
    pieces += p.pieces;
    nbytes += p.q.w.rows * p.q.w.row_nbytes() * int64_t(groups.size());
    if (!chosen) continue;
    for (int64_t a = 0; a < count; ++a)
      if (expert.typed_data()[a] < 0 || expert.typed_data()[a] >= matrices)
        std::fill_n(p.y + a * p.q.w.rows, p.q.w.rows, 0.0f);
  }
  parallel(pool, nbytes / worth_nbytes, pieces * int64_t(groups.size()), [&](int64_t i) {
    const Group& group = groups[size_t(i / pieces)];
    i %= pieces;
    const Product* p = products.data();
    for (; i >= p->pieces; ++p) i -= p->pieces;
    const int64_t rows = p->q.w.rows, row = i * p->grain, some = std::min(p->grain, rows - row);
    std::vector<float> scratch(size_t(scratch_floats(p->q)));
    for (size_t from = 0; from < group.assignments.size(); from += GEMV_MOST) {
      Arranged xs[GEMV_MOST];
      float* ys[GEMV_MOST];
      const int m = int(std::min<size_t>(GEMV_MOST, group.assignments.size() - from));
      for (int k = 0; k < m; ++k) {
        const int64_t a = group.assignments[from + size_t(k)];
        xs[k] = p->x[size_t(a / each)];
        ys[k] = p->y + a * rows;
      }
      p->q.kernel->product(p->q, group.matrix, row, some, m, xs, ys, scratch.data());
    }
  });
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_grouped, grouped,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Attr<int64_t>("bf16_dot")
                                  .Attr<int64_t>("piece_nbytes")
                                  .Attr<int64_t>("worth_nbytes")
                                  .Attr<ffi::Span<const int64_t>>("formats")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .RemainingArgs()
                                  .RemainingRets());
#pragma GCC visibility pop
