// Integers of four and eight bits times float32 activations by way of integers, for AVX-512 with VNNI: four products of
// bytes and their sum are one instruction, where float32 takes a look-up, a shift and a product for each.
//
// The eight activations that a lane meets, four if codes have eight bits, become integers of 24 bits that share a power of
// two, the least in which the largest of them fits: each is off by 2^-24 of twice that largest one at most, which is what
// float32 sums are off by. An integer is three digits of base 256, from -128 to 127; codes are moved up where they may be
// negative. All sums are exact until a lane's becomes float32, to be scaled. bfloat16 activations within 2^-15 of the
// largest are exact.
//
// One activation may be so large that what its neighbours are off by is much to all the others, and counts if its own
// weight is 0. Where it is more than those of its row together, float32 does the row, as where a value is not finite.

struct Digits {
  static constexpr int COUNT = 3, BITS = 8 * COUNT - 1;
  static constexpr int LARGEST = 127 << 16 | 127 << 8 | 127;
};

// What a group of activations is when it is in order, all of it for lanes: digits of those that meet the lower codes of
// bytes and of those that meet the upper ones, the highest first; what they are times; and, to be added to the sums, what
// moving codes up is made good by.
// NARROW: the sums of all digits together fit 32 bits.
template <int CODES, bool NARROW>  // of a byte
struct alignas(64) FixedGroup {
  __m512i digits[Digits::COUNT][CODES];
  __m512 unit;
  __m512i moved[NARROW ? 1 : 2];
};

