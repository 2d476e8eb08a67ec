// What each code of the elements of at most eight bits is worth (OCP MX v1.0 and OFP8, sections 5; NF4: QLoRA, appendix
// E), as float32, exactly; made by the compiler.
#pragma once
#include "weights.h"

struct Values {
  float of[256];
};

constexpr float power_of_two(int e) {
  float f = 1;
  for (; e > 0; --e) f *= 2;
  for (; e < 0; ++e) f /= 2;
  return f;
}

constexpr Values values_of(WmElement e) {
  constexpr float NF4[16] = {
      -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
      -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
      0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
  Values v{};
  const int bits = bits_of(e), codes = 1 << bits, half = codes / 2;
  for (int c = 0; c < codes; ++c) {
    float f = 0;
    if (e == WM_NF4) f = NF4[c];
    else if (e >= WM_UINT8) f = float(c);
    else if (e >= WM_INT8 || e == WM_MXINT8) f = float(c < half ? c : c - codes) * (e == WM_MXINT8 ? 0x1p-6f : 1);
    else {
      const int fraction = e == WM_E2M1 ? 1 : e == WM_E3M2 || e == WM_E5M2 ? 2 : 3;
      const int bias = e == WM_E2M1 || e == WM_E2M3 ? 1 : e == WM_E3M2 ? 3 : e == WM_E4M3 ? 7 : 15;
      const int m = c % half, exponent = m >> fraction, ones = (1 << fraction) - 1, steps = m & ones;
      f = float(exponent ? steps + ones + 1 : steps) * power_of_two((exponent ? exponent : 1) - bias - fraction);
      if (e == WM_E4M3 && m == half - 1) f = __builtin_nanf("");
      if (e == WM_E5M2 && exponent == 31) f = steps ? __builtin_nanf("") : __builtin_inff();
      if (c >= half) f = -f;
    }
    v.of[c] = f;
  }
  return v;
}

// Of an element of at most eight bits.
static inline const float* element_values(WmElement e) {
  static constexpr Values ALL[] = {
      {}, {}, {}, values_of(WM_E2M1), values_of(WM_E2M3), values_of(WM_E3M2), values_of(WM_E4M3), values_of(WM_E5M2),
      values_of(WM_MXINT8), values_of(WM_NF4), values_of(WM_INT8), values_of(WM_INT4), values_of(WM_INT3),
      values_of(WM_INT2), values_of(WM_UINT8), values_of(WM_UINT4), values_of(WM_UINT3), values_of(WM_UINT2)};
  return ALL[e].of;
}
