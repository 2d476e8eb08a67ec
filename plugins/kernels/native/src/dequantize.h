// Whole tensors of codes as bfloat16, float32 or float16: rows as decode.h has them, each value rounded to nearest even.
#include "decode.h"

constexpr int64_t TILE = 2048;  // values between decoding and rounding: they stay in L1

static void rounded(const float* x, int64_t count, Bf16* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t b;
    std::memcpy(&b, x + i, 4);
    const uint32_t near = (b + 0x7FFF + ((b >> 16) & 1)) >> 16;
    out[i].bits = uint16_t((b & 0x7FFFFFFF) > 0x7F800000 ? b >> 16 | 0x40 : near);
  }
}

// Finite values past 65504 become infinities.
static void rounded(const float* x, int64_t count, F16* out) {
  int64_t i = 0;
#if WM_SIMD == 512
  for (; i + 16 <= count; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), 0));
#elif WM_SIMD == 256
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
#endif
  for (; i < count; ++i) {
    uint32_t b, low;
    std::memcpy(&b, x + i, 4);
    const uint32_t m = b & 0x7FFFFFFF;
    float magnitude;
    std::memcpy(&magnitude, &m, 4);
    magnitude += 0.5f;  // the last place of what is under 1 is that of float16's subnormals
    std::memcpy(&low, &magnitude, 4);
    uint32_t near = (m + 0xC8000FFF + ((m >> 13) & 1)) >> 13;
    near = m < 0x38800000 ? low - 0x3F000000 : near;
    near = m >= 0x47800000 ? 0x7C00 : near;
    near = m > 0x7F800000 ? 0x7E00 | (m >> 13 & 0x3FF) : near;
    out[i].bits = uint16_t(near | (b >> 16 & 0x8000));
  }
}

// The first finite value that rounds to an infinity of float16, or count.
static int64_t first_past(const float* x, int64_t count) {
  int any = 0;
  for (int64_t i = 0; i < count; ++i) any |= std::fabs(x[i]) >= 65520.0f;
  for (int64_t i = 0; any && i < count; ++i)
    if (std::fabs(x[i]) >= 65520.0f && std::fabs(x[i]) < HUGE_VALF) return i;
  return count;
}

template <typename T>
static int64_t dequantize(const Weights& w, bool clamp, T* out, float* value) {
  const DecodeRow decode = decoder(w);
  alignas(64) float x[TILE];
  for (int64_t r = 0; r < w.matrices * w.rows; ++r) {
    for (int64_t c = 0; c < w.n; c += TILE) {
      const int64_t count = w.n - c < TILE ? w.n - c : TILE, at = r * w.n + c;
      if constexpr (sizeof(T) == 4) {
        decode(w, r / w.rows, r % w.rows, c, count, out + at);
        continue;
      } else {
        decode(w, r / w.rows, r % w.rows, c, count, x);
        if constexpr (std::is_same<T, F16>::value) {
          int64_t i = first_past(x, count);
          if (i < count && !clamp) {
            *value = x[i];
            return at + i;
          }
          for (; i < count; ++i)
            if (std::fabs(x[i]) < HUGE_VALF && std::fabs(x[i]) > 65504.0f) x[i] = std::copysign(65504.0f, x[i]);
        }
        rounded(x, count, out + at);
      }
    }
  }
  return -1;
}
