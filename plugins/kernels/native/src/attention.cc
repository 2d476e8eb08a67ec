// XLA's door of attention: a handler of its FFI, for models.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "elements.h"
#include "floats.h"
#include "parallel.h"
#include "scratch.h"
#include "targets.h"
#include "xla/ffi/api/ffi.h"

#define WM_KERNELS "attention_all.h"
#include "each_isa.h"

namespace ffi = xla::ffi;

namespace {

// Slots that one thread goes through for a block of rows: of a few heads less, so that threads end together; in a step of
// decoding an eighth. Sums depend on it, so it is of the model and of what has been said alone.
constexpr int64_t part_of(int64_t key_heads, bool few, int64_t slots) {
  if (!few) return key_heads < 8 ? 512 : 1024;
  return std::clamp<int64_t>((slots + 511) / 512 * 64, 128, 1024);
}

constexpr int64_t MANY_TASKS = 64;  // blocks of rows of a key head: then threads have enough to share
// Of a slot, keys and values of the heads that a thread has at once: of 64 of them and the next 64, half of a second cache.
constexpr int64_t SLOT_FLOATS = 1 << 10;
constexpr int64_t WORTH_PRODUCTS = 1 << 14;  // for each thread: telling one takes as long as some of them
constexpr int64_t USUAL_FLOATS = 20 << 10;   // of scratch: a step with heads of 128
constexpr int64_t NO_WINDOW = 1 << 30;       // as far as positions go

// Queries and slots of one of the batch that a block of rows has to do with.
struct Block {
  int64_t batch, first, rows;
  std::vector<int32_t> slots;  // that some row may see
  int64_t part = 0;
};

// In the order of slots; a row looks at positions again where rows differ.
template <typename Call>
std::vector<int32_t> seen(const Call& c, int64_t b, int64_t first_query, int64_t queries) {
  int32_t low = INT32_MAX, high = INT32_MIN, first_segment = INT32_MAX, last_segment = INT32_MIN;
  for (int64_t t = first_query; t < first_query + queries; ++t) {
    const int32_t at = c.at[b * c.queries + t];
    if (at < 0 && c.causal) continue;  // padding, which sees nothing
    low = std::min(low, at);
    high = std::max(high, at);
    const int32_t segment = c.segment ? c.segment[b * c.queries + t] : 0;
    first_segment = std::min(first_segment, segment);
    last_segment = std::max(last_segment, segment);
  }
  std::vector<int32_t> found;
  if (high == INT32_MIN) return found;
  const int64_t last = c.causal ? high : INT32_MAX - 1, first = c.window ? int64_t(low) - c.window + 1 : 0;
  found.reserve(size_t(c.slots));
  for (int64_t s = 0; s < c.slots; ++s) {
    const int32_t at = c.slot[b * c.slots + s], segment = c.segment ? c.segment[b * c.slots + s] : 0;
    if (segment < first_segment || segment > last_segment) continue;
    if (at >= 0 && at <= last && at >= first) found.push_back(int32_t(s));
  }
  return found;
}

template <typename Some, typename Call, typename Scratched, typename Attend, typename Finish>
void run(ffi::ThreadPool& pool, const Call& c, bool few, int64_t most_rows, int64_t found_floats, Scratched scratch_floats,
         Attend attend, Finish finish) {
  const int64_t group = c.group(), rows = c.queries * group;
  std::vector<Block> blocks;
  int64_t slots = 0, parts = 1;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t first = 0; first < rows; first += most_rows) {
      const int64_t count = std::min(most_rows, rows - first), query = first / group;
      Block block{b, first, count, seen(c, b, query, (first + count - 1) / group + 1 - query)};
      const int64_t sees = int64_t(block.slots.size());
      block.part = part_of(c.key_heads, few, sees);
      slots += sees * count;
      parts = std::max(parts, (sees + block.part - 1) / block.part);
      blocks.push_back(std::move(block));
    }
  const bool whole = int64_t(blocks.size()) * c.key_heads > MANY_TASKS && !few;  // enough to share out as it is
  if (whole) parts = 1;
  const int64_t worth = slots * c.key_heads * (c.dims + c.value_dims) / WORTH_PRODUCTS;
  const int64_t threads = std::clamp<int64_t>(worth, 1, pool.num_threads());
  // Of a few rows a thread has several heads at once, whose keys lie together, if there are enough parts for all threads.
  const int64_t groups = int64_t(blocks.size()) * parts, wanted = !few ? c.key_heads : (4 * threads + groups - 1) / groups;
  const int64_t fit = few ? std::max<int64_t>(1, SLOT_FLOATS / (c.dims + c.value_dims)) : c.key_heads;
  const int64_t shared_out = (c.key_heads + std::min(wanted, c.key_heads) - 1) / std::min(wanted, c.key_heads);
  const int64_t heads = std::min(fit, shared_out);
  const int64_t ranges = (c.key_heads + heads - 1) / heads;
  const int64_t tasks = int64_t(blocks.size()) * c.key_heads;
  const Scratch<> results(whole ? 0 : tasks * parts * found_floats);
  const auto some = [&](int64_t i) {
    const Block& block = blocks[size_t(i / ranges / parts)];
    const int64_t count = int64_t(block.slots.size()), part = i / ranges % parts, head = i % ranges * heads;
    const int64_t begin = whole ? 0 : std::min(count, part * block.part);
    const int64_t end = whole ? count : std::min(count, begin + block.part);
    return Some{head, std::min(heads, c.key_heads - head), block.slots.data() + begin, end - begin};
  };
  parallel(pool, threads, groups * ranges, [&](int64_t i) {
    static thread_local const void* foreseen = nullptr;
    const int64_t at = i / ranges / parts, part = i / ranges % parts;
    const Block& block = blocks[size_t(at)];
    const Some now = some(i), next = (i + 1) / ranges / parts == at ? some(i + 1) : Some{};
    const Scratch<USUAL_FLOATS> scratch(scratch_floats(c, heads) + (whole ? found_floats : 0));
    float* found = scratch.data + scratch_floats(c, heads);
    if (!whole) found = results.data + ((at * c.key_heads + now.head) * parts + part) * found_floats;
    attend(c, block.batch, now, next, foreseen == now.index, block.first, block.rows, found, parts * found_floats,
           scratch.data);
    foreseen = next.index;
    if (whole) finish(c, block.batch, now.head, block.first, block.rows, found, 1);
  });
  if (whole) return;
  parallel(pool, tasks > MANY_TASKS ? threads : 1, tasks, [&](int64_t task) {
    const Block& block = blocks[size_t(task / c.key_heads)];
    finish(c, block.batch, task % c.key_heads, block.first, block.rows, results.data + task * parts * found_floats,
           parts);
  });
}

