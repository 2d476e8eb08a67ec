// Signed integers of four and eight bits times float32 activations by way of integers, for AVX2: a product of pairs of
// bytes, or of halves, does in one instruction what float32 takes a look-up, a shift and a product each for.
//
// Activations of UNIT columns become integers that share a power of two: of 24 bits, three digits of base 256 from -128 to
// 127, for elements of four bits, which are moved up where they may be negative; of 27 bits, two halves, for those of
// eight. Each is off by 2^-24, or 2^-27, of twice the largest of its UNIT at most, which is what float32 sums are off by.
// Sums of a lane are exact until they become float32, to be scaled. Rows that gemv_fixed.h leaves to float32 are left here
// too, and those whose largest is past 2^60 or below 2^-60.

template <WmElement E>
struct Integers {
  static_assert(bits_of(E) == 8 || E == WM_E2M1 || bits_of(E) == 4, "integers, or halves of such");
  using X = float;
  static constexpr bool PLAIN = false, HALVES = false, FIXED = true, FOUR_BITS = bits_of(E) == 4;
  static constexpr int TAKES = set_of(Scaled::UNITS);  // where a row has one scale, float32 is as fast
  static constexpr int OWN = FOUR_BITS ? 8 : 4;  // elements of a lane
  static constexpr int VECS = OWN, GROUP = LANES * OWN, NBYTES = 32, GRAIN = OWN;  // those of the float32 loader
  static constexpr int UP = E == WM_E2M1 ? 12 : 8;
  static constexpr int DIGITS = 3, BITS = FOUR_BITS ? 8 * DIGITS - 1 : 26, LOW = 12;
  static constexpr int LARGEST = FOUR_BITS ? 127 << 16 | 127 << 8 | 127 : 1 << BITS;
  // What a group of activations is: digits, the highest first, of those that meet lower codes of bytes and of those that meet
  // upper ones; and what moving codes up is made good by.
  struct Four {
    int8_t digits[DIGITS][2][32];
    int32_t moved[LANES], unused[LANES];
  };
  struct Eight {
    int16_t high[2][16], low[2][16];
  };
  using Group = std::conditional_t<FOUR_BITS, Four, Eight>;
  static constexpr int ARRANGED = sizeof(Group) / sizeof(X);
  static_assert(ARRANGED >= GROUP, "float32 may be arranged there instead");
  // Of the power of two by which integers are larger than activations, what units leave to the end: scales times units are
  // neither next to nothing nor infinite before sums are.
  static constexpr int HALF = (BITS - 1) / 2;
  static constexpr float ONE = E == WM_MXINT8 ? 0x1p-6f : E == WM_E2M1 ? 0.5f : 1;  // of codes as integers
  float unit = ONE / float(1 << HALF);
  __m256i table;

  explicit Integers(WmElement) {
    alignas(16) uint8_t of[16];
    for (int c = 0; c < 16; ++c) of[c] = FOUR_BITS ? uint8_t(element_values(E)[c] / ONE + UP) : 0;
    table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(of)));
  }
  struct Codes {
    __m256i of[2];  // bytes of the lower and of the upper codes; or halves of the first and of the last ones
  };
  WM_METHOD Codes load(const uint8_t* p) const {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), kept = _mm256_set1_epi8(15);
    if constexpr (!FOUR_BITS)
      return {{_mm256_cvtepi8_epi16(_mm256_castsi256_si128(all)), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(all, 1))}};
    return {{_mm256_shuffle_epi8(table, _mm256_and_si256(all, kept)),
             _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(all, 4), kept))}};
  }
  WM_INLINE __m256i vector(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
  // What each lane's products sum up to; of whichever elements of a group, as all have one unit or are of one lane.
  WM_METHOD V whole(const Codes& c, const X* x) const {
    const Group& q = *reinterpret_cast<const Group*>(x);
    if constexpr (FOUR_BITS) {
      const auto digit = [&](int i, int times) __attribute__((always_inline)) {
        const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(c.of[0], vector(q.digits[i][0])),
                                               _mm256_maddubs_epi16(c.of[1], vector(q.digits[i][1])));
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(short(times)));
      };
      const __m256i upper = _mm256_slli_epi32(_mm256_add_epi32(digit(0, 256), digit(1, 1)), 8);
      const __m256i lower = _mm256_add_epi32(digit(2, 1), vector(q.moved));
      return (V)_mm256_cvtepi32_ps(_mm256_add_epi32(upper, lower));
    } else {
      const auto part = [&](const int16_t (&of)[2][16]) __attribute__((always_inline)) {
        return (V)_mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(c.of[0], vector(of[0])),
                                                      _mm256_madd_epi16(c.of[1], vector(of[1]))));
      };
      return fused(part(q.high), V{} + float(1 << LOW), part(q.low));
    }
  }
  WM_INLINE V scales(const float* s, int64_t g) { return of_units<FOUR_BITS>(s, g); }
};

