// The smallest and the largest of neighbouring values, by their bits. Included once for each instruction set, after
// codes.h.

// Storage types as integers in the order of their values (two's complement of what lies below -0), NaN at both ends.
template <typename T>
struct Pattern;
template <>
struct Pattern<Bf16> {
  typedef int16_t I;
  typedef uint16_t U __attribute__((may_alias));
};
template <>
struct Pattern<F16> {
  typedef int16_t I;
  typedef uint16_t U __attribute__((may_alias));
};
template <>
struct Pattern<float> {
  typedef int32_t I;
  typedef uint32_t U __attribute__((may_alias));
};

template <typename I, int BYTES>
struct Register;
#define WM_REGISTER(I, BYTES)                                                  \
  template <>                                                                  \
  struct Register<I, BYTES> {                                                  \
    typedef I V __attribute__((vector_size(BYTES)));                           \
    typedef I InMemory __attribute__((vector_size(BYTES), aligned(sizeof(I)), may_alias)); \
  };
WM_REGISTER(int16_t, 16)
WM_REGISTER(int32_t, 16)
#if WM_SIMD
WM_REGISTER(int16_t, WIDTH)
WM_REGISTER(int32_t, WIDTH)
#endif
#undef WM_REGISTER

template <typename I>
struct Ends {
  I low, high;
};

template <bool BOTH, typename I, int BYTES>
static inline void extend(const void* x, typename Register<I, BYTES>::V& low, typename Register<I, BYTES>::V& high) {
  typename Register<I, BYTES>::V k = *static_cast<const typename Register<I, BYTES>::InMemory*>(x);
  constexpr I most = I(~(I(1) << (8 * sizeof(I) - 1)));
  if (!BOTH) {
    k &= most;
  } else {
    k ^= (k >> (8 * int(sizeof(I)) - 1)) & most;
    low = k < low ? k : low;
  }
  high = k > high ? k : high;
}

// The greatest of a register of 16 bytes.
static inline int16_t greatest(Register<int16_t, 16>::V v) {
#if WM_SIMD
  const __m128i n = _mm_xor_si128((__m128i)v, _mm_set1_epi16(0x7FFF));  // in the opposite order, unsigned
  return int16_t(_mm_cvtsi128_si32(_mm_minpos_epu16(n)) ^ 0x7FFF);
#else
  int16_t m = v[0];
  for (int l = 1; l < 8; ++l) m = v[l] > m ? v[l] : m;
  return m;
#endif
}
static inline int32_t greatest(Register<int32_t, 16>::V v) {
  const int32_t a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}

// Of `count` neighbours; without BOTH their largest magnitude is `high`.
template <bool BOTH, typename T>
static inline Ends<typename Pattern<T>::I> ends_of(const T* x, int64_t count) {
  typedef typename Pattern<T>::I I;
  typedef typename Register<I, 16>::V Q;
  constexpr int NQ = 16 / int(sizeof(I));
  constexpr I most = I(~(I(1) << (8 * sizeof(I) - 1)));
  Q low = Q{} + most, high = ~low;
  int64_t i = 0;
#if WM_SIMD
  typedef typename Register<I, WIDTH>::V V;
  constexpr int N = WIDTH / int(sizeof(I));
  if (count >= N) {
    V lows = V{} + most, highs = ~lows;
    for (; i + N <= count; i += N) extend<BOTH, I, WIDTH>(x + i, lows, highs);
    Q low_parts[WIDTH / 16], high_parts[WIDTH / 16];
    std::memcpy(low_parts, &lows, WIDTH);
    std::memcpy(high_parts, &highs, WIDTH);
    for (int k = 0; k < WIDTH / 16; ++k) {
      low = low_parts[k] < low ? low_parts[k] : low;
      high = high_parts[k] > high ? high_parts[k] : high;
    }
  }
#endif
  for (; i + NQ <= count; i += NQ) extend<BOTH, I, 16>(x + i, low, high);
  I least = BOTH ? I(~greatest(~low)) : I(0), greatest_of = greatest(high);
  for (; i < count; ++i) {
    I k;
    std::memcpy(&k, x + i, sizeof k);
    k = BOTH ? I(k ^ ((k >> (8 * sizeof(I) - 1)) & most)) : I(k & most);
    least = k < least ? k : least;
    greatest_of = k > greatest_of ? k : greatest_of;
  }
  return {least, greatest_of};
}

template <typename T>
static inline int32_t key_of(T v) {
  typename Pattern<T>::I b;
  std::memcpy(&b, &v, sizeof b);
  return int32_t(b) ^ ((int32_t(b) >> 31) & int32_t(0x7FFFFFFFu >> (32 - 8 * sizeof b)));
}
template <typename T>
static inline float value_of(int32_t key) {
  const auto b = typename Pattern<T>::I(key ^ ((key >> 31) & int32_t(0x7FFFFFFFu >> (32 - 8 * sizeof(T)))));
  T v;
  std::memcpy(&v, &b, sizeof v);
  return widened(v);
}