const float* floats(const ffi::Buffer<ffi::F32>& b) { return b.element_count() ? b.typed_data() : nullptr; }
const int32_t* integers(const ffi::Buffer<ffi::S32>& b) { return b.element_count() ? b.typed_data() : nullptr; }

// What both handlers are given: q [B, T, H, D], k [B, S, K, D] and v [B, S, K, Dv], positions at [B, T] and slot [B, S];
// scales, sinks and segments without elements are none, and so are a window and a cap of 0.
struct Given {
  int64_t element;
  float scale, softcap;
  int64_t window, causal;
  const ffi::Buffer<ffi::F32>& q;
  const ffi::AnyBuffer &k, &v;
  const float *k_scales, *v_scales;
  const ffi::Buffer<ffi::S32>&at, &slot, &segment;
  const ffi::Buffer<ffi::F32>& sinks;

  const char* wrong() const {
    const auto d = q.dimensions(), of = k.dimensions();
    if (d.size() != 4 || of.size() != 4 || v.dimensions().size() != 4) return "q, k and v have four dimensions";
    if (q.element_count() && (of[2] == 0 || d[2] % of[2])) return "query heads are no multiple of key heads";
    if (segment.element_count() && (d[1] != of[1] || segment.element_count() != at.element_count()))
      return "segments are of as many slots as queries";
    return nullptr;
  }

