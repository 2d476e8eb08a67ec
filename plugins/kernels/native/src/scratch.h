// Memory that pieces of work take in turn, aligned to 64 bytes. What calls are through with is kept for later ones, up to
// MOST: to have it from the system anew, page by page, takes longer than some of them do.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

struct Free {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using Memory = std::unique_ptr<float[], Free>;

// Of one size. What is kept is of all calls of a library, and never destroyed: one may be at work when the process ends.
class Scratch {
 public:
  explicit Scratch(int64_t floats) {
    while (floats_ < size_t(floats)) floats_ += floats_ / 4;  // few sizes, so that there is one when it is wanted
  }

  Memory take() {
    {
      Kept& kept = Kept::only();
      const std::lock_guard<std::mutex> lock(kept.mutex);
      const auto found = kept.idle.find(floats_);
      if (found != kept.idle.end()) {
        Memory last = std::move(found->second);
        kept.idle.erase(found);
        kept.floats -= floats_;
        return last;
      }
    }
    return Memory(static_cast<float*>(::operator new[](floats_ * sizeof(float), std::align_val_t(64))));
  }

  void give(Memory m) {
    Kept& kept = Kept::only();
    const std::lock_guard<std::mutex> lock(kept.mutex);
    if (kept.floats + floats_ > MOST) kept.idle.clear(), kept.floats = 0;
    kept.floats += floats_;
    kept.idle.emplace(floats_, std::move(m));
  }

 private:
  static constexpr size_t MOST = 8 << 20;  // floats

  struct Kept {
    std::mutex mutex;
    std::multimap<size_t, Memory> idle;
    size_t floats = 0;

    static Kept& only() {
      static Kept& kept = *new Kept;
      return kept;
    }
  };

  size_t floats_ = 1024;
};
