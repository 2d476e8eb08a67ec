// Work in numbered pieces, done by whoever has time: the caller, and threads of XLA's pool that get round to it.
//
// A handler must not wait for work that nobody has claimed, or handlers that fill the pool wait for each other. So the
// caller claims pieces like everybody else until there are none, and then waits for those only that somebody is at.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

// At most `threads` of them, the caller among them.
template <typename Pool>
void parallel(Pool& pool, int64_t threads, int64_t pieces, const std::function<void(int64_t)>& one) {
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
    int64_t pieces;
    std::function<void(int64_t)> one;  // a copy: a thread may come when the caller is gone, and finds nothing to do
  };
  const int64_t helpers = std::min<int64_t>({pool.num_threads(), threads, pieces}) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < pieces; ++i) one(i);
    return;
  }
  auto shared = std::make_shared<Shared>();
  shared->pieces = pieces;
  shared->one = one;
  const auto work = [shared] {
    for (int64_t i; (i = shared->next.fetch_add(1)) < shared->pieces;) {
      shared->one(i);
      shared->done.fetch_add(1, std::memory_order_release);
    }
  };
  for (int64_t h = 0; h < helpers; ++h) pool.Schedule(std::function<void()>(work));  // an rvalue: it is kept
  work();
  while (shared->done.load(std::memory_order_acquire) < pieces) {
#if WM_X86
    __builtin_ia32_pause();
#endif
  }
}
