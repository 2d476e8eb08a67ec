// Scales and offsets (minimums, or what zero points take off) of gemv.h as float32, of as many rows at once as there is room for: rows are short, and
// what is left of one would be converted alone.

#include "small_floats.h"

// LANES integers; said plainly where compilers would fetch bytes one by one.
template <typename T>
WM_INLINE I integers(const uint8_t* p) {
#if WM_SIMD == 512
  if constexpr (sizeof(T) == 1) return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  if constexpr (sizeof(T) == 2)
    return (I)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif WM_SIMD == 256
  if constexpr (sizeof(T) == 1) return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  if constexpr (sizeof(T) == 2)
    return (I)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
  typedef T Some __attribute__((vector_size(LANES * sizeof(T)), aligned(1), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Some*>(p), I);
}

WM_INLINE V halves(const uint8_t* p) {
#if WM_SIMD == 512
  return (V)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif WM_SIMD == 256
  return (V)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  return from_f16<V>(integers<uint16_t>(p));
#endif
}

template <WmScale KIND, typename T>
WM_INLINE V scales_at(const uint8_t* p) {  // LANES stored ones
  if constexpr (KIND == WM_SCALE_F16) return halves(p);
  const I c = integers<T>(p);
  switch (KIND) {
    case WM_SCALE_E8M0: return (V)(c << 23 | ((c == 0xFF) & (I{} + 0x400000)));
    case WM_SCALE_E4M3: return small_float<V, 7, 3, 7, 0x7E, 0>(c);
    case WM_SCALE_BF16: return (V)(c << 16);
    default: return (V)c;
  }
}

// out[i …] = f(where stored[from + i …] are), LANES at a time.
template <typename T, typename F>
WM_INLINE void converted(const uint8_t* stored, int64_t from, int64_t n, float* out, F f) {
  constexpr int64_t SIZE = sizeof(T);
  const uint8_t* p = stored + from * SIZE;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    __builtin_prefetch(p + (i + n) * SIZE);  // those that are converted next
    const V v = f(p + i * SIZE);
    std::memcpy(out + i, &v, sizeof v);
  }
  if (i == n) return;
  uint8_t rest[LANES * SIZE] = {};
  std::memcpy(rest, p + i * SIZE, size_t((n - i) * SIZE));
  const V v = f(rest);
  std::memcpy(out + i, &v, size_t(n - i) * 4);
}

template <WmScale KIND, typename T>
WM_INLINE void scales(const Weights& w, int64_t matrix, int64_t from, int64_t n, float* s) {
  const V one = V{} + 1.0f, second = one * (w.second == WM_SECOND_NONE ? 1 : w.seconds[matrix]);
  if (w.second == WM_SECOND_INVERSE_F32)
    return converted<T>(w.scales, from, n, s, [&](const uint8_t* p) { return scales_at<KIND, T>(p) / second; });
  converted<T>(w.scales, from, n, s, [&](const uint8_t* p) { return scales_at<KIND, T>(p) * second; });
}

// The float32 scales, and offsets, of `bands` rows of blocks.
static void factors(const Weights& w, int64_t matrix, int64_t band, int64_t bands, float* s, float* z) {
  const int64_t n = bands * w.across(), from = (matrix * w.down() + band) * w.across();
  switch (w.scale) {
    case WM_SCALE_NONE:
      for (int64_t i = 0; i < n; ++i) s[i] = 1;
      break;
    case WM_SCALE_E8M0: scales<WM_SCALE_E8M0, uint8_t>(w, matrix, from, n, s); break;
    case WM_SCALE_E4M3: scales<WM_SCALE_E4M3, uint8_t>(w, matrix, from, n, s); break;
    case WM_SCALE_F16: scales<WM_SCALE_F16, uint16_t>(w, matrix, from, n, s); break;
    case WM_SCALE_BF16: scales<WM_SCALE_BF16, uint16_t>(w, matrix, from, n, s); break;
    case WM_SCALE_F32: scales<WM_SCALE_F32, int32_t>(w, matrix, from, n, s); break;
    case WM_SCALE_DYNAMIC8: {
      const float offset = w.seconds[(w.matrices * w.down() * w.across() + 255) / 256];
      for (int64_t i = 0; i < n; ++i) s[i] = w.book[w.scales[from + i]] * w.seconds[(from + i) / 256] + offset;
      break;
    }
  }
  if (w.zero == WM_ZERO_INT)
    converted<uint8_t>(w.zeros, from, n, z, [](const uint8_t* p) { return -__builtin_convertvector(integers<uint8_t>(p), V); });
  if (w.zero == WM_ZERO_INT)
    for (int64_t i = 0; i < n; ++i) z[i] *= s[i];
  if (w.zero == WM_ZERO_MIN_F16) converted<uint16_t>(w.zeros, from, n, z, [](const uint8_t* p) { return halves(p); });
}
