// Work shared out by parallel.h, for a sanitizer of threads: pools of threads, several callers at a time, jobs that begin
// while helpers of the last look out for more. Every piece is done once, and what it wrote is there when a call returns.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "targets.h"
#include "parallel.h"

// As XLA's: takes work in order, and has it done some time.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  int64_t num_threads() const { return int64_t(threads_.size()); }
  void Schedule(std::function<void()> work) {
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

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> due_;
  std::vector<std::thread> threads_;
  bool over_ = false;
};

int main(int n, char**) {
  const bool planted = n > 1;  // all pieces write to one place: what is to be found
  int wrong = 0;
  {
    Pool pool(4);
    std::vector<std::thread> callers;
    std::vector<int> found(3);
    for (int c = 0; c < 3; ++c)
      callers.emplace_back([&, c] {
        for (int turn = 0; turn < 60; ++turn) {
          const int64_t pieces = 1 + (turn * 7 + c) % 23;
          std::vector<int> times(static_cast<size_t>(pieces));  // piece i writes to the i-th, and nobody else
          parallel(pool, 1 + turn % 4, pieces, [&](int64_t i) {
            ++times[size_t(planted ? 0 : i)];
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
            while (std::chrono::steady_clock::now() < until) std::this_thread::yield();  // others come meanwhile
          });
          for (int t : times) found[size_t(c)] += t != 1;
        }
      });
    for (std::thread& t : callers) t.join();
    for (int f : found) wrong += f;
  }
  std::printf("%d wrong\n", wrong);
  return wrong != 0;
}
