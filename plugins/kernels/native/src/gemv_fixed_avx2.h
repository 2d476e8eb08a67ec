// Integers of four and eight bits times float32 activations by way of integers, for AVX2: a product of pairs of bytes, or of
// halves, does in one instruction what float32 takes a look-up, a shift and a product each for.
//
// Activations of UNIT columns become integers that share a power of two: of 24 bits, three digits of base 256 from -128 to
// 127, for elements of four bits, which are moved up where they may be negative; of 27 bits, two halves, for those of
// eight. Each is off by 2^-24, or 2^-27, of twice the largest of its UNIT at most, which is what float32 sums are off by.
// Sums of a lane are exact until they become float32, to be scaled. Rows that gemv_fixed.h leaves to float32 are left here
// too.

#include "gemv_units_avx2.h"

// What a group of activations is when it is in order, all of it for lanes: digits, the highest first, of those that meet
// lower codes of the first vector of bytes, its upper ones, and those of the second; what they are times; what moving codes
// up is made good by. A lane has sixteen elements, as many as pairs of products may be summed of in 16 bits: eight of
// either vector.
struct alignas(32) DigitsGroup {
  static constexpr int COUNT = 3, BITS = 8 * COUNT - 1, LARGEST = 127 << 16 | 127 << 8 | 127, OWN = 16;
  int8_t digits[COUNT][4][32];
  float unit[LANES];
  int32_t moved[LANES];
  // The vectors are even and odd lanes of 64 bytes: in both halves of a register first those of the first 32 bytes.
  static constexpr int lane_of(int sixteen) { return (sixteen & 1) | (sixteen & 2) << 1 | (sixteen & 4) >> 1; }
};
// Upper and lower halves, of those that meet even bytes and of those that meet odd ones.
struct alignas(32) HalvesGroup {
  static constexpr int BITS = 26, LARGEST = 1 << BITS, LOW = 12, OWN = 4;
  int16_t halves[2][2][16];
  float unit[LANES];
  static constexpr int lane_of(int four) { return four; }
};

template <WmElement E>
struct Integers {
  static_assert(bits_of(E) == 8 || E == WM_E2M1 || bits_of(E) == 4, "integers, or halves of such");
  using X = float;
  static constexpr bool PLAIN = false, HALVES = false, FIXED = true, FOUR_BITS = bits_of(E) == 4;
  static constexpr bool UNSIGNED = E == WM_UINT4 || E == WM_UINT8;
  static constexpr int TAKES = set_of(Scaled::LANES);  // where a row has one scale, float32 is as fast, and of several faster
  static constexpr int UP = E == WM_E2M1 ? 12 : E == WM_INT4 ? 8 : 0;
  using Group = std::conditional_t<FOUR_BITS, DigitsGroup, HalvesGroup>;
  static constexpr int OWN = Group::OWN, VECS = OWN, GROUP = LANES * OWN, NBYTES = GROUP * bits_of(E) / 8;
  static constexpr int GRAIN = UNIT;  // a unit of activations meets one block: what others meet is not in its largest
  static constexpr int ARRANGED = sizeof(Group) / sizeof(X);
  static constexpr int begins(int lane) { return OWN * Group::lane_of(lane); }  // the inverse of itself
  struct Codes {
    __m256i of[FOUR_BITS ? 2 : 1];
  };
  float unit = E == WM_E2M1 ? 0.5f : element_values(E)[1];
  __m256i table;

