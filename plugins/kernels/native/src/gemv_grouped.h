// Products of a few rows with stacks of weights, whatever kernels they are made with: what a call divides, and among whom.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <type_traits>
#include <vector>

#include "gemv_call.h"
#include "grouped.h"
#include "parallel.h"
#include "scratch.h"
#include "targets.h"

namespace {

// Cores wait for a dozen or two lines at a time for the first cache, and for several times as many for the second, where
// what is asked for 8 KiB ahead comes in time; from there what is near comes to the first on AMD's. There, rows that
// want no scales are read fastest one by one, and not so far ahead (of small matrices; others do not mind).
Ahead ahead() {
#if WM_X86
  if (intel()) return {8192, true, 0, 0};
  return {8192, true, 1024, 1024};
#else
  return {8192, false, 0, 0};
#endif
}

// Of the unit that includes this: its kernels for weights of one element, the best first. The last takes whatever
// activations and blocks the unit is asked for; none where it has none for the element.
std::vector<const GemvKernel*> kernels(int64_t isa, bool dots, bool bf16, WmElement e);

// How scales come to a kernel's products; one that does not take that is not for these weights.
Scaled scaled(const Weights& w, const GemvKernel& kernel) {
  if (w.block_elems >= w.n) return Scaled::ROW;
  return w.block_elems % kernel.grain == 0 && has(kernel.takes, Scaled::LANES) ? Scaled::LANES : Scaled::EACH;
}

// What `Gemv` points to of blocks.
struct Blocks {
  std::vector<int32_t> first, spread;
};

// One stack of weights of a call.
struct Product {
  Gemv q;
  Gemv other;  // for rows that the kernel does not take, if there are any, with one that takes whatever
  const GemvKernel* any;
  float* y;
  Blocks blocks, others;
  const std::vector<Arranged>* x;  // a row each
  int64_t grain, pieces;    // rows of weights that are one piece of work, and how many of them a matrix has
};

// Of rows of n.
int64_t groups_of(const GemvKernel& kernel, int64_t n) { return (n + kernel.group - 1) / kernel.group; }

void take(Gemv& q, const GemvKernel* kernel) {
  q.kernel = kernel;
  q.scaled = scaled(q.w, *kernel);
  q.groups = groups_of(*kernel, q.w.n);
}

void decide(Product& p, const std::vector<const GemvKernel*>& kernels, int64_t rows) {
  Gemv& q = p.q;
  const Weights& w = q.w;
  const GemvKernel* kernel = kernels.front();
  if (rows > kernel->most && kernels.back()->most > kernel->most) kernel = kernels.back();
  if (!has(kernel->takes, scaled(w, *kernel))) kernel = kernels.back();
  p.any = kernels.back();
  q.ahead = ahead();
  const int64_t nbytes = std::max<int64_t>(1, w.row_nbytes());
  q.near_rows = q.ahead.near / nbytes, q.near_left = q.ahead.near % nbytes;
  take(q, kernel);
}

// Which blocks the lanes of each group are of. Where groups are whole blocks, or blocks whole groups, all groups are like
// the first, but the last one, which may not be full.
void find_blocks(Gemv& q, Blocks& blocks) {
  const int lanes = q.kernel->lanes, group = q.kernel->group, grain = q.kernel->grain, own = group / lanes;
  const int64_t size = q.w.block_elems;
  const bool alike = group % size == 0 || size % group == 0;
  blocks.first.resize(size_t(q.groups));
  blocks.spread.resize(size_t(q.groups * lanes));
  for (int64_t g = 0; g < q.groups; ++g) {
    int32_t* const spread = blocks.spread.data() + g * lanes;
    const int64_t first = g * group / size;
    blocks.first[size_t(g)] = int32_t(first);
    if (alike && g > 0 && g < q.groups - 1) {
      std::copy_n(spread - lanes, lanes, spread);
      continue;
    }
    for (int l = 0; l < lanes; ++l) {
      const int begins = q.kernel->begins ? q.kernel->begins(l) : l * own;
      const int64_t k = g * group + begins / grain * grain;
      spread[l] = k < q.w.n ? int32_t(k / size - first) : -1;
    }
  }
  q.first = blocks.first.data(), q.spread = blocks.spread.data();
  q.few = std::all_of(blocks.spread.begin(), blocks.spread.end(), [](int32_t past) { return past < 4; });
}

// The same for all products; those of like weights share them.
void find_blocks(std::vector<Product>& products) {
  for (size_t s = 0; s < products.size(); ++s) {
    Gemv& q = products[s].q;
    if (q.scaled != Scaled::LANES) continue;
    const auto alike = [&](const Product& p) {
      return p.q.scaled == q.scaled && p.q.kernel == q.kernel && p.q.w.block_elems == q.w.block_elems;
    };
    const auto other = std::find_if(products.begin(), products.begin() + int64_t(s), alike);
    if (other == products.begin() + int64_t(s)) find_blocks(q, products[s].blocks);
    else q.first = other->q.first, q.spread = other->q.spread, q.few = other->q.few;
  }
}

// What a call keeps of activations, in an order that some of its weights want.
struct Order {
  const GemvKernel* kernel;
  Scratch<> x, sums;
  std::vector<Arranged> rows;

