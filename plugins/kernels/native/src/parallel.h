// Work in numbered pieces, done by whoever has time: the caller, and threads of XLA's pool that get round to it.
//
// A handler must not wait for work that nobody has claimed, or handlers that fill the pool wait for each other. So the
// caller claims pieces like everybody else until there are none, and then waits for those only that somebody is at.
//
// A step of decoding is many calls that are microseconds apart, and to wake a thread takes as long as what it is
// woken for. So a helper that finds nothing left looks out for the next call a while, before the pool has it back.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace parallel_work {

constexpr std::chrono::microseconds LOOKS_OUT{50};
constexpr int64_t MANY = 1 << 10;  // pauses: some ten microseconds

struct Job {
  std::atomic<int64_t> next{0}, done{0};
  int64_t pieces;
  std::function<void(int64_t)> one;  // a copy: a thread may come when the caller is gone, and finds nothing to do
  uint64_t number;

  void work() {
    for (int64_t i; (i = next.fetch_add(1)) < pieces;) {
      one(i);
      done.fetch_add(1, std::memory_order_release);
    }
  }
};

// Where helpers look. It is never destroyed, as a helper may look when the process ends.
struct Board {
  std::atomic<uint64_t> jobs{0}, newest{0};
  std::atomic<int64_t> helpers{0};  // at work or looking, and so about to look at what comes
  std::shared_ptr<Job> job;  // the newest; by std::atomic_load and std::atomic_store alone

  static Board& only() {
    static Board& board = *new Board;
    return board;
  }
};

inline void pause() {
#if WM_X86
  __builtin_ia32_pause();
#endif
}

inline void help(std::shared_ptr<Job> job) {
  Board& board = Board::only();
  for (uint64_t seen = job->number, newest;; seen = newest) {
    job->work();
    const auto until = std::chrono::steady_clock::now() + LOOKS_OUT;
    while ((newest = board.newest.load(std::memory_order_acquire)) == seen && std::chrono::steady_clock::now() < until)
      pause();
    if (newest == seen) break;
    job = std::atomic_load(&board.job);
  }
  board.helpers.fetch_sub(1);
}

}  // namespace parallel_work

// At most `threads` of them, the caller among them.
template <typename Pool>
void parallel(Pool& pool, int64_t threads, int64_t pieces, const std::function<void(int64_t)>& one) {
  using namespace parallel_work;
  int64_t helpers = std::min<int64_t>({pool.num_threads(), threads, pieces}) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < pieces; ++i) one(i);
    return;
  }
  Board& board = Board::only();
  const auto job = std::make_shared<Job>();
  job->pieces = pieces, job->one = one, job->number = board.jobs.fetch_add(1) + 1;
  std::atomic_store(&board.job, job);
  board.newest.store(job->number, std::memory_order_release);
  helpers -= board.helpers.load();  // who just stops looking is missed: the caller does its part
  for (; helpers > 0; --helpers) {
    board.helpers.fetch_add(1);
    pool.Schedule(std::function<void()>([job] { help(job); }));  // an rvalue: it is kept
  }
  job->work();
  for (int64_t waits = 1; job->done.load(std::memory_order_acquire) < pieces; ++waits)
    if (waits % MANY == 0) std::this_thread::yield();  // a core that is wanted by whoever has the last piece
    else pause();
}
