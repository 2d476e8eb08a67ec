// Activations as bytes in the order in which lanes of 512 bits meet them, sixteen at a time.

// Elements k … k + 15 of a row of n; 0 past its end.
WM_INLINE __m512 sixteen_of(const void* x, bool from_bf16, int64_t k, int64_t n) {
  const int64_t count = n - k < 0 ? 0 : n - k < 16 ? n - k : 16;
  const __mmask16 there = __mmask16((1u << count) - 1);
  if (!from_bf16) return _mm512_maskz_loadu_ps(there, static_cast<const float*>(x) + k);
  const __m256i halves = _mm256_maskz_loadu_epi16(there, static_cast<const Bf16*>(x) + k);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// The i-th sixteen of a group: where codes are halves of bytes, even elements meet the lower ones, in the first of two
// vectors, and odd ones the upper ones.
template <bool FOUR_BITS>
WM_INLINE void put_bytes(__m128i bytes, int i, void* group) {
  char* const to = static_cast<char*>(group);
  if constexpr (FOUR_BITS) {
    const __m128i apart = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 8 * i), apart);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 64 + 8 * i), _mm_unpackhi_epi64(apart, apart));
  } else {
    _mm_store_si128(reinterpret_cast<__m128i*>(to) + i, bytes);
  }
}
