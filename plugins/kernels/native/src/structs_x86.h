// Codes of structs.h with the registers that AVX2 and AVX-512 have: 32 at a time, which lie in as many bytes as there are,
// or in half as many. Included there.

#define WM_WHOLE static inline __attribute__((always_inline))
WM_WHOLE __m256i bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
// Of every byte the BITS bits from bit `at` on. (Not by intrinsics, which want to see a constant.)
template <int BITS>
WM_WHOLE __m256i field(__m256i raw, int at) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  return _mm256_and_si256((__m256i)((Halves)raw >> at), _mm256_set1_epi8((1 << BITS) - 1));
}
// All low halves of sixteen bytes, then all high ones.
WM_WHOLE __m256i halves_of(const uint8_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return field<4>(_mm256_set_m128i(_mm_srli_epi16(raw, 4), raw), 0);
}
// 16 where a bit is set, 0 where not.
WM_WHOLE __m256i sixteens(const uint8_t* p) {
  uint32_t bits;
  std::memcpy(&bits, p, 4);
#if WM_SIMD == 512
  return _mm256_maskz_set1_epi8(bits, 16);
#else
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i own = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i held = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(int(bits)), spread), own);
  return _mm256_and_si256(_mm256_cmpeq_epi8(held, own), _mm256_set1_epi8(16));
#endif
}

// What the codes from 128 · part + 32 · i on stand for, i under four.
template <WmElement E>
WM_WHOLE __m256i thirty_two(const uint8_t* b, int part, int i) {
  if constexpr (E == WM_Q2_K) return field<2>(bytes(b + 16 + 32 * part), 2 * i);
  if constexpr (E == WM_Q3_K) {
    const __m256i low = field<2>(bytes(b + 32 + 32 * part), 2 * i), high = field<1>(bytes(b), 4 * part + i);
    return _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 2)), _mm256_set1_epi8(4));
  }
  if constexpr (E == WM_Q4_K) return field<4>(bytes(b + 16 + 64 * part + i / 2 * 32), i % 2 * 4);
  if constexpr (E == WM_Q5_K) {
    const __m256i low = field<4>(bytes(b + 48 + 64 * part + i / 2 * 32), i % 2 * 4);
    return _mm256_or_si256(low, _mm256_slli_epi16(field<1>(bytes(b + 16), 4 * part + i), 4));
  }
  if constexpr (E == WM_Q6_K) {
    const __m256i low = field<4>(bytes(b + 64 * part + i % 2 * 32), i / 2 * 4);
    const __m256i high = field<2>(bytes(b + 128 + 32 * part), 2 * i);
    return _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(32));
  }
  if constexpr (E == WM_IQ4_NL) {
    const __m128i book = _mm_loadu_si128(reinterpret_cast<const __m128i*>(IQ4));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(book), halves_of(b + 2));
  }
  if constexpr (E == WM_Q5_1) return _mm256_or_si256(halves_of(b + 8), sixteens(b + 4));
  if constexpr (E == WM_Q5_0)
    return _mm256_sub_epi8(_mm256_or_si256(halves_of(b + 6), sixteens(b + 2)), _mm256_set1_epi8(16));
}

// What codes of columns first … last of a block stand for, as int8, where those of all would be; others may be there too.
template <WmElement E>
WM_WHOLE void codes_of(const uint8_t* b, int8_t* found, int first = 0, int last = SIZE<E>) {
  for (int part = first / 128; 128 * part < last; ++part)
    for (int i = 0; i < 4 && i < SIZE<E> / 32; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(found + 128 * part + 32 * i), thirty_two<E>(b, part, i));
}
#undef WM_WHOLE
