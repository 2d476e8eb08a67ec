// Work in numbered pieces, done by whoever has time: the caller, and threads of XLA's pool that get round to it.
//
// A handler must not wait for work that nobody has claimed, or handlers that fill the pool wait for each other. So the
// caller claims pieces like everybody else until there are none, and then waits for those only that somebody is at.
//
// In a step of decoding each thread has a range of neighbouring pieces, and helps others from the far end when it is
// through: pieces are neighbours in memory, and what fetches memory ahead of a thread fetches what the same thread reads
// next. What two threads take in turns is read at two thirds of the speed.
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

#include "aside.h"

namespace parallel_work {

// How work is shared: each thread has neighbouring pieces, or all take the next one, in turns, which then may share what
// such a piece wants. And how long a helper looks out afterwards: in steps of decoding, until the next one begins.
struct Sharing {
  bool turns;
  std::chrono::microseconds looks_out;
};
constexpr Sharing STEP{false, std::chrono::microseconds(300)}, PROMPT{true, std::chrono::microseconds(50)};
constexpr int64_t MANY = 1 << 10;  // pauses: some ten microseconds
constexpr std::chrono::microseconds SOON{30};  // that a thread takes to wake

// Pieces that nobody claimed yet, the first of them and the one after the last in one word. A range that was claimed
// from never comes back, so that what looks unchanged is.
struct alignas(64) Range {
  std::atomic<uint64_t> ends{0};

  static constexpr uint64_t of(uint64_t first, uint64_t last) { return first << 32 | last; }
  static constexpr uint64_t first(uint64_t r) { return r >> 32; }
  static constexpr uint64_t last(uint64_t r) { return uint32_t(r); }

  // The first of them for its owner, or for others the half at the end; an empty one when there are none.
  uint64_t claim(bool own) {
    for (uint64_t now = ends.load();;) {
      const uint64_t from = first(now), to = last(now);
      if (from >= to) return 0;
      const uint64_t cut = own ? from + 1 : from + (to - from) / 2;
      if (ends.compare_exchange_weak(now, own ? of(cut, to) : of(from, cut))) return own ? of(from, cut) : of(cut, to);
    }
  }
};

struct Job {
  std::atomic<int64_t> done{0}, joined{0};
  int64_t pieces, parts;
  std::unique_ptr<Range[]> ranges;   // one for each of `parts`: of the threads or, where they take turns, of all
  std::function<void(int64_t)> one;  // a copy: a thread may come when the caller is gone, and finds nothing to do
  std::chrono::microseconds looks_out;
  uint64_t number = 0;
  const int core = aside::core();  // of the caller

  Job(int64_t pieces, int64_t threads, const std::function<void(int64_t)>& one, Sharing how)
      : pieces(pieces), parts(how.turns ? 1 : threads), ranges(new Range[size_t(parts)]), one(one),
        looks_out(how.looks_out) {
    for (int64_t p = 0; p < parts; ++p)
      ranges[size_t(p)].ends = Range::of(uint64_t(pieces * p / parts), uint64_t(pieces * (p + 1) / parts));
  }

  // The pieces of one's own range, then those of others; `after` each of them.
  template <typename After>
  void work(const After& after) {
    const int64_t order = joined.fetch_add(1), mine = parts == 1 ? 0 : order;
    int64_t did = 0;
    const auto run = [&](Range& range) {
      for (uint64_t some; (some = range.claim(true)); ++did) one(int64_t(Range::first(some))), after();
    };
    Range none, &own = mine < parts ? ranges[size_t(mine)] : none;
    run(own);
    for (int64_t other = mine + 1; other < mine + parts; ++other)
      while (const uint64_t some = ranges[size_t(other % parts)].claim(false)) own.ends = some, run(own);
    done.fetch_add(did, std::memory_order_release);
  }
};

// Where helpers look. It is never destroyed, as a helper may look when the process ends. All libraries of a process have
// the same one (where the linker knows unique symbols), or helpers of one would be in the way of another's.
struct Board {
  std::atomic<uint64_t> jobs{0}, newest{0};
  std::atomic<int64_t> helpers{0};  // at work or looking, and so about to look at what comes
  std::shared_ptr<Job> job;  // the newest; by std::atomic_load and std::atomic_store alone

  __attribute__((visibility("default"))) static Board& only() {
    static Board& board = *new Board;
    return board;
  }
};

inline void pause() {
#if WM_X86
  __builtin_ia32_pause();
#endif
}

// After `times` pauses of somebody who waits: now and then the core is for whoever wants it.
inline void wait(int64_t times) {
  if (times % MANY == 0) std::this_thread::yield();
  else pause();
}

inline void help(std::shared_ptr<Job> job) {
  Board& board = Board::only();
  for (uint64_t seen = job->number, newest;; seen = newest) {
    aside::of(job->core);
    job->work([] {});
    const auto until = std::chrono::steady_clock::now() + job->looks_out;
    for (int64_t waits = 1; (newest = board.newest.load(std::memory_order_acquire)) == seen; ++waits) {
      if (std::chrono::steady_clock::now() >= until) break;
      wait(waits);
    }
    if (newest == seen) break;
    job = std::atomic_load(&board.job);
  }
  board.helpers.fetch_sub(1);
}

}  // namespace parallel_work

// At most `threads` of them, the caller among them.
template <typename Pool>
void parallel(Pool& pool, int64_t threads, int64_t pieces, const std::function<void(int64_t)>& one,
              parallel_work::Sharing how = parallel_work::STEP) {
  using namespace parallel_work;
  threads = std::min<int64_t>({pool.num_threads(), threads, pieces});
  if (threads <= 1) {
    for (int64_t i = 0; i < pieces; ++i) one(i);
    return;
  }
  Board& board = Board::only();
  const auto job = std::make_shared<Job>(pieces, threads, one, how);
  job->number = board.jobs.fetch_add(1) + 1;
  std::atomic_store(&board.job, job);
  board.newest.store(job->number, std::memory_order_release);
  int64_t helpers = threads - 1 - board.helpers.load();  // who just stops looking is missed: the caller does its part
  for (; helpers > 0; --helpers) {
    board.helpers.fetch_add(1);
    pool.Schedule(std::function<void()>([job] { help(job); }));  // an rvalue: it is kept
  }
  auto late = std::chrono::steady_clock::now() + SOON;
  job->work([&] {  // a helper that should be here by now may be waiting for this very core
    if (job->joined.load() > 1 || std::chrono::steady_clock::now() < late) return;
    std::this_thread::yield();
    late = std::chrono::steady_clock::now() + SOON;
  });
  for (int64_t waits = 1; job->done.load(std::memory_order_acquire) < pieces; ++waits) wait(waits);
}
