// Memory to work in, which nobody writes before it is written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

// Floats that begin where a line of cache does: no register that is read from there is in two of them.
class Lines {
  std::unique_ptr<float[]> held;

 public:
  float* data = nullptr;
  explicit Lines(int64_t count) : held(new float[size_t(count) + 16]) {  // not a vector, which writes it
    data = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(held.get()) + 63) & ~uintptr_t(63));
  }
};
