// XLA's door of products of a few rows whose activations are rounded to integers of eight bits; see gemv_rounded.h.
#include "elements.h"
#include "floats.h"
#include "gemv_grouped.h"

#define WM_ROUNDED 1
#define WM_KERNELS "gemv.h"
#include "each_isa.h"

namespace {

std::vector<const GemvKernel*> kernels(int64_t isa, bool, bool, WmElement e) {
#define WM_RUN(space)                                     \
  {                                                       \
    const GemvKernel* found = space::gemv::kernel(e);     \
    if (found == nullptr) return {};                      \
    return {found};                                       \
  }
  WM_BY_ISA(isa, WM_RUN)
#undef WM_RUN
}

}  // namespace