  // `found`: the largest logits, and then the sums of weights.
  template <typename Call>
  Call call(float* out, float* found) const {
    const auto d = q.dimensions(), of = k.dimensions();
    return {d[0], d[1], d[2], of[2], d[3], v.dimensions()[3], of[1], WmElement(element), q.typed_data(),
            static_cast<const uint8_t*>(k.untyped_data()), static_cast<const uint8_t*>(v.untyped_data()), k_scales, v_scales,
            at.typed_data(), slot.typed_data(), integers(segment), floats(sinks), scale, softcap,
            window >= NO_WINDOW ? 0 : window, causal != 0, out, found, found + d[0] * d[1] * d[2]};
  }
};

// out [B, T, H, Dv], and found [2, B, T, H]: of each query its largest logit, and the sum of weights.
ffi::Error attention(ffi::ThreadPool pool, int64_t isa, int64_t element, float scale, float softcap, int64_t window,
                     int64_t causal, ffi::Buffer<ffi::F32> q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                     ffi::Buffer<ffi::F32> k_scales, ffi::Buffer<ffi::F32> v_scales, ffi::Buffer<ffi::S32> at,
                     ffi::Buffer<ffi::S32> slot, ffi::Buffer<ffi::S32> segment, ffi::Buffer<ffi::F32> sinks,
                     ffi::ResultBuffer<ffi::F32> out, ffi::ResultBuffer<ffi::F32> found) {
  const Given given{element, scale, softcap, window, causal, q, k, v, floats(k_scales), floats(v_scales), at, slot,
                    segment, sinks};
  if (const char* why = given.wrong()) return ffi::Error::InvalidArgument(why);
  if (found->element_count() == 0) return ffi::Error::Success();
#define WM_RUN(space)                                                                                     \
  {                                                                                                       \
    using namespace space::attention;                                                                     \
    const auto c = given.call<space::attention::Call>(out->typed_data(), found->typed_data());            \
    run<space::attention::Some>(pool, c, c.most_rows() <= FEW, c.most_rows(), found_floats(c), scratch_floats, attend,    \
                                finish);                                                                  \
    return ffi::Error::Success();                                                                         \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

// dq, dk and dv like q, k and v, and d_sinks [B, H], of `found` as above, and cotangents of `out`; keys and values are
// float32 or bfloat16.
ffi::Error gradient(ffi::ThreadPool pool, int64_t isa, int64_t element, float scale, float softcap, int64_t window,
                    int64_t causal, ffi::Buffer<ffi::F32> q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::Buffer<ffi::S32> at,
                    ffi::Buffer<ffi::S32> slot, ffi::Buffer<ffi::S32> segment, ffi::Buffer<ffi::F32> sinks,
                    ffi::Buffer<ffi::F32> found, ffi::Buffer<ffi::F32> d_out,
                    ffi::ResultBuffer<ffi::F32> dq, ffi::ResultBuffer<ffi::F32> dk, ffi::ResultBuffer<ffi::F32> dv,
                    ffi::ResultBuffer<ffi::F32> d_sinks) {
  const Given given{element, scale, softcap, window, causal, q, k, v, nullptr, nullptr, at, slot, segment, sinks};
  if (const char* why = given.wrong()) return ffi::Error::InvalidArgument(why);
  if (element != WM_F32 && element != WM_BF16)
    return ffi::Error::InvalidArgument("packed keys and values have no gradient");
#define WM_RUN(space)                                                                                               \
  {                                                                                                                 \
    using namespace space::attention;                                                                               \
    const auto c = given.call<space::attention::Call>(nullptr, found.typed_data());                                 \
    const Gradient g{c, d_out.typed_data(), dq->typed_data(), dk->typed_data(), dv->typed_data(),                   \
                     d_sinks->typed_data()};                                                                        \
    parallel(pool, pool.num_threads(), c.batch * c.key_heads, [&](int64_t i) {                                      \
      const Scratch<> scratch(gradient_floats(c));                                                                  \
      space::attention::gradient(g, i / c.key_heads, i % c.key_heads, scratch.data);                                \
    }, parallel_work::PROMPT);                                                                                      \
    return ffi::Error::Success();                                                                                   \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_attention, attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Attr<int64_t>("element")
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<int64_t>("window")
                                  .Attr<int64_t>("causal")
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(wm_attention_gradient, gradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("isa")
                                  .Attr<int64_t>("element")
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<int64_t>("window")
                                  .Attr<int64_t>("causal")
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
#pragma GCC visibility pop
