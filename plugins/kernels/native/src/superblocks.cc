// Structs of ggml from whole matrices, for ctypes: the plain door of superblocks_fit.h.
#include "superblocks.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "elements.h"
#include "floats.h"
#include "targets.h"

#define WM_KERNELS "superblocks_pack.h"
#include "each_isa.h"

#define WM_API __attribute__((visibility("default")))
#define WM_MAKE(space)                                                                                          \
  {                                                                                                             \
    const std::unique_ptr<char[]> scratch(new char[space::SUPERBLOCK_SCRATCH + 64]);                            \
    void* at = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.get()) + 63) / 64 * 64);            \
    return space::make_superblocks(*c, at);                                                                     \
  }

// What could not be stored is in `c`; `out` is complete where nothing is.
extern "C" WM_API void wm_superblocks(int isa, SuperblockCall* c) { WM_BY_ISA(isa, WM_MAKE) }