  explicit Integers(WmElement) {
    alignas(16) uint8_t of[16] = {};
    if constexpr (E == WM_E2M1)
      for (int c = 0; c < 16; ++c) of[c] = uint8_t(element_values(E)[c] / unit + UP);
    table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(of)));
  }
  WM_METHOD Codes load(const uint8_t* p) const { return load(p, p + 32); }
  // Of which halves are there, of one row or of two.
  WM_METHOD Codes load(const uint8_t* lower, const uint8_t* upper) const {
    const auto bytes = [](const uint8_t* p) __attribute__((always_inline)) {
      const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      return E == WM_INT4 ? _mm256_xor_si256(c, _mm256_set1_epi8(char(0x88))) : c;
    };
    if constexpr (FOUR_BITS) {
      const __m256 a = _mm256_castsi256_ps(bytes(lower)), b = _mm256_castsi256_ps(bytes(upper));
      return {{_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD))}};
    } else {
      return {{bytes(lower)}};
    }
  }
  // What is multiplied: lower codes of bytes, or even bytes; and the others.
  WM_METHOD __m256i first(__m256i c) const {
    if constexpr (!FOUR_BITS)
      return UNSIGNED ? _mm256_and_si256(c, _mm256_set1_epi16(255)) : _mm256_srai_epi16(_mm256_slli_epi16(c, 8), 8);
    c = _mm256_and_si256(c, _mm256_set1_epi8(15));
    return E == WM_E2M1 ? _mm256_shuffle_epi8(table, c) : c;
  }
  WM_METHOD __m256i second(__m256i c) const {
    if constexpr (!FOUR_BITS) return UNSIGNED ? _mm256_srli_epi16(c, 8) : _mm256_srai_epi16(c, 8);
    return first(_mm256_srli_epi16(c, 4));
  }
  // A vector of a group; of the first half of it, for both of two rows.
  template <bool TWO_ROWS>
  WM_INLINE __m256i vector(const void* p) {
    return TWO_ROWS ? in_both(p) : _mm256_load_si256(static_cast<const __m256i*>(p));
  }
  // What each lane's products sum up to, added to `sum`.
  template <bool TWO_ROWS>
  WM_METHOD V products(Codes c, const X* x, V sum, bool alone) const {
    if constexpr (FOUR_BITS) asm("" : "+r"(x));  // digits are read again for each row: there are more than registers
    const Group& q = *reinterpret_cast<const Group*>(x);
    const __m256i one = first(c.of[0]), other = second(c.of[0]);
    const auto vector = [](const void* p) __attribute__((always_inline)) { return Integers::vector<TWO_ROWS>(p); };
    V v;
    if constexpr (FOUR_BITS) {
      const __m256i third = first(c.of[1]), fourth = second(c.of[1]);
      const auto digit = [&](int i, int times) __attribute__((always_inline)) {
        const auto pairs = [&](__m256i a, __m256i b, int j) __attribute__((always_inline)) {
          return _mm256_add_epi16(_mm256_maddubs_epi16(a, vector(q.digits[i][j])),
                                  _mm256_maddubs_epi16(b, vector(q.digits[i][j + 1])));
        };
        const __m256i all = _mm256_add_epi16(pairs(one, other, 0), pairs(third, fourth, 2));
        return _mm256_madd_epi16(all, _mm256_set1_epi16(short(times)));
      };
      const __m256i upper = _mm256_slli_epi32(_mm256_add_epi32(digit(0, 256), digit(1, 1)), 8);
      const __m256i lower = UP ? _mm256_add_epi32(digit(2, 1), vector(q.moved)) : digit(2, 1);
      v = (V)_mm256_cvtepi32_ps(_mm256_add_epi32(upper, lower));
    } else {
      const auto part = [&](const int16_t (&of)[2][16]) __attribute__((always_inline)) {
        return (V)_mm256_cvtepi32_ps(
            _mm256_add_epi32(_mm256_madd_epi16(one, vector(of[0])), _mm256_madd_epi16(other, vector(of[1]))));
      };
      v = fused(part(q.halves[0]), V{} + float(1 << Group::LOW), part(q.halves[1]));
    }
    const V times = (V)vector(q.unit);
    return alone ? v * times : fused(v, times, sum);
  }
};

