// XLA's door of the products that gradients are made of: see gradient.h.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elements.h"
#include "floats.h"
#include "gradient_call.h"
#include "grouped.h"
#include "parallel.h"
#include "scratch.h"
#include "targets.h"

#define WM_KERNELS "gradient.h"
#include "each_isa.h"

namespace {

constexpr int64_t PIECES = 4;                 // for each thread, so that they end together
constexpr int64_t LEAST = 112, MOST_ROWS = 560;  // of a piece: what others lay into strips as well pays for so many

struct Kernels {
  int64_t scratch;
  void (*input)(const GradientTerm*, int64_t, int64_t, float*);
  void (*weight)(const WeightGradient&, int64_t, int64_t, float*);
};

const Kernels& kernels(int64_t isa) {
#define WM_RUN(space)                                                                                          \
  {                                                                                                            \
    static constexpr Kernels found{space::gemm::GRADIENT_SCRATCH, space::gemm::input_gradient, space::gemm::weight_gradient}; \
    return found;                                                                                              \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

bool floats(const ffi::AnyBuffer& b) { return b.element_type() == ffi::F32 || b.element_type() == ffi::BF16; }
bool half(const ffi::AnyBuffer& b) { return b.element_type() == ffi::BF16; }
const uint8_t* bytes(const ffi::AnyBuffer& b) { return static_cast<const uint8_t*>(b.untyped_data()); }
int64_t piece_of(int64_t all, int64_t threads) { return std::clamp(all / (PIECES * threads) + 1, LEAST, MOST_ROWS); }

// Part of a group: rows of assignments, or of weights.
struct Piece {
  const Group* group;
  int64_t first, last;
};

void divide(const Group& group, int64_t rows, int64_t most, std::vector<Piece>& work) {
  const int64_t parts = (rows + most - 1) / most;
  for (int64_t i = 0; i < parts; ++i) work.push_back({&group, rows * i / parts, rows * (i + 1) / parts});
}

// dx [A, in] = Σ dy · w[expert] over pairs of dy [N, out] and w [E, out, in], with A a multiple of N: assignment a is of
// row a / (A / N). Zeros where the expert is none; without experts there is one.
ffi::Error input_gradient(ffi::ThreadPool pool, int64_t isa, ffi::Buffer<ffi::S32> expert, ffi::RemainingArgs args,
                          ffi::ResultBuffer<ffi::F32> dx) {
  const auto shape = dx->dimensions();
  const ffi::Error wrong = ffi::Error::InvalidArgument("cotangents, weights and result are not of shapes that go together");
  if (shape.size() != 2 || args.size() % 2 || args.size() == 0) return wrong;
  const int64_t count = shape[0], in = shape[1];
  const int32_t* chosen = expert.element_count() > 0 ? expert.typed_data() : nullptr;
  int64_t matrices = 1;
  std::vector<GradientTerm> terms;
  for (size_t i = 0; i < args.size(); i += 2) {
    const auto dy = args.get<ffi::AnyBuffer>(i), w = args.get<ffi::AnyBuffer>(i + 1);
    if (dy.has_error()) return dy.error();
    if (w.has_error()) return w.error();
    const auto d = dy->dimensions(), of = w->dimensions();
    if (d.size() != 2 || of.size() != 3 || of[1] != d[1] || of[2] != in || !floats(*dy) || !floats(*w)) return wrong;
    if (i && of[0] != matrices) return wrong;
    if (count % std::max<int64_t>(1, d[0]) || (count && !d[0])) return wrong;
    matrices = of[0];
    const int64_t each = count / std::max<int64_t>(1, d[0]);
    terms.push_back({{bytes(*dy), half(*dy), d[1], nullptr, 0, each, dx->typed_data(), in}, bytes(*w), half(*w)});
  }
  if (chosen ? int64_t(expert.element_count()) != count : matrices != 1) return wrong;
  const auto clear = [&](int64_t a) { std::fill_n(dx->typed_data() + a * in, in, 0.0f); };
  const std::vector<Group> groups = groups_of(chosen, count, matrices, clear);
  std::vector<Piece> work;
  const int64_t most = piece_of(count, pool.num_threads());
  for (const Group& group : groups) divide(group, int64_t(group.assignments.size()), most, work);
  const Kernels& k = kernels(isa);
  parallel(pool, pool.num_threads(), int64_t(work.size()), [&](int64_t i) {
    const Piece& p = work[size_t(i)];
    std::vector<GradientTerm> own = terms;
    for (GradientTerm& t : own) {
      t.dy.assignments = p.group->assignments.data() + p.first, t.dy.count = p.last - p.first;
      t.w += p.group->matrix * t.dy.n * in * (t.bf16 ? 2 : 4);
    }
    const Scratch<> scratch(k.scratch);
    k.input(own.data(), int64_t(own.size()), in, scratch.data);
  }, parallel_work::PROMPT);
  return ffi::Error::Success();
}

// dw [E, out, in] = Σ dyᵀ · x over the assignments of each expert, and db [E, out] = Σ dy; dy [M, out] and x [N, in],
// where the assignments are a multiple of M and N, as above. Those whose expert is none do not count.
ffi::Error weight_gradient(ffi::ThreadPool pool, int64_t isa, ffi::AnyBuffer dy, ffi::AnyBuffer x,
                           ffi::Buffer<ffi::S32> expert, ffi::ResultBuffer<ffi::F32> dw, ffi::ResultBuffer<ffi::F32> db) {
  const auto d = dy.dimensions(), of = x.dimensions(), shape = dw->dimensions();
  if (d.size() != 2 || of.size() != 2 || shape.size() != 3 || shape[1] != d[1] || shape[2] != of[1] || !floats(dy) ||
      !floats(x) || int64_t(db->element_count()) != shape[0] * shape[1])
    return ffi::Error::InvalidArgument("cotangents, rows and result are not of shapes that go together");
  const int64_t matrices = shape[0], out = shape[1], in = shape[2];
  const int32_t* chosen = expert.element_count() > 0 ? expert.typed_data() : nullptr;
  const int64_t count = chosen ? int64_t(expert.element_count()) : std::max(d[0], of[0]);
  if ((!chosen && matrices != 1) || (count && (!d[0] || !of[0] || count % d[0] || count % of[0])))
    return ffi::Error::InvalidArgument("assignments are not as many for each row");
  const std::vector<Group> groups = groups_of(chosen, count, matrices, [](int64_t) {});
  std::vector<char> met(size_t(matrices), 0);
  std::vector<Piece> work;
  const int64_t most = piece_of(out * int64_t(groups.size()), pool.num_threads());
  for (const Group& group : groups) divide(group, out, most, work), met[size_t(group.matrix)] = 1;
  for (int64_t e = 0; e < matrices; ++e) {
    if (met[size_t(e)]) continue;
    std::fill_n(dw->typed_data() + e * out * in, out * in, 0.0f);
    std::fill_n(db->typed_data() + e * out, out, 0.0f);
  }
  const Kernels& k = kernels(isa);
  parallel(pool, pool.num_threads(), int64_t(work.size()), [&](int64_t i) {
    const Piece& p = work[size_t(i)];
    const int64_t e = p.group->matrix;
    const WeightGradient g{bytes(dy), bytes(x), half(dy), half(x), out, in, p.group->assignments.data(),
                           int64_t(p.group->assignments.size()), count / d[0], count / of[0],
                           dw->typed_data() + e * out * in, db->typed_data() + e * out};
    const Scratch<> scratch(k.scratch);
    k.weight(g, p.first, p.last, scratch.data);
  }, parallel_work::PROMPT);
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_input_gradient, input_gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_weight_gradient, weight_gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
#pragma GCC visibility pop
