// XLA's door of products with many rows of activations: see gemm.h.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <type_traits>
#include <vector>

#include "elements.h"
#include "floats.h"
#include "gemm_call.h"
#include "grouped.h"
#include "targets.h"
#include "parallel.h"
#include "scratch.h"

#if WM_HAS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define WM_KERNELS "gemm_all.h"
#include "each_isa.h"
#if WM_WITH_AVX512
#define WM_SIMD 512
namespace avx512 {
namespace bf16 {
WM_TARGET_BEGIN(WM_AVX512_BF16)
#include "gemm_bf16.h"
WM_TARGET_END
#if WM_HAS_AMX
WM_TARGET_BEGIN(WM_AMX)
#include "gemm_amx.h"
WM_TARGET_END
#endif
}  // namespace bf16
}  // namespace avx512
#endif

namespace {

// bits: of activations as integers; 0: exact. dots: see `grouped`.
#define WM_CHOOSE(space) (bits == 8 ? space::gemm_int::INT8 : bits == 16 ? space::gemm_int::INT16 : space::gemm::KERNEL)
const GemmKernel& kernel(int64_t isa, int64_t bits, int64_t dots, const Grouped& call) {
#if WM_WITH_AVX512
  using namespace avx512;
  if (isa == WM_ISA_AVX512 && bits == 0) {
#if WM_HAS_AMX
    if (dots == 1)
      if (const GemmKernel* found = bf16::gemm_amx::kernel(call.stacks, call.bf16)) return *found;
#endif
    const auto all = [&](bool scaled) {
      const auto one = [&](const Stack& s) { return bf16::gemm_bf16::takes(s.w, scaled); };
      return std::all_of(call.stacks.begin(), call.stacks.end(), one);
    };
    // Intel's cores multiply pairs of bfloat16 at half the rate of two float32.
    if (dots && call.bf16 && (dots == 2 || !intel()) && __builtin_cpu_supports("avx512bf16")) {
      if (all(false)) return bf16::gemm_bf16::PLAIN;
      if (all(true)) return bf16::gemm_bf16::SCALED;
    }
  }
  if (isa == WM_ISA_AVX512) return WM_CHOOSE(avx512);
#endif
#if WM_WITH_AVX2
  if (isa == WM_ISA_AVX2) return WM_CHOOSE(avx2);
#endif
#if WM_WITH_PORTABLE
  if (isa == WM_ISA_PORTABLE) return WM_CHOOSE(portable);
#endif
  std::abort();
}
#undef WM_CHOOSE

constexpr int64_t ORDERED = 2 << 20;  // floats of activations that go by while a strip is decoded: a cache keeps them

// Rows of activations with one matrix of each stack. Who comes first has memory for them in order, which all put in
// order together, and who is done last gives it back.
struct Job {
  int64_t matrix;
  const int64_t* assignments;
  int64_t count, tiles, pieces = 0;
  std::once_flag begun;
  std::optional<Scratch<>> arranged;
  std::atomic<int64_t> next_tile{0}, ready_tiles{0}, done_pieces{0};

  Job(int64_t matrix, const int64_t* assignments, int64_t count, int64_t tiles)
      : matrix(matrix), assignments(assignments), count(count), tiles(tiles) {}

  template <typename Arrange>
  const float* in_order(int64_t floats, const Arrange& arrange) {
    std::call_once(begun, [&] { arranged.emplace(floats); });
    for (int64_t i; (i = next_tile.fetch_add(1)) < tiles;) {
      arrange(i, arranged->data);
      ready_tiles.fetch_add(1, std::memory_order_release);
    }
    while (ready_tiles.load(std::memory_order_acquire) < tiles) parallel_work::pause();  // others are at them
    return arranged->data;
  }

  void done() {
    if (done_pieces.fetch_add(1) + 1 == pieces) arranged.reset();
  }
};

struct Piece {
  Job* job;
  const Stack* stack;
  int64_t first, last;  // rows of weights
};

int64_t share(int64_t all, int64_t parts, int64_t i) { return all / parts * i + std::min(all % parts, i); }

// dots: of pairs of bfloat16: 0: none; 1: where the machine is quick at them; 2: of vectors, wherever it has such, for
// tests. pieces: for each thread, so that they end together. least_strips: of a piece, as what it meets of activations comes
// into its cache for each.
ffi::Error grouped(ffi::ThreadPool pool, int64_t isa, int64_t bits, int64_t dots, int64_t pieces,
                   int64_t least_strips, ffi::Span<const int64_t> formats, ffi::AnyBuffer x,
                   ffi::Buffer<ffi::S32> expert, ffi::Buffer<ffi::F32> book, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  Grouped call;
  if (ffi::Error error = read(formats, x, expert, book, args, rets, call); error.failure()) return error;
  if (call.n == 0) {
    for (const Stack& s : call.stacks) std::fill_n(s.y, call.count * s.w.rows, 0.0f);
    return ffi::Error::Success();
  }
  const GemmKernel& k = kernel(isa, bits, dots, call);
  const int64_t rows = std::min(k.rows, std::max(ORDERED / k.arranged(call.n), 8 * k.tile));
  std::deque<Job> jobs;
  int64_t most = 0;
  for (const Group& group : call.groups) {
    const int64_t all = int64_t(group.assignments.size()), parts = (all + rows - 1) / rows;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t from = share(all, parts, i), count = share(all, parts, i + 1) - from;
      jobs.emplace_back(group.matrix, group.assignments.data() + from, count, k.tiles(count));
      most = std::max(most, count);
    }
  }
  const int64_t threads = pool.num_threads(), works = int64_t(jobs.size() * call.stacks.size());
  const int64_t each = pieces * threads / std::max<int64_t>(1, works);
  std::vector<Piece> work;
  for (Job& job : jobs)
    for (const Stack& stack : call.stacks) {
      const int64_t strips = (stack.w.rows + k.strip - 1) / k.strip;
      const int64_t parts = std::max<int64_t>(strips > 0, std::min(each, strips / least_strips));
      for (int64_t i = 0; i < parts; ++i)
        work.push_back({&job, &stack, share(strips, parts, i) * k.strip,
                        std::min(share(strips, parts, i + 1) * k.strip, stack.w.rows)});
      job.pieces += parts;
    }
  const int64_t arranged = most * k.arranged(call.n);  // floats of the largest job: all have pieces of one size
  parallel(pool, threads, int64_t(work.size()), [&](int64_t i) {
    const Piece& p = work[size_t(i)];
    Job& job = *p.job;
    const Weights& w = p.stack->w;
    const GemmRows rows{call.x, call.bf16, call.n, job.assignments, job.count, call.each, p.stack->y, w.rows};
    const float* ordered = job.in_order(arranged, [&](int64_t tile, float* out) { k.arrange(rows, tile, out); });
    const Scratch<> scratch(k.scratch);
    k.product(w, job.matrix, p.first, p.last, rows, ordered, scratch.data);
    job.done();
  }, parallel_work::PROMPT);
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_grouped, grouped,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("dots")
                                  .Attr<int64_t>("pieces")
                                  .Attr<int64_t>("least_strips")
                                  .Attr<ffi::Span<const int64_t>>("formats")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .RemainingArgs()
                                  .RemainingRets());
#pragma GCC visibility pop
