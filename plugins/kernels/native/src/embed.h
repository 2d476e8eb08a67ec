// Rows of weights, as ids ask for them. Included once for each instruction set, after elements.h, floats.h and narrowed.h.
#include "decode.h"

namespace embed {

constexpr int64_t TILE = 2048;  // values between decoding and rounding: they stay in the fastest cache

// out [ids, n]: of ids first … last; one that is outside asks for the nearest row.
template <typename T>
static void rows(const Weights& w, const int32_t* ids, int64_t first, int64_t last, T* out) {
  const DecodeRow decode = decoder(w);
  for (int64_t i = first; i < last; ++i) {
    const int64_t id = ids[i], row = id < 0 ? 0 : id < w.rows ? id : w.rows - 1;
    T* to = out + i * w.n;
    if constexpr (sizeof(T) == 4) {
      decode(w, 0, row, 0, w.n, to);
    } else if (w.element == WM_BF16) {
      std::memcpy(to, w.codes + row * w.row_nbytes(), size_t(w.row_nbytes()));
    } else {
      alignas(64) float x[TILE];
      for (int64_t c = 0; c < w.n; c += TILE) {
        const int64_t count = w.n - c < TILE ? w.n - c : TILE;
        decode(w, 0, row, c, count, x);
        for (int64_t j = 0; j < count; ++j) narrowed(x[j], to + c + j);
      }
    }
  }
}

}  // namespace embed