// Unit `which` of a group, as digits: bytes of each, transposed.
WM_INLINE void put_unit(const Unit& u, int which, DigitsGroup& group) {
  const __m256i middle = _mm256_set1_epi32(0x808080);  // digits go from -128
  const __m256i apart = _mm256_broadcastsi128_si256(_mm_setr_epi8(2, 10, 6, 14, 1, 9, 5, 13, 0, 8, 4, 12, 3, 3, 3, 3));
  __m256i w[4];
  for (int i = 0; i < 4; ++i)
    w[i] = _mm256_shuffle_epi8(_mm256_xor_si256(_mm256_add_epi32(u.of[i], middle), middle), apart);
  const __m256i low[] = {_mm256_unpacklo_epi16(w[0], w[1]), _mm256_unpacklo_epi16(w[2], w[3])};
  const __m256i high[] = {_mm256_unpackhi_epi16(w[0], w[1]), _mm256_unpackhi_epi16(w[2], w[3])};
  const __m256i digits[] = {_mm256_unpacklo_epi32(low[0], low[1]), _mm256_unpackhi_epi32(low[0], low[1]),
                            _mm256_unpacklo_epi32(high[0], high[1])};
  const int lane = DigitsGroup::lane_of(2 * which);
  for (int i = 0; i < DigitsGroup::COUNT; ++i) {  // in order, those of even elements in the lower half: eight to a vector
    const __m256i all = _mm256_shuffle_epi32(_mm256_permute4x64_epi64(digits[i], 0xD8), 0xD8);
    const __m128i even = _mm256_castsi256_si128(all), odd = _mm256_extracti128_si256(all, 1);
    put_half(group.digits[i][0] + 4 * lane, even);
    put_half(group.digits[i][1] + 4 * lane, odd);
    put_half(group.digits[i][2] + 4 * lane, _mm_unpackhi_epi64(even, even));
    put_half(group.digits[i][3] + 4 * lane, _mm_unpackhi_epi64(odd, odd));
  }
}

// As halves, those of even elements first.
WM_INLINE void put_unit(const Unit& u, int, HalvesGroup& group) {
  constexpr int LOW = HalvesGroup::LOW;
  const __m256i apart = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  Unit high, low;
  for (int i = 0; i < 4; ++i) {
    high.of[i] = _mm256_srai_epi32(_mm256_add_epi32(u.of[i], _mm256_set1_epi32(1 << (LOW - 1))), LOW);
    low.of[i] = _mm256_sub_epi32(u.of[i], _mm256_slli_epi32(high.of[i], LOW));
  }
  const auto part = [&](const Unit& p, int16_t (&to)[2][16]) __attribute__((always_inline)) {
    const __m256i a = _mm256_shuffle_epi8(_mm256_packs_epi32(p.of[0], p.of[1]), apart);
    const __m256i b = _mm256_shuffle_epi8(_mm256_packs_epi32(p.of[2], p.of[3]), apart);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to[0]), _mm256_unpacklo_epi64(a, b));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to[1]), _mm256_unpackhi_epi64(a, b));
  };
  part(high, group.halves[0]);
  part(low, group.halves[1]);
}

WM_INLINE int32_t* moved_of(DigitsGroup& group, int lane) { return group.moved + lane; }
WM_INLINE int32_t* moved_of(HalvesGroup&, int) { return nullptr; }

// Whether float32 would do no better, see gemv_fixed.h.
template <class L>
static bool arrange_fixed(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  using Group = typename L::Group;
  constexpr float LEAST = 0x1p-80f;  // of the largest: powers of two have an end
  constexpr float ROOM = float(1 << Group::BITS) / float(Group::LARGEST);
  constexpr int32_t BELOW = (Group::BITS - 1) << 23;
  Group* const groups = static_cast<Group*>(out);
  const int64_t padded = (n + L::GROUP - 1) / L::GROUP * L::GROUP;
  float largest = 0;
  V all{};
  for (int64_t k = 0; k < padded; k += UNIT) {
    alignas(32) float here[UNIT];
    const float* v = unit_at(x, from_bf16, k, n, here);
    const int32_t most = largest_of(v, all);
    if (most >= 0x7F800000) return false;
    float top, times, unit;
    std::memcpy(&top, &most, 4);
    largest = top > largest ? top : largest;
    // The power of two: past what the largest is in digits, the next; not so small that its inverse were infinite.
    const float room = top * ROOM;
    int32_t power;
    std::memcpy(&power, &room, 4);
    power = std::max(power & 0x7F800000, BELOW + (1 << 23));
    const int32_t up = (254 << 23) - (power - BELOW), down = power - BELOW;
    std::memcpy(&times, &up, 4);
    std::memcpy(&unit, &down, 4);
    const Unit u = integers_of(v, times);
    const int64_t lane = k / L::OWN;
    const int which = int(k % L::GROUP / UNIT), first = Group::lane_of(int(lane % LANES));
    Group& group = groups[k / L::GROUP];
    put_unit(u, which, group);
    put_lanes<L::OWN>(u, unit, L::UP, group.unit + first, moved_of(group, first), sums ? sums + lane : nullptr);
  }
  return (largest == 0 || largest >= LEAST) && 2 * largest <= total(all);
}
