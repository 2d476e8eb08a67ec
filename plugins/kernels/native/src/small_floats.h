// Floats of at most sixteen bits as float32, exactly, as many as a vector has lanes. No step meets a subnormal float32,
// so that nobody flushes one. Included once in each namespace that has lanes, after elements.h and its WM_INLINE.

// Of BITS bits and a sign, FRACTION of them the fraction: TOP is the last finite magnitude, INFINITE infinity's, if the
// format has one. Floats: a vector of float32, of as many lanes as `c`, whose other bits may be anything.
template <typename Floats, int BITS, int FRACTION, int BIAS, int TOP, int INFINITE, typename Ints>
WM_INLINE Floats small_float(Ints c) {
  const Ints m = c & ((1 << BITS) - 1);
  const Floats subnormal = __builtin_convertvector(m, Floats) * power_of_two(1 - BIAS - FRACTION);
  Ints found = (m << (23 - FRACTION)) + ((127 - BIAS) << 23);
  found = m < 1 << FRACTION ? (Ints)subnormal : found;
  if constexpr (TOP < (1 << BITS) - 1) {
    found = m > TOP ? Ints{} + 0x7FC00000 : found;
    if constexpr (INFINITE != 0) found = m == INFINITE ? Ints{} + 0x7F800000 : found;
  }
  return (Floats)(found | ((c << (31 - BITS)) & int32_t(0x80000000)));
}

// Of halves in the lower words of lanes, whatever stands above.
template <typename Floats, typename Ints>
WM_INLINE Floats from_f16(Ints c) {
#if WM_SIMD == 512
  return (Floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)c));
#elif WM_SIMD == 256
  const __m256i low = (__m256i)(c & 0xFFFF);
  return (Floats)_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
#else
  return small_float<Floats, 15, 10, 15, 0x7BFF, 0x7C00>(c);
#endif
}
