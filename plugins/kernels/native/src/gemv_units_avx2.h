// UNIT activations as integers, by vectors, for AVX2: what gemv_fixed_avx2.h and gemv_rounded.h put in order.

// UNIT integers as vectors of which the lower halves are of the first half, and the upper ones of the second, four each.
struct Unit {
  __m256i of[4];
};

// Activations k … of a row of n, 0 past its end; where they lie, or put to `here`.
WM_INLINE const float* unit_at(const void* x, bool from_bf16, int64_t k, int64_t n, float* here) {
  if (!from_bf16 && n - k >= UNIT) return static_cast<const float*>(x) + k;
  const int64_t count = n - k < UNIT ? (n > k ? n - k : 0) : UNIT;
  for (int64_t i = 0; i < count; ++i)
    here[i] = from_bf16 ? widened(static_cast<const Bf16*>(x)[k + i]) : static_cast<const float*>(x)[k + i];
  for (int64_t i = count; i < UNIT; ++i) here[i] = 0;
  return here;
}

// The bits of the largest of a unit without their signs; these, all of them, are added to `sizes`.
WM_INLINE int32_t largest_of(const float* v, V& sizes) {
  I bits{};
  for (int i = 0; i < UNIT; i += LANES) {
    const I own = (I)load(v + i) & 0x7FFFFFFF;
    bits = own > bits ? own : bits;
    sizes += (V)own;
  }
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128((__m256i)bits), _mm256_extracti128_si256((__m256i)bits, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(most, _mm_shuffle_epi32(most, 0xB1)));
}

// Those of a unit times `times`, rounded to even.
WM_INLINE Unit integers_of(const float* v, float times) {
  Unit u;
  for (int i = 0; i < 4; ++i) {
    const __m256 first = _mm256_castps128_ps256(_mm_loadu_ps(v + 4 * i));
    const __m256 both = _mm256_insertf128_ps(first, _mm_loadu_ps(v + UNIT / 2 + 4 * i), 1);
    u.of[i] = _mm256_cvtps_epi32(_mm256_mul_ps(both, _mm256_set1_ps(times)));
  }
  return u;
}

// Sums of those that a lane meets: of 16, for two lanes, of eight, for four, or of four, for eight.
template <int OWN>
WM_INLINE __m256i sums_of(const Unit& u) {
  if constexpr (OWN == 4)
    return _mm256_hadd_epi32(_mm256_hadd_epi32(u.of[0], u.of[1]), _mm256_hadd_epi32(u.of[2], u.of[3]));
  const __m256i a = _mm256_add_epi32(u.of[0], u.of[1]), b = _mm256_add_epi32(u.of[2], u.of[3]);
  __m256i pairs = OWN == 8 ? _mm256_hadd_epi32(a, b) : _mm256_add_epi32(a, b);
  pairs = _mm256_hadd_epi32(pairs, pairs);
  if constexpr (OWN == 8) return _mm256_permute4x64_epi64(pairs, 0x08);
  return _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(pairs, pairs), _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0));
}

WM_INLINE void put(void* to, __m128i bytes) { _mm_store_si128(static_cast<__m128i*>(to), bytes); }
WM_INLINE void put_half(void* to, __m128i bytes) { _mm_storel_epi64(static_cast<__m128i*>(to), bytes); }

// The first 32 / OWN numbers of a vector.
template <int OWN>
WM_INLINE void put_some(void* to, __m256i v) {
  if constexpr (OWN == 4) _mm256_storeu_si256(static_cast<__m256i*>(to), v);
  else if constexpr (OWN == 8) _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_castsi256_si128(v));
  else put_half(to, _mm256_castsi256_si128(v));
}

// What stands beside the integers of lanes, OWN of each: their unit, what moving codes `up` is made good by, and their sums.
template <int OWN>
WM_INLINE void put_lanes(const Unit& u, float unit, int up, float* units, int32_t* moved, float* sums) {
  const __m256i sum = sums_of<OWN>(u);
  put_some<OWN>(units, _mm256_castps_si256(_mm256_set1_ps(unit)));
  if (moved) put_some<OWN>(moved, _mm256_mullo_epi32(sum, _mm256_set1_epi32(-up)));
  if (sums) put_some<OWN>(sums, _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(unit))));
}
