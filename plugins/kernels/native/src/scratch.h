// Memory that pieces of work take in turn, aligned to 64 bytes.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

struct Free {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using Memory = std::unique_ptr<float[], Free>;

// Memory of one size that is taken in turn: as much as is in use at a time.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : floats_(size_t(floats)) {}

  Memory take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty())
      return Memory(static_cast<float*>(::operator new[](floats_ * sizeof(float), std::align_val_t(64))));
    Memory last = std::move(idle_.back());
    idle_.pop_back();
    return last;
  }

  void give(Memory m) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(m));
  }

 private:
  size_t floats_;
  std::mutex mutex_;
  std::vector<Memory> idle_;
};
