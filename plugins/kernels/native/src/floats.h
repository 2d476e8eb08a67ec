// The floating-point types of checkpoints, and how they become float32: exactly.
#pragma once
#include <cstdint>
#include <cstring>

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

static inline float widened(float v) { return v; }

static inline float widened(Bf16 v) {
  const uint32_t b = uint32_t(v.bits) << 16;
  float f;
  std::memcpy(&f, &b, 4);
  return f;
}

// IEEE 754 binary16 by integers and one exact product, so that it is SIMD without F16C.
static inline float widened(F16 v) {
  const uint32_t sign = uint32_t(v.bits & 0x8000) << 16, magnitude = v.bits & 0x7FFF;
  uint32_t b = (magnitude << 13);
  float f;
  std::memcpy(&f, &b, 4);
  f *= 0x1p112f;  // exponents move up by 127 - 15; subnormals come out right
  std::memcpy(&b, &f, 4);
  b = magnitude >= 0x7C00 ? (b | 0x7F800000u) : b;
  b |= sign;
  std::memcpy(&f, &b, 4);
  return f;
}