// Whether float32 would do no better, see gemv_fixed.h.
template <class L>
static bool arrange_fixed(const void* x, bool from_bf16, int64_t n, void* out, float*) {  // signed codes want no sums
  constexpr float LEAST = 0x1p-60f, MOST = 0x1p60f;  // of the largest: scales are times its unit, and float32 has ends
  constexpr float ROOM = float(1 << L::BITS) / float(L::LARGEST);
  constexpr int32_t BELOW = (L::BITS - 1) << 23;
  typename L::Group* to = static_cast<typename L::Group*>(out);
  const int64_t groups = (n + L::GROUP - 1) / L::GROUP;
  float *units = static_cast<float*>(out) + groups * L::ARRANGED, largest = 0, all = 0;
  for (int64_t k = 0; k < groups * L::GROUP; k += UNIT) {
    const int64_t count = n - k < UNIT ? (n > k ? n - k : 0) : UNIT;
    alignas(32) float here[UNIT] = {};
    alignas(32) int32_t whole[UNIT];
    if (!from_bf16) std::memcpy(here, static_cast<const float*>(x) + k, size_t(count) * 4);
    else
      for (int64_t i = 0; i < count; ++i) here[i] = widened(static_cast<const Bf16*>(x)[k + i]);
    I bits{};
    V sum{};
    for (int i = 0; i < UNIT; i += LANES) {
      I own;
      std::memcpy(&own, here + i, sizeof own);
      own &= 0x7FFFFFFF;
      bits = own > bits ? own : bits;
      sum += (V)own;
    }
    int32_t most = 0;
    for (int l = 0; l < LANES; ++l) most = bits[l] > most ? bits[l] : most;
    if (most >= 0x7F800000) return false;
    float top, times, unit;
    std::memcpy(&top, &most, 4);
    all += total(sum), largest = top > largest ? top : largest;
    // The power of two: past what the largest is in digits, the next; not so small that its inverse were infinite.
    const float room = top * ROOM;
    int32_t power;
    std::memcpy(&power, &room, 4);
    power = std::max(power & 0x7F800000, BELOW + (1 << 23));
    const int32_t up = (254 << 23) - (power - BELOW), down = power - BELOW + (L::HALF << 23);
    std::memcpy(&times, &up, 4);
    std::memcpy(&unit, &down, 4);
    *units++ = unit;
    for (int i = 0; i < UNIT; i += LANES)
      _mm256_store_si256(reinterpret_cast<__m256i*>(whole + i),
                         _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(here + i), _mm256_set1_ps(times))));
    typename L::Group& group = to[k / L::GROUP];
    if constexpr (L::FOUR_BITS) {
      const int64_t at = k % L::GROUP / 2;
      for (int i = 0; i < UNIT; ++i) {
        int32_t rest = whole[i];
        for (int digit = L::DIGITS - 1; digit >= 0; --digit) {
          const int8_t last = int8_t(rest);
          group.digits[digit][i % 2][at + i / 2] = last;
          rest = (rest - last) >> 8;
        }
      }
      for (int l = 0; l < UNIT / L::OWN; ++l) {
        int32_t sum_of = 0;
        for (int j = 0; j < L::OWN; ++j) sum_of += whole[l * L::OWN + j];
        group.moved[at / 4 + l] = -L::UP * sum_of;
      }
    } else {
      for (int i = 0; i < UNIT; ++i) {
        const int32_t high = (whole[i] + (1 << (L::LOW - 1))) >> L::LOW;
        group.high[i / 16][i % 16] = int16_t(high);
        group.low[i / 16][i % 16] = int16_t(whole[i] - high * (1 << L::LOW));
      }
    }
  }
  return (largest == 0 || (largest >= LEAST && largest <= MOST)) && 2 * largest <= all;
}
