// XLA's door of attention: a handler of its FFI, for models.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "floats.h"
#include "lines.h"
#include "parallel.h"
#include "targets.h"
#include "weights.h"
#include "xla/ffi/api/ffi.h"

#define WM_KERNELS "attention.h"
#include "each_isa.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t PART = 1024;              // slots that one thread goes through for a block of rows
constexpr int64_t WORTH_PRODUCTS = 1 << 14;  // for each thread: telling one takes as long as some of them
constexpr int64_t USUAL_FLOATS = 20 << 10;   // of scratch: a step with heads of 128
constexpr int64_t NO_WINDOW = 1 << 30;       // as far as positions go

// Queries and slots of one of the batch that a block of rows has to do with.
struct Block {
  int64_t batch, first, rows;
  std::vector<int32_t> slots;  // that some row may see
};

// In the order of slots; a row looks at positions again where rows differ.
template <typename Call>
std::vector<int32_t> seen(const Call& c, int64_t b, int64_t first_query, int64_t queries) {
  int32_t low = INT32_MAX, high = INT32_MIN;
  for (int64_t t = first_query; t < first_query + queries; ++t) {
    const int32_t at = c.at[b * c.queries + t];
    if (at < 0 && c.causal) continue;  // padding, which sees nothing
    low = std::min(low, at);
    high = std::max(high, at);
  }
  std::vector<int32_t> found;
  if (high == INT32_MIN) return found;
  const int64_t last = c.causal ? high : INT32_MAX - 1, first = c.window ? int64_t(low) - c.window + 1 : 0;
  found.reserve(size_t(c.slots));
  for (int64_t s = 0; s < c.slots; ++s) {
    const int32_t at = c.slot[b * c.slots + s];
    if (at >= 0 && at <= last && at >= first) found.push_back(int32_t(s));
  }
  return found;
}

template <typename Call, typename Attend, typename Finish>
void run(ffi::ThreadPool& pool, const Call& c, int64_t most_rows, int64_t found_floats, int64_t scratch_floats,
         Attend attend, Finish finish) {
  const int64_t group = c.group(), rows = c.queries * group;
  std::vector<Block> blocks;
  int64_t slots = 0, parts = 1;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t first = 0; first < rows; first += most_rows) {
      const int64_t count = std::min(most_rows, rows - first), query = first / group;
      blocks.push_back({b, first, count, seen(c, b, query, (first + count - 1) / group + 1 - query)});
      slots += int64_t(blocks.back().slots.size()) * count;
      parts = std::max(parts, (int64_t(blocks.back().slots.size()) + PART - 1) / PART);
    }
  const bool whole = blocks.size() * size_t(c.key_heads) > 64;  // enough to share out as it is
  if (whole) parts = 1;
  const int64_t tasks = int64_t(blocks.size()) * c.key_heads;
  const Lines results(whole ? 0 : tasks * parts * found_floats);
  const int64_t threads = slots * c.key_heads * (c.dims + c.value_dims) / WORTH_PRODUCTS;
  parallel(pool, threads, tasks * parts, [&](int64_t i) {
    const int64_t task = i / parts, part = i % parts, head = task % c.key_heads;
    const Block& block = blocks[size_t(task / c.key_heads)];
    const int64_t count = int64_t(block.slots.size()), begin = whole ? 0 : std::min(count, part * PART);
    const int64_t end = whole ? count : std::min(count, begin + PART);
    const Own<USUAL_FLOATS> scratch(scratch_floats + (whole ? found_floats : 0));
    float* found = whole ? scratch.data + scratch_floats : results.data + i * found_floats;
    attend(c, block.batch, head, block.first, block.rows, block.slots.data() + begin, end - begin, found, scratch.data);
    if (whole) finish(c, block.batch, head, block.first, block.rows, found, 1);
  });
  if (whole) return;
  for (int64_t task = 0; task < tasks; ++task) {
    const Block& block = blocks[size_t(task / c.key_heads)];
    finish(c, block.batch, task % c.key_heads, block.first, block.rows, results.data + task * parts * found_floats,
           parts);
  }
}

#define WM_RUN(space)                                                                                                  \
  {                                                                                                                    \
    const space::attention::Call c{dims[0], dims[1], dims[2], k.dimensions()[2], dims[3], v.dimensions()[3],           \
                                   k.dimensions()[1], WmElement(element), q.typed_data(),                              \
                                   static_cast<const uint8_t*>(k.untyped_data()),                                      \
                                   static_cast<const uint8_t*>(v.untyped_data()), floats(k_scales), floats(v_scales), \
                                   at.typed_data(), slot.typed_data(), floats(sinks), scale, softcap,                  \
                                   window >= NO_WINDOW ? 0 : window, causal != 0, out->typed_data()};                  \
    run(pool, c, c.most_rows(), space::attention::found_floats(c), space::attention::scratch_floats(c),                \
        space::attention::attend, space::attention::finish);                                                           \
    return ffi::Error::Success();                                                                                      \
  }

const float* floats(const ffi::Buffer<ffi::F32>& b) { return b.element_count() ? b.typed_data() : nullptr; }

// out [B, T, H, Dv] of q [B, T, H, D], k [B, S, K, D] and v [B, S, K, Dv]; scales and sinks without elements are none,
// and so are a window and a cap of 0.
ffi::Error attention(ffi::ThreadPool pool, int64_t isa, int64_t element, float scale, float softcap, int64_t window,
                     int64_t causal, ffi::Buffer<ffi::F32> q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                     ffi::Buffer<ffi::F32> k_scales, ffi::Buffer<ffi::F32> v_scales, ffi::Buffer<ffi::S32> at,
                     ffi::Buffer<ffi::S32> slot, ffi::Buffer<ffi::F32> sinks, ffi::ResultBuffer<ffi::F32> out) {
  const auto dims = q.dimensions();
  if (dims.size() != 4 || k.dimensions().size() != 4 || v.dimensions().size() != 4)
    return ffi::Error::InvalidArgument("q, k and v have four dimensions");
  if (out->element_count() == 0) return ffi::Error::Success();
  if (k.dimensions()[2] == 0 || dims[2] % k.dimensions()[2])
    return ffi::Error::InvalidArgument("query heads are no multiple of key heads");
  WM_BY_ISA(isa, WM_RUN)
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
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
#pragma GCC visibility pop