// Sums of all digits. `add`: what is given and the products with one of them; the last ones are summed apart, so that
// others do not wait for them, and begin at `moved`.
template <class Add>
WM_INLINE __m512i of_all_digits(__m512i moved, const Add& add) {
  const __m512i high = add(_mm512_slli_epi32(add(_mm512_setzero_si512(), 0), 8), 1), low = add(moved, 2);
  return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

template <WmElement E>
struct Integers {
  static_assert(bits_of(E) == 8 || E == WM_E2M1 || bits_of(E) == 4, "integers, or halves of such");
  using X = float;
  using Codes = __m512i;
  static constexpr bool PLAIN = false, HALVES = false, FIXED = true, FOUR_BITS = bits_of(E) == 4, NARROW = FOUR_BITS;
  static constexpr int TAKES = set_of(Scaled::ROW, Scaled::LANES);
  static constexpr int IN_BYTE = FOUR_BITS ? 2 : 1, OWN = 4 * IN_BYTE;  // elements of a lane
  static constexpr int VECS = OWN, GROUP = 16 * OWN, NBYTES = 64, GRAIN = OWN;  // those of the float32 loader
  static constexpr int UP = E == WM_E2M1 ? 12 : E == WM_INT4 ? 8 : E == WM_UINT4 || E == WM_UINT8 ? 0 : 128;
  using Group = FixedGroup<IN_BYTE, NARROW>;
  static constexpr int64_t first_of(int64_t g, int sixteen) { return g + 16 * sixteen; }
  static constexpr int ARRANGED = sizeof(Group) / sizeof(X);
  static_assert(ARRANGED >= GROUP, "float32 may be arranged there instead");
  float unit = E == WM_E2M1 ? 0.5f : element_values(E)[1];
  __m512i table;  // four times over, as look-ups take six bits

  explicit Integers(WmElement) {
    alignas(64) uint8_t of[64] = {};
    if constexpr (FOUR_BITS)
      for (int c = 0; c < 64; ++c) of[c] = uint8_t(element_values(E)[c % 16] / unit + UP);
    table = _mm512_load_si512(of);
  }
  WM_METHOD Codes load(const uint8_t* p) const { return in_register(_mm512_loadu_si512(p)); }
  // What is multiplied: of a byte of four bits each, the lower ones or the upper ones.
  WM_METHOD __m512i bytes(Codes c, bool upper) const {
    if constexpr (!FOUR_BITS) return UP ? _mm512_xor_si512(c, _mm512_set1_epi8(char(UP))) : c;
    if (upper) c = _mm512_srli_epi32(c, 4);
    if constexpr (E == WM_E2M1) return _mm512_permutexvar_epi8(c, table);
    return _mm512_ternarylogic_epi32(c, _mm512_set1_epi8(UP), _mm512_set1_epi8(15), 0x28);  // (c ^ UP) & 15
  }
  // A vector of a group; of the first half of lanes, in both halves, if two rows are in a register.
  template <bool TWO_ROWS>
  WM_INLINE __m512i of(const void* vector) {
    return TWO_ROWS ? _mm512_broadcast_i64x4(_mm256_load_si256(static_cast<const __m256i*>(vector)))
                    : _mm512_load_si512(vector);
  }
  // What each lane's products sum up to, added to `sum`.
  template <bool TWO_ROWS>
  WM_METHOD V products(Codes c, const X* x, V sum, bool first) const {
    const Group& q = *reinterpret_cast<const Group*>(x);
    const auto vector = [](const auto& stored) __attribute__((always_inline)) { return of<TWO_ROWS>(&stored); };
    const auto add = [&](__m512i found, int digit) __attribute__((always_inline)) {
      for (int i = 0; i < IN_BYTE; ++i) found = _mm512_dpbusd_epi32(found, bytes(c, i == 1), vector(q.digits[digit][i]));
      return found;
    };
    const __m512i none = _mm512_setzero_si512();
    const V times = (V)vector(q.unit);
    V v;
    if constexpr (NARROW) {
      v = (V)_mm512_cvtepi32_ps(of_all_digits(UP ? vector(q.moved[0]) : none, add));
    } else {
      const __m512i high = add(_mm512_slli_epi32(add(UP ? vector(q.moved[0]) : none, 0), 8), 1);
      const __m512i low = add(UP ? vector(q.moved[1]) : none, 2);
      v = fused((V)_mm512_cvtepi32_ps(high), V{} + 256.0f, (V)_mm512_cvtepi32_ps(low));
    }
    return first ? v * times : fused(v, times, sum);
  }
};

#include "gemv_bytes.h"

// What four or eight neighbours, those of a lane, have at most, for all of them.
template <int OWN>
WM_INLINE __m512 most_of_own(__m512 v) {
  v = _mm512_max_ps(v, _mm512_permute_ps(v, 0xB1));
  v = _mm512_max_ps(v, _mm512_permute_ps(v, 0x4E));
  return OWN == 4 ? v : _mm512_max_ps(v, _mm512_shuffle_f32x4(v, v, 0xB1));
}

// Whether float32 would do no better: all are finite, not all of them tiny, and none outweighs the others.
template <class L>
static bool arrange_fixed(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  constexpr int OWN = L::OWN, OF_VECTOR = 16 / OWN;  // lanes
  constexpr float LEAST = 0x1p-80f;  // of the largest: powers of two have an end
  // The power of two: past what the largest is in digits, the next; not so small that its inverse were infinite.
  constexpr float ROOM = float(1 << (Digits::BITS)) / float(Digits::LARGEST);
  const __m512i below = _mm512_set1_epi32((Digits::BITS - 1) << 23);
  const __m512i inverted = _mm512_add_epi32(_mm512_set1_epi32(254 << 23), below);
  const __m512i own = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                         _mm512_set1_epi32(OWN));
  const __mmask16 lanes = __mmask16((1u << OF_VECTOR) - 1);
  typename L::Group* const groups = static_cast<typename L::Group*>(out);
  __mmask16 endless = 0;
  __m512 largest = _mm512_setzero_ps(), all = largest;
  typename L::Group* to = groups;
  for (int64_t g = 0; g < n; g += L::GROUP, ++to) {
    float* const units = reinterpret_cast<float*>(&to->unit);
    for (int i = 0; i < L::GROUP / 16; ++i) {
      const __m512 v = sixteen_of(x, from_bf16, L::first_of(g, i), n), size = _mm512_abs_ps(v);
      endless |= _mm512_fpclass_ps_mask(v, 0x99);  // NaN of either kind, infinities
      largest = _mm512_max_ps(largest, size), all = _mm512_add_ps(all, size);
      __m512i power = _mm512_castps_si512(_mm512_mul_ps(most_of_own<OWN>(size), _mm512_set1_ps(ROOM)));
      power = _mm512_max_epi32(_mm512_and_si512(power, _mm512_set1_epi32(0x7F800000)), _mm512_set1_epi32(23 << 23));
      __m512i rest = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_castsi512_ps(_mm512_sub_epi32(inverted, power))));
      for (int digit = Digits::COUNT - 1; digit >= 0; --digit) {
        const __m128i last = _mm512_cvtepi32_epi8(rest);
        put_bytes<L::FOUR_BITS>(last, i, to->digits[digit]);
        rest = _mm512_srai_epi32(_mm512_sub_epi32(rest, _mm512_cvtepi8_epi32(last)), 8);
      }
      const __m512i unit = _mm512_permutexvar_epi32(own, _mm512_sub_epi32(power, below));
      _mm512_mask_storeu_epi32(units + OF_VECTOR * i, lanes, unit);
      if (sums == nullptr) continue;
      __m512 sum = _mm512_setzero_ps();
      for (int j = 0; j < OWN; ++j)
        sum = _mm512_add_ps(sum, _mm512_permutexvar_ps(_mm512_add_epi32(own, _mm512_set1_epi32(j)), v));
      _mm512_mask_storeu_ps(sums + g / OWN + OF_VECTOR * i, lanes, sum);
    }
  }
  if (L::UP != 0)
    for (typename L::Group* of = groups; of != to; ++of) {  // not at once: what was stored in pieces is read whole
      __m512i total[Digits::COUNT];
      for (int digit = 0; digit < Digits::COUNT; ++digit) {
        __m512i sum = _mm512_setzero_si512();
        for (const __m512i& some : of->digits[digit]) sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(char(L::UP)), some);
        total[digit] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
      }
      if constexpr (L::NARROW) {
        of->moved[0] = _mm512_add_epi32(
            _mm512_slli_epi32(_mm512_add_epi32(_mm512_slli_epi32(total[0], 8), total[1]), 8), total[2]);
      } else {  // before the first digit is times 256, as much of the second's as is a multiple of that
        of->moved[0] = _mm512_add_epi32(total[0], _mm512_srai_epi32(total[1], 8));
        const __m512i left = _mm512_and_si512(total[1], _mm512_set1_epi32(255));
        of->moved[1] = _mm512_add_epi32(_mm512_slli_epi32(left, 8), total[2]);
      }
    }
  const float most = _mm512_reduce_max_ps(largest);
  return endless == 0 && (most == 0 || most >= LEAST) && 2 * most <= _mm512_reduce_add_ps(all);
}
