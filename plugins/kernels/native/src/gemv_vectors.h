// What gemv.h does with vectors, for each width of registers. Included in its namespace.

#define WM_INLINE static inline __attribute__((always_inline))
#define WM_METHOD inline __attribute__((always_inline))
constexpr int LANES = WM_SIMD ? WM_SIMD / 32 : 4;  // a wider vector than registers are would lie in memory
typedef float V __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef V Loose __attribute__((aligned(4), may_alias));

WM_INLINE V load(const float* p) { return *reinterpret_cast<const Loose*>(p); }

#if WM_SIMD
// A value that is used several times; compilers would read it from memory each time.
template <typename T>
WM_INLINE T in_register(T v) {
#if WM_SIMD == 512
  asm("" : "+v"(v));
#else
  asm("" : "+x"(v));
#endif
  return v;
}
#endif

#if WM_SIMD == 512
WM_INLINE V fused(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
// Of four vectors at once.
WM_INLINE void totals(const V* v, float* out) {
  const __m512 *x = reinterpret_cast<const __m512*>(v);
  const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
  const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
  const __m512 c = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
  const __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1)));
}
WM_INLINE V spread(const float* s, const int32_t* at, bool) {
  return (V)_mm512_permutexvar_ps(_mm512_loadu_si512(at), _mm512_loadu_ps(s));
}
#elif WM_SIMD == 256
WM_INLINE V fused(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
// few: AMD's cores before Zen 4 take twice as long where floats come from the other half of a register.
WM_INLINE V spread(const float* s, const int32_t* at, bool few) {
  const __m256i which = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  if (few) return (V)_mm256_permutevar_ps(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(s)), which);
  return (V)_mm256_permutevar8x32_ps(_mm256_loadu_ps(s), which);
}
WM_INLINE float total(V v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
// Of four vectors at once, each as `total` has it.
WM_INLINE void totals(const V* v, float* out) {
  const auto halves = [&](int i) __attribute__((always_inline)) {
    return _mm_add_ps(_mm256_castps256_ps128((__m256)v[i]), _mm256_extractf128_ps((__m256)v[i], 1));
  };
  const __m128 a = halves(0), b = halves(1), c = halves(2), d = halves(3);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}
#else
WM_INLINE V fused(V a, V b, V c) { return a * b + c; }
WM_INLINE float total(V v) { return (v[0] + v[2]) + (v[1] + v[3]); }
WM_INLINE V spread(const float* s, const int32_t* at, bool) {
#if WM_ROUNDED
  V v;
  for (int l = 0; l < LANES; ++l) v[l] = s[at[l] < 0 ? 0 : at[l]];
  return v;
#else
  return V{} + s[at[0]];  // a group is one `grain`
#endif
}
#endif

#if WM_SIMD == 0
WM_INLINE void totals(const V* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = total(v[i]);
}
#endif

// 0 in lanes that have no element: what they would be scaled by is another's, and may be infinite.
WM_INLINE V of_lanes_there(V v, const int32_t* at) {
  I there;
  std::memcpy(&there, at, sizeof there);
  return (V)((I)v & (there >= 0));
}

// N bytes of which the first `count` are p's, the others 0.
template <int N>
WM_INLINE void first_of(const uint8_t* p, int64_t count, uint8_t* out) {
#if WM_SIMD == 512
  for (int i = 0; i < N; i += 64) {  // as registers: what is read from there soon would wait for smaller pieces
    const int64_t some = count - i < 0 ? 0 : count - i < 64 ? count - i : 64;
    const __mmask64 there = some == 64 ? ~0ull : (1ull << some) - 1;
    _mm512_mask_storeu_epi8(out + i, N - i < 64 ? (1ull << (N - i) % 64) - 1 : ~0ull, _mm512_maskz_loadu_epi8(there, p + i));
  }
#else
  std::memset(out, 0, N);
  std::memcpy(out, p, size_t(count));
#endif
}

#if WM_SIMD == 512  // Two rows in a register, see Part::HALVES.
// The first `count` bytes of each, 32 at most, in a half of 64; the others 0.
WM_INLINE void first_of_both(const uint8_t* lower, const uint8_t* upper, int64_t count, uint8_t* out) {
  const __mmask32 there = __mmask32((1ull << count) - 1);
  const __m512i low = _mm512_castsi256_si512(_mm256_maskz_loadu_epi8(there, lower));
  _mm512_storeu_si512(out, _mm512_inserti64x4(low, _mm256_maskz_loadu_epi8(there, upper), 1));
}
template <typename T>
WM_INLINE void in_both(const void* lower, T& halves) {
  halves = (T)_mm512_broadcast_f32x8(_mm256_loadu_ps(static_cast<const float*>(lower)));
}
WM_INLINE V lower_half(V v) { return (V)_mm512_maskz_mov_ps(0xFF, (__m512)v); }
WM_INLINE V upper_half(V v) { return (V)_mm512_maskz_shuffle_f32x4(0xFF, (__m512)v, (__m512)v, 0xEE); }
#elif WM_SIMD == 256  // Halves are of halves of a register, see gemv_fixed_avx2.h.
WM_INLINE __m256i in_both(const void* stored) {
  return _mm256_castpd_si256(_mm256_movedup_pd(_mm256_load_pd(static_cast<const double*>(stored))));
}
WM_INLINE V lower_half(V v) { return (V)_mm256_unpacklo_pd((__m256d)v, _mm256_setzero_pd()); }
WM_INLINE V upper_half(V v) { return (V)_mm256_unpackhi_pd((__m256d)v, _mm256_setzero_pd()); }
#endif

// Of `groups` vectors.
WM_INLINE float total_of(const float* v, int64_t groups) {
  V four[4] = {};
  float out[4];
  for (int64_t g = 0; g < groups; ++g) four[0] += load(v + g * LANES);
  totals(four, out);
  return out[0];
}
