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
  explicit Lines(int64_t count) : held(count ? new float[size_t(count) + 16] : nullptr) {  // not a vector, which writes it
    data = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(held.get()) + 63) & ~uintptr_t(63));
  }
};

// `count` floats: on the stack of whoever works, if they are USUAL at most. From the heap and back again for each call,
// larger pieces are memory that the system has to find anew, page by page.
template <int64_t USUAL>
class Own {
  alignas(64) float usual[USUAL];
  const Lines large;

 public:
  float* const data;
  explicit Own(int64_t count) : large(count > USUAL ? count : 0), data(count > USUAL ? large.data : usual) {}
};
