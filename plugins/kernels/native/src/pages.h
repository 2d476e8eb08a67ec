// Large pages for large results. A program's temporary memory is new each time that it runs, and what is written first
// into small pages the kernel hands out one by one: half of a training step's time, where systems give large ones to
// whoever asks for them only (as NumPy does for its arrays).
#pragma once
#include <cstdint>
#ifdef __linux__
#include <sys/mman.h>
#endif

// Memory around `nbytes` at `p`, too: nothing but how it is paged changes. Where that cannot be, nothing happens.
inline void in_large_pages(const void* p, int64_t nbytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t PAGE = 2 << 20;
  if (nbytes < int64_t(PAGE) / 2) return;
  const uintptr_t first = reinterpret_cast<uintptr_t>(p) / PAGE * PAGE;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(p) + uintptr_t(nbytes) + PAGE - 1) / PAGE * PAGE;
  (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)p, (void)nbytes;
#endif
}
