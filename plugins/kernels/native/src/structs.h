// Blocks that are structs of ggml (ggml-common.h) taken apart: their codes as bytes in order, and what groups of these are
// multiplied by and lose. Included once for each instruction set, after weights.h.
//
// A value is factor · code - less, as `dequantize_row_…` of ggml-quants.c has it. No product of a float16, a scale and a
// code is subnormal, so that threads that flush see the same.

#pragma GCC diagnostic ignored "-Wpsabi"

namespace structs {

constexpr int group_of(WmElement e) { return e == WM_Q2_K || e == WM_Q3_K || e == WM_Q6_K ? 16 : 32; }
template <WmElement E>
constexpr int SIZE = struct_elems(E);
template <WmElement E>
constexpr int GROUP = group_of(E);
template <WmElement E>
constexpr int GROUPS = SIZE<E> / GROUP<E>;
template <WmElement E>
constexpr bool MINIMA = has_minima(E);

static inline float half(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
#if WM_SIMD
  return _cvtsh_ss(h);
#else
  const int32_t m = h & 0x7FFF;
  int32_t b = m < 0x7C00 ? (m << 13) + (112 << 23) : m << 13 | 0x7F800000;
  const float tiny = float(m) * 0x1p-24f;
  if (m < 0x400) std::memcpy(&b, &tiny, 4);
  b |= int32_t(uint32_t(h & 0x8000) << 16);
  float f;
  std::memcpy(&f, &b, 4);
  return f;
#endif
}

static constexpr int8_t IQ4[16] = {  // kvalues_iq4nl
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

#if WM_SIMD

#include "structs_x86.h"

#else

// Fields of BITS bits of `nbytes` bytes: of UNIT bytes all lowest ones, then all their next ones.
template <int BITS, int UNIT>
static inline void fields(const uint8_t* __restrict raw, int nbytes, uint8_t* __restrict out) {
  for (int at = 0; at < nbytes; at += UNIT)
    for (int i = 0; i < 8 / BITS; ++i, out += UNIT)
      for (int u = 0; u < UNIT; ++u) out[u] = uint8_t(raw[at + u] >> (BITS * i) & ((1 << BITS) - 1));
}
// The same as bits above those that are there.
template <int BITS, int UNIT, int ABOVE>
static inline void fields_above(const uint8_t* __restrict raw, int nbytes, uint8_t* __restrict out) {
  for (int at = 0; at < nbytes; at += UNIT)
    for (int i = 0; i < 8 / BITS; ++i, out += UNIT)
      for (int u = 0; u < UNIT; ++u)
        out[u] = uint8_t(out[u] | (raw[at + u] >> (BITS * i) & ((1 << BITS) - 1)) << ABOVE);
}
static inline void less(uint8_t* codes, int count, int by) {
  for (int i = 0; i < count; ++i) codes[i] = uint8_t(codes[i] - by);
}

// As in structs_x86.h.
template <WmElement E>
static inline void codes_of(const uint8_t* b, int8_t* found, int = 0, int = 0) {
  uint8_t* c = reinterpret_cast<uint8_t*>(found);
  if constexpr (E == WM_Q2_K) {
    fields<2, 32>(b + 16, 64, c);
  } else if constexpr (E == WM_Q3_K) {
    fields<2, 32>(b + 32, 64, c);
    fields_above<1, 32, 2>(b, 32, c);
    less(c, 256, 4);
  } else if constexpr (E == WM_Q4_K) {
    fields<4, 32>(b + 16, 128, c);
  } else if constexpr (E == WM_Q5_K) {
    fields<4, 32>(b + 48, 128, c);
    fields_above<1, 32, 4>(b + 16, 32, c);
  } else if constexpr (E == WM_Q6_K) {
    fields<4, 64>(b, 128, c);
    fields_above<2, 32, 4>(b + 128, 64, c);
    less(c, 256, 32);
  } else if constexpr (E == WM_IQ4_NL) {
    fields<4, 16>(b + 2, 16, c);
    for (int i = 0; i < 32; ++i) found[i] = IQ4[c[i]];
  } else {
    const uint8_t* fifth = b + (E == WM_Q5_1 ? 4 : 2);
    fields<4, 16>(fifth + 4, 16, c);
    for (int i = 0; i < 32; ++i) c[i] = uint8_t(c[i] | (fifth[i / 8] >> i % 8 & 1) << 4);
    if (E == WM_Q5_0) less(c, 32, 16);
  }
}

#endif

// out[i] = by · byte i of eight.
template <bool SIGNED = false>
static inline void eight(uint64_t bytes, float by, float* out) {
#if WM_SIMD
  const __m128i held = _mm_cvtsi64_si128(int64_t(bytes));
  const __m256i wide = SIGNED ? _mm256_cvtepi8_epi32(held) : _mm256_cvtepu8_epi32(held);
  _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_set1_ps(by), _mm256_cvtepi32_ps(wide)));
#else
  for (int i = 0; i < 8; ++i) {
    const uint8_t byte = uint8_t(bytes >> 8 * i);
    out[i] = by * float(SIGNED ? int8_t(byte) : byte);
  }
#endif
}
// What lies there as a little-endian number.
template <typename T>
static inline uint64_t number(const uint8_t* p) {
  T found;
  std::memcpy(&found, p, sizeof found);
  return found;
}
static inline uint64_t joined(uint64_t low, uint64_t high) { return low | high << 32; }

// Of each group; `less` where there are minima.
template <WmElement E>
static inline void factors_of(const uint8_t* b, float* factor, float* less) {
  constexpr uint64_t TWO = 0x0303030303030303, FOUR = 0x0F0F0F0F0F0F0F0F, SIX = 0x3F3F3F3F, UPPER = 0x30303030;
  if constexpr (E == WM_Q2_K) {
    const float d = half(b + 80), second = half(b + 82);
    for (int i = 0; i < 16; i += 8) {
      const uint64_t both = number<uint64_t>(b + i);
      eight(both & FOUR, d, factor + i), eight(both >> 4 & FOUR, second, less + i);
    }
  } else if constexpr (E == WM_Q3_K) {  // low four bits of scales, then the two above, four scales at a time; less 32
    const uint64_t low = number<uint64_t>(b + 96), high = number<uint32_t>(b + 104);
    for (int i = 0; i < 2; ++i) {
      const uint64_t two = joined(high >> 4 * i, high >> (4 * i + 2)) & TWO, top = 0x8080808080808080;
      const uint64_t scales = (low >> 4 * i & FOUR) | two << 4;
      eight<true>(((scales | top) - 0x2020202020202020) ^ top, half(b + 108), factor + 8 * i);
    }
  } else if constexpr (E == WM_Q4_K || E == WM_Q5_K) {  // six bits each, from twelve bytes
    const uint64_t scales = number<uint32_t>(b + 4), minima = number<uint32_t>(b + 8), rest = number<uint32_t>(b + 12);
    eight(joined(scales & SIX, (rest & uint32_t(FOUR)) | (scales >> 2 & UPPER)), half(b), factor);
    eight(joined(minima & SIX, (rest >> 4 & uint32_t(FOUR)) | (minima >> 2 & UPPER)), half(b + 2), less);
  } else if constexpr (E == WM_Q6_K) {
    for (int i = 0; i < 16; i += 8) eight<true>(number<uint64_t>(b + 192 + i), half(b + 208), factor + i);
  } else {
    factor[0] = half(b);
    if (E == WM_Q5_1) less[0] = -half(b + 2);
  }
}

}  // namespace structs
