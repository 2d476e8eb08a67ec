// quantize of every block format, columns that make good what earlier ones lost, and what blocks lose under scales that
// are tried, for ctypes: the plain door of quantize_block.h, gptq_columns.h and block_errors_strip.h.
#include "quantize.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "block_errors.h"
#include "floats.h"
#include "gptq.h"
#include "targets.h"

#define WM_KERNELS "quantize_all.h"
#include "each_isa.h"

namespace {

struct Scratch {
  char* bytes;
  Scratch(const Region& region, bool searches)
      : bytes(static_cast<char*>(::operator new(
            sizeof(any_isa::Strip) + size_t(TALL_ROWS * TALL_STRIP * 4) +
                size_t((BLOCK_ARRAYS + searches * SEARCH_ARRAYS) * array_bytes(region)),
            std::align_val_t(64)))) {}
  ~Scratch() { ::operator delete(bytes, std::align_val_t(64)); }
};

template <typename T>
int64_t first_not_finite(const QuantizeCall& q) {
  for (int64_t r = 0; r < q.rows; ++r)
    for (int64_t c = 0; c < q.n; ++c)
      if (!std::isfinite(widened(static_cast<const T*>(q.x)[r * q.row_stride + c * q.col_stride]))) return r * q.n + c;
  return -1;
}

}  // namespace

#define WM_API __attribute__((visibility("default")))

extern "C" {

// A WmFound.
WM_API int wm_quantize(int isa, QuantizeCall* q) {
  const Region region = region_of(*q);
  const Scratch scratch(region, q->options != 0);
#define WM_RUN(space) return space::quantize(*q, region, scratch.bytes)
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

// The smallest and the largest value of the matrix of `q`, of whose other fields only the dtype counts.
WM_API void wm_extremes(int isa, const QuantizeCall* q, float* low, float* high) {
  const Region region = region_of(*q);
  const Scratch scratch(region, false);
#define WM_RUN(space) return space::extremes(*q, region, scratch.bytes, low, high)
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

// Rounds the columns of `c` as `q` says, of whose arrays only the tables of the element are read.
WM_API void wm_columns(int isa, const QuantizeCall* q, const ColumnsCall* c) {
  const std::unique_ptr<double[]> factors(new double[size_t(c->count * c->count)]);
  const std::unique_ptr<double[]> errors(new double[size_t(c->count * TILE_ROWS)]);
  for (int64_t k = 0; k < c->count; ++k)
    for (int64_t j = 0; j < c->count; ++j) factors[size_t(k * c->count + j)] = c->upper[j * c->count + k];
#define WM_RUN(isa)                                                         \
  {                                                                         \
    const auto tile = std::make_unique<isa::Tile>();                        \
    return isa::columns(*q, *c, factors.get(), errors.get(), *tile);        \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

// Rounds the blocks of `c` as `q` says, of whose arrays only the tables of the element are read.
WM_API void wm_block_errors(int isa, const QuantizeCall* q, const BlockErrorsCall* c) {
#define WM_RUN(isa)                                    \
  {                                                    \
    const auto strip = std::make_unique<isa::Strip>(); \
    return isa::block_errors(*q, *c, *strip);          \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

// Flat index of the first value of the matrix that is a NaN or an infinity, or -1.
WM_API int64_t wm_first_not_finite(const QuantizeCall* q) {
  return q->dtype == 0 ? first_not_finite<Bf16>(*q) : q->dtype == 1 ? first_not_finite<F16>(*q) : first_not_finite<float>(*q);
}
}
