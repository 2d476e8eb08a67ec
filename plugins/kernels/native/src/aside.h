// A thread that goes out of another's way. Schedulers put a thread that was just woken where its waker runs, and may
// leave it there for milliseconds, whatever stands idle beside it: a step of decoding is over before.
#pragma once
#ifdef __linux__
#include <sched.h>
#endif

namespace aside {

// Which core the calling thread is on; -1 where nobody knows.
inline int core() {
#ifdef __linux__
  return sched_getcpu();
#else
  return -1;
#endif
}

// Moves the calling thread to any other core that it may run on, if it is on `core`; later it may run where it might
// before. Where that cannot be, nothing happens.
inline void of(int core) {
#ifdef __linux__
  cpu_set_t all, others;
  if (core < 0 || sched_getcpu() != core || sched_getaffinity(0, sizeof all, &all) != 0) return;
  others = all;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
    sched_setaffinity(0, sizeof all, &all);
#endif
}

}  // namespace aside