  Order(const GemvKernel* kernel, int64_t x, int64_t sums) : kernel(kernel), x(x), sums(sums) {}
};

constexpr int64_t USUAL_FLOATS = 1 << 12;  // of scratch, beside which there are few larger
constexpr int64_t PIECES = 8;  // of a small call, for each thread: they end within a sixteenth of it

// See struct Grouped. `dots`: whether pairs of bfloat16 and fours of bytes are multiplied as they are, where the machine
// can. `piece_nbytes`: of codes, for a thread at a time, so that all end together; less where there are few.
// `worth_nbytes`: of codes for each thread, as waking one takes as long as reading some.
ffi::Error grouped(ffi::ThreadPool pool, int64_t isa, int64_t dots, int64_t piece_nbytes, int64_t worth_nbytes,
                   ffi::Span<const int64_t> formats, ffi::AnyBuffer x, ffi::Buffer<ffi::S32> expert,
                   ffi::Buffer<ffi::F32> book, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Grouped call;
  const ffi::Error wrong = read(formats, x, expert, book, args, rets, call);
  if (wrong.failure() || call.groups.empty()) return wrong;
  const int64_t n = call.n;
  std::vector<Product> products(call.stacks.size());
  // Rows of a matrix. More than a kernel takes at a time are worth one that takes more, where activations are float32.
  const int64_t mean = call.bf16 ? 0 : (call.count - 1) / int64_t(call.groups.size()) + 1;
  for (size_t s = 0; s < products.size(); ++s) {
    products[s].q.w = call.stacks[s].w, products[s].y = call.stacks[s].y;
    const auto known = kernels(isa, dots != 0, call.bf16, call.stacks[s].w.element);
    if (known.empty()) return ffi::Error(ffi::ErrorCode::kUnimplemented, "no kernel for weights of this element");
    decide(products[s], known, mean);
    if (!has(products[s].q.kernel->takes, products[s].q.scaled))
      return ffi::Error(ffi::ErrorCode::kUnimplemented, "no kernel for blocks of this size");
  }
  find_blocks(products);

  const bool sums = std::any_of(products.begin(), products.end(), [](const Product& p) { return p.q.w.zero; });
  std::deque<Order> orders;
  for (Product& p : products) {
    const GemvKernel* k = p.q.kernel;
    const int64_t others = groups_of(*p.any, n), stride = std::max(p.q.groups * k->arranged, others * p.any->arranged);
    const int64_t lanes = std::max(p.q.groups * k->lanes, others * p.any->lanes);
    auto o = std::find_if(orders.begin(), orders.end(), [&](const Order& other) { return other.kernel == k; });
    if (o == orders.end()) {
      orders.emplace_back(k, call.rows * stride, sums ? call.rows * lanes : 0);
      o = orders.end() - 1;
      for (int64_t i = 0; i < call.rows; ++i) {
        const uint8_t* row = call.x + i * n * (call.bf16 ? 2 : 4);
        float *to = o->x.data + i * stride, *sum = sums ? o->sums.data + i * lanes : nullptr;
        const bool possible = k->arrange(row, call.bf16, n, to, sum);
        if (!possible) p.any->arrange(row, call.bf16, n, to, sum);
        o->rows.push_back({to, sum, possible ? k : p.any});
      }
    }
    p.x = &o->rows;
    const auto is_other = [&](const Arranged& x) { return x.kernel != k; };
    if (std::none_of(o->rows.begin(), o->rows.end(), is_other)) continue;
    p.other = p.q;
    take(p.other, p.any);
    if (p.other.scaled == Scaled::LANES) find_blocks(p.other, p.others);
  }

  int64_t pieces = 0, nbytes = 0;
  for (const Product& p : products) nbytes += p.q.w.rows * p.q.w.row_nbytes() * int64_t(call.groups.size());
  const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(pool.num_threads(), nbytes / worth_nbytes));
  piece_nbytes = std::min(piece_nbytes, nbytes / (threads * PIECES));
  for (Product& p : products) {
    const Weights& w = p.q.w;
    p.grain = std::max<int64_t>(4, piece_nbytes / std::max<int64_t>(1, w.row_nbytes()) / 4 * 4);
    p.pieces = (w.rows + p.grain - 1) / p.grain;
    pieces += p.pieces;
  }
  parallel(pool, threads, pieces * int64_t(call.groups.size()), [&](int64_t i) {
    const Group& group = call.groups[size_t(i / pieces)];
    i %= pieces;
    const Product* p = products.data();
    for (; i >= p->pieces; ++p) i -= p->pieces;
    const int64_t rows = p->q.w.rows, row = i * p->grain, some = std::min(p->grain, rows - row);
    const Scratch<USUAL_FLOATS> scratch(std::max(scratch_floats(p->q), p->other.kernel ? scratch_floats(p->other) : 0));
    for (size_t from = 0; from < group.assignments.size();) {
      Arranged xs[GEMV_MOST];
      float* ys[GEMV_MOST];
      int m = 0, most = 1;
      for (; m < most && from < group.assignments.size(); ++m, ++from) {
        const int64_t a = group.assignments[from];
        const Arranged& x = (*p->x)[size_t(a / call.each)];
        if (m && x.kernel != xs[0].kernel) break;
        most = x.kernel->most;
        xs[m] = x, ys[m] = p->y + a * rows;
      }
      const Gemv& q = xs[0].kernel == p->q.kernel ? p->q : p->other;
      q.kernel->product(q, group.matrix, row, some, m, xs, ys, scratch.data);
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
                                  .Attr<int64_t>("dots")
                                  .Attr<int64_t>("piece_nbytes")
                                  .Attr<int64_t>("worth_nbytes")
                                  .Attr<ffi::Span<const int64_t>>("formats")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .RemainingArgs()
                                  .RemainingRets());
#pragma GCC visibility pop
