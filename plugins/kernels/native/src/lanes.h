// Vectors of a strip's width, and their transposition. Included once for each instruction set, before strip.h and tile.h.
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors go between functions that are inlined, and no others
#include "decode.h"

namespace gemm {

using decoding::Floats;
using decoding::Ints;
using decoding::LANES;
constexpr int STRIP = 2 * LANES;  // columns of an outer product

#define WM_INLINE static inline __attribute__((always_inline))
#define WM_METHOD inline __attribute__((always_inline))

WM_INLINE Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
WM_INLINE void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Columns at a time, at most `most`, so that the last time has as many as the others: a multiple of `grain`.
static inline int64_t even_depth(int64_t n, int64_t most, int64_t grain) {
  const int64_t times = (n + most - 1) / most;
  return (n + times * grain - 1) / (times * grain) * grain;
}

#if WM_SIMD == 512

static inline void transpose(Ints v[LANES]) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32((__m512i)v[i], (__m512i)v[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32((__m512i)v[i], (__m512i)v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + j + 2]);
      b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i)
    for (int h = 0; h < 2; ++h) {
      a[8 * h + i] = _mm512_shuffle_i32x4(b[8 * h + i], b[8 * h + i + 4], 0x88);
      a[8 * h + i + 4] = _mm512_shuffle_i32x4(b[8 * h + i], b[8 * h + i + 4], 0xDD);
    }
  for (int i = 0; i < 8; ++i) {
    v[i] = (Ints)_mm512_shuffle_i32x4(a[i], a[i + 8], 0x88);
    v[i + 8] = (Ints)_mm512_shuffle_i32x4(a[i], a[i + 8], 0xDD);
  }
}

#elif WM_SIMD == 256

static inline void transpose(Ints v[LANES]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32((__m256i)v[i], (__m256i)v[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32((__m256i)v[i], (__m256i)v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm256_unpacklo_epi64(a[i + j], a[i + j + 2]);
      b[i + 2 * j + 1] = _mm256_unpackhi_epi64(a[i + j], a[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    v[i] = (Ints)_mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    v[i + 4] = (Ints)_mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}

#else

static inline void transpose(Ints v[LANES]) {
  Ints found[LANES];
  for (int i = 0; i < LANES; ++i)
    for (int j = 0; j < LANES; ++j) found[i][j] = v[j][i];
  std::memcpy(v, found, sizeof found);
}

#endif

}  // namespace gemm
