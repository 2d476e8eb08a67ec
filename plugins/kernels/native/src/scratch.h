// Memory to work in, which nobody writes before it is written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

// Pieces aligned to 64 bytes. What calls are through with is kept for later ones, up to MOST: to have it from the system
// anew, page by page, takes longer than some of them do. It is of all calls of a library, and never destroyed: one may
// be at work when the process ends.
class Pieces {
 public:
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };
  using Piece = std::unique_ptr<float[], Free>;

  static Pieces& all() {
    static Pieces& all = *new Pieces;
    return all;
  }

  // Few sizes, so that there is one when it is wanted.
  static size_t size_for(int64_t floats) {
    size_t size = 1024;
    while (size < size_t(floats)) size += size / 4;
    return size;
  }

  Piece take(size_t size) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      const auto found = idle.find(size);
      if (found != idle.end()) {
        Piece last = std::move(found->second);
        idle.erase(found);
        floats -= size;
        return last;
      }
    }
    return Piece(static_cast<float*>(::operator new[](size * sizeof(float), std::align_val_t(64))));
  }

  void give(size_t size, Piece piece) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (floats + size > MOST) idle.clear(), floats = 0;
    floats += size;
    idle.emplace(size, std::move(piece));
  }

 private:
  static constexpr size_t MOST = 8 << 20;  // floats

  std::mutex mutex;
  std::multimap<size_t, Piece> idle;
  size_t floats = 0;
};

// `count` floats, as long as this is there: on the stack of whoever works if they are USUAL at most, else a piece. No
// register that is read from their beginning is in two lines of cache.
template <int64_t USUAL = 16>
class Scratch {
  alignas(64) float usual[USUAL];
  const size_t size;
  Pieces::Piece large;

 public:
  float* const data;
  explicit Scratch(int64_t count)
      : size(count > USUAL ? Pieces::size_for(count) : 0),
        large(size ? Pieces::all().take(size) : nullptr),
        data(size ? large.get() : usual) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (size) Pieces::all().give(size, std::move(large));
  }
};
