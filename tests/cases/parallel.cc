// Says what src/parallel.h did with pieces: of many calls at once, each piece once, and what it wrote is there when a call
// returns; and how often a thread of a step went on elsewhere than at the next piece. Calls follow each other while
// helpers of the last look out for more.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "targets.h"
#include "parallel.h"

// As XLA's: takes work in order, and has it done some time; or, with `comes` false, never.
class Pool {
 public:
  Pool(int threads, bool comes) : threads_(threads) {
    for (int i = 0; comes && i < threads; ++i) started_.emplace_back([this] { serve(); });
  }
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : started_) t.join();
  }
  int64_t num_threads() const { return threads_; }
  void Schedule(std::function<void()>&& work) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      due_.push_back(std::move(work));
    }
    wake_.notify_one();
  }

 private:
  void serve() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return over_ || !due_.empty(); });
      if (due_.empty()) return;
      const std::function<void()> work = std::move(due_.front());
      due_.pop_front();
      lock.unlock();
      work();
    }
  }

  const int threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> due_;
  std::vector<std::thread> started_;
  bool over_ = false;
};

int main(int, char** argv) {
  const int callers = std::atoi(argv[1]), threads = std::atoi(argv[2]), pieces = std::atoi(argv[3]);
  const bool comes = std::atoi(argv[4]), turns = std::atoi(argv[5]);
  const int pause_us = std::atoi(argv[6]);
  const bool planted = std::atoi(argv[7]);  // all pieces write to one place: what a sanitizer of threads is to find
  std::atomic<int> wrong{0}, most{0};
  {
    Pool pool(threads, comes);
    std::vector<std::thread> calling;
    for (int c = 0; c < callers; ++c)
      calling.emplace_back([&] {
        for (int call = 0; call < (pause_us ? 1 : 100); ++call) {
          std::vector<int> times(static_cast<size_t>(pieces));  // piece i writes to the i-th, and nobody else
          std::vector<std::thread::id> who(static_cast<size_t>(pieces));
          parallel(
              pool, threads - call % threads, pieces,
              [&](int64_t i) {
                ++times[size_t(planted ? 0 : i)];
                who[size_t(i)] = std::this_thread::get_id();
                const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(pause_us);
                do std::this_thread::yield();  // others come meanwhile
                while (std::chrono::steady_clock::now() < until);
              },
              turns ? parallel_work::PROMPT : parallel_work::STEP);
          int changes = 0;
          for (size_t i = 0; i < size_t(pieces); ++i) {
            if (times[i] != 1) ++wrong;
            if (i && who[i] != who[i - 1]) ++changes;
          }
          for (int seen = most; seen < changes && !most.compare_exchange_weak(seen, changes);) {
          }
        }
      });
    for (std::thread& t : calling) t.join();
  }
  std::printf("%d %d\n", wrong.load(), most.load());
  return 0;
}
