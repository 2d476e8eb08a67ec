// Says what src/parallel.h did with pieces: of many calls at once, each piece once; and how often a thread of a step
// went on elsewhere than at the next piece.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "targets.h"
#include "parallel.h"

// A pool of as many threads as helpers are asked for, which come when they come; or of helpers that never do.
struct Pool {
  int threads;
  bool comes;
  std::mutex lock;
  std::vector<std::thread> started;

  int64_t num_threads() const { return threads; }
  void Schedule(std::function<void()>&& f) {
    const std::lock_guard<std::mutex> held(lock);
    if (comes) started.emplace_back(std::move(f));
  }
  ~Pool() {
    for (std::thread& t : started) t.join();
  }
};

int main(int argc, char** argv) {
  const int callers = std::atoi(argv[1]), threads = std::atoi(argv[2]), pieces = std::atoi(argv[3]);
  const bool comes = std::atoi(argv[4]), turns = std::atoi(argv[5]);
  const int pause_us = std::atoi(argv[6]);
  Pool pool{threads, comes, {}, {}};
  std::vector<std::thread> calling;
  std::atomic<int> wrong{0}, most{0};
  for (int c = 0; c < callers; ++c)
    calling.emplace_back([&] {
      for (int call = 0; call < (pause_us ? 1 : 200); ++call) {
        std::vector<std::atomic<int>> times(static_cast<size_t>(pieces));
        std::vector<std::thread::id> who(static_cast<size_t>(pieces));
        parallel(
            pool, threads, pieces,
            [&](int64_t i) {
              times[size_t(i)].fetch_add(1);
              who[size_t(i)] = std::this_thread::get_id();
              std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
            },
            turns ? parallel_work::PROMPT : parallel_work::STEP);
        int changes = 0;
        for (size_t i = 0; i < size_t(pieces); ++i) {
          if (times[i].load() != 1) ++wrong;
          if (i && who[i] != who[i - 1]) ++changes;
        }
        for (int seen = most; seen < changes && !most.compare_exchange_weak(seen, changes);) {
        }
      }
    });
  for (std::thread& t : calling) t.join();
  std::printf("%d %d\n", wrong.load(), most.load());
  return 0;
}
