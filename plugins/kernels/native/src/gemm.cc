// XLA's door of products with many rows of activations: see gemm.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "floats.h"
#include "gemm_call.h"
#include "grouped.h"
#include "targets.h"
#include "parallel.h"

#define WM_KERNELS "gemm_all.h"
#include "each_isa.h"
#if WM_X86
#define WM_SIMD 512
namespace avx512 {
namespace vnni {
WM_TARGET_BEGIN(WM_AVX512_VNNI)
#include "gemm_int.h"
WM_TARGET_END
}  // namespace vnni
}  // namespace avx512
#endif

namespace {

// bits: of activations as integers; 0: exact.
#define WM_CHOOSE(space) (bits == 8 ? space::gemm_int::INT8 : bits == 16 ? space::gemm_int::INT16 : space::gemm::KERNEL)
const GemmKernel& kernel(int64_t isa, int64_t bits) {
#if WM_X86
  if (isa == WM_ISA_AVX512 && bits == 0) return avx512::gemm::KERNEL;
  if (isa == WM_ISA_AVX512 && __builtin_cpu_supports("avx512vnni"))
    return bits == 8 ? avx512::vnni::gemm_int::INT8 : avx512::vnni::gemm_int::INT16;
  if (isa != WM_ISA_PORTABLE) return WM_CHOOSE(avx2);
#endif
  return WM_CHOOSE(portable);
}
#undef WM_CHOOSE

// Memory that pieces of work take in turn: as many as there are threads at work.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : floats_(size_t(floats)) {}

  template <typename Use>
  void with(const Use& use) {
    std::unique_ptr<float[]> own;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        own = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!own) own.reset(new float[floats_]);
    use(own.get());
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(own));
  }

 private:
  size_t floats_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<float[]>> idle_;
};

constexpr int64_t PIECES = 32;      // for each thread, so that they end together
constexpr int64_t LEAST_STRIPS = 4;  // of a piece: activations are put in order for each

// Rows of activations with one matrix of a stack, and the pieces of it that are work for a thread.
struct Job {
  const Stack* stack;
  int64_t matrix;
  const int64_t* assignments;
  int64_t count, strips, pieces;
};

int64_t share(int64_t all, int64_t parts, int64_t i) { return all / parts * i + std::min(all % parts, i); }

ffi::Error grouped(ffi::ThreadPool pool, int64_t isa, int64_t bits, ffi::Span<const int64_t> formats, ffi::AnyBuffer x,
                   ffi::Buffer<ffi::S32> expert, ffi::Buffer<ffi::F32> book, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  Grouped call;
  if (ffi::Error error = read(formats, x, expert, book, args, rets, call); error.failure()) return error;
  const GemmKernel& k = kernel(isa, bits);
  std::vector<Job> jobs;
  for (const Group& group : call.groups)
    for (const Stack& stack : call.stacks) {
      const int64_t all = int64_t(group.assignments.size()), parts = (all + k.rows - 1) / k.rows;
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t from = share(all, parts, i), strips = (stack.w.rows + k.strip - 1) / k.strip;
        jobs.push_back({&stack, group.matrix, group.assignments.data() + from, share(all, parts, i + 1) - from, strips, 0});
      }
    }
  const int64_t threads = pool.num_threads(), each = PIECES * threads / std::max<int64_t>(1, int64_t(jobs.size()));
  std::vector<int64_t> until;  // pieces up to a job's last
  for (Job& job : jobs) {
    job.pieces = std::max<int64_t>(1, std::min(each, job.strips / LEAST_STRIPS));
    until.push_back((until.empty() ? 0 : until.back()) + job.pieces);
  }
  if (call.n == 0)
    for (const Stack& s : call.stacks) std::fill_n(s.y, call.count * s.w.rows, 0.0f);
  Scratch scratch(k.scratch);
  parallel(pool, threads, until.empty() ? 0 : until.back(), [&](int64_t i) {
    const size_t at = size_t(std::upper_bound(until.begin(), until.end(), i) - until.begin());
    const Job& job = jobs[at];
    i -= until[at] - job.pieces;
    const Weights& w = job.stack->w;
    const int64_t first = share(job.strips, job.pieces, i) * k.strip;
    const int64_t last = std::min(share(job.strips, job.pieces, i + 1) * k.strip, w.rows);
    const GemmRows rows{call.x, call.bf16, call.n, job.assignments, job.count, call.each, job.stack->y, w.rows};
    scratch.with([&](float* own) { k.product(w, job.matrix, first, last, rows, own); });
  });
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_grouped, grouped,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Attr<int64_t>("bits")
                                  .Attr<ffi::Span<const int64_t>>("formats")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .RemainingArgs()
                                  .RemainingRets());
#pragma GCC visibility pop
