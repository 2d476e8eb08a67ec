// Integers of four and eight bits times activations that are rounded to integers of eight: those of gemv.h that are not
// exact. Activations are what they are in gemm_int.h: -127 … 127 in blocks of 32 columns, in a unit in which the largest
// is 127. Sums of a lane are exact until they become float32, to be scaled. A block that holds what is not finite makes
// its row NaN.
//
// Products of bytes take one side without a sign: codes are moved up to have none, and the sums begin at what makes that
// good; or, with AVX2 and eight bits, where pairs of products must fit 16 bits, codes lose their sign to the activations.

// What a group of activations is when it is in order: integers that meet the lower codes of bytes and those that meet the
// upper ones; what they are times; what is added to sums because codes are moved up.
template <int CODES>  // of a byte
struct alignas(4 * LANES) RoundedGroup {
  int8_t codes[CODES][4 * LANES];
  float unit[LANES];
  int32_t moved[LANES];
};

template <WmElement E>
struct Integers {
  static_assert(bits_of(E) == 8 || E == WM_E2M1 || bits_of(E) == 4, "integers, or halves of such");
  using X = float;
  static constexpr bool PLAIN = false, HALVES = false, FIXED = true, FOUR_BITS = bits_of(E) == 4;
  static constexpr int TAKES = set_of(Scaled::ROW, Scaled::LANES);
  static constexpr int IN_BYTE = FOUR_BITS ? 2 : 1, OWN = 4 * IN_BYTE;  // elements of a lane
  static constexpr int VECS = OWN, GROUP = LANES * OWN, NBYTES = 4 * LANES, GRAIN = OWN;
  // So much are codes moved up.
  static constexpr bool UNSIGNED = E == WM_UINT4 || E == WM_UINT8;
  static constexpr int UP = WM_SIMD == 0               ? 0
                            : E == WM_E2M1             ? 12
                            : E == WM_INT4             ? 8
                            : E == WM_UINT4            ? 0
                            : WM_SIMD == 256           ? (UNSIGNED ? -128 : 0)
                                                       : (UNSIGNED ? 0 : 128);
  using Group = RoundedGroup<IN_BYTE>;
  static constexpr int ARRANGED = sizeof(Group) / sizeof(X);
  float unit = E == WM_E2M1 ? 0.5f : element_values(E)[1];

#if WM_SIMD == 0
  struct Codes {
    uint8_t of[NBYTES];
  };
  explicit Integers(WmElement) {}
  WM_METHOD Codes load(const uint8_t* p) const {
    Codes c;
    std::memcpy(&c, p, sizeof c);
    return c;
  }
  WM_INLINE int32_t value(uint32_t code) {
    if (!FOUR_BITS) return UNSIGNED ? int32_t(code) : int8_t(code);
    static constexpr int8_t HALVES_OF[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    if (E == WM_E2M1) return HALVES_OF[code];
    return UNSIGNED ? int32_t(code) : int32_t(code ^ 8) - 8;
  }
  WM_METHOD I integers(const Codes& c, const Group& q) const {
    I sum = {};
    for (int l = 0; l < LANES; ++l)
      for (int i = 4 * l; i < 4 * l + 4; ++i) {
        sum[l] += value(FOUR_BITS ? c.of[i] & 15 : c.of[i]) * q.codes[0][i];
        if (FOUR_BITS) sum[l] += value(c.of[i] >> 4) * q.codes[IN_BYTE - 1][i];
      }
    return sum;
  }
#elif WM_SIMD == 256
  using Codes = __m256i;
  __m256i table;
  explicit Integers(WmElement) {
    alignas(16) uint8_t of[16] = {};
    if constexpr (E == WM_E2M1)
      for (int c = 0; c < 16; ++c) of[c] = uint8_t(element_values(E)[c] / 0.5f + UP);
    table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(of)));
  }
  WM_METHOD Codes load(const uint8_t* p) const { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  WM_METHOD __m256i half(Codes c, bool upper) const {
    if (upper) c = _mm256_srli_epi16(c, 4);
    c = _mm256_and_si256(c, _mm256_set1_epi8(15));
    if constexpr (E == WM_E2M1) return _mm256_shuffle_epi8(table, c);
    return UP ? _mm256_xor_si256(c, _mm256_set1_epi8(UP)) : c;
  }
  WM_METHOD I integers(Codes c, const Group& q) const {
    const auto codes = [&](int i) __attribute__((always_inline)) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(q.codes[i]));
    };
    __m256i pairs;
    if constexpr (FOUR_BITS) {
      pairs = _mm256_add_epi16(_mm256_maddubs_epi16(half(c, false), codes(0)),
                               _mm256_maddubs_epi16(half(c, true), codes(IN_BYTE - 1)));
    } else {
      if (UP) c = _mm256_xor_si256(c, _mm256_set1_epi8(-128));
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(codes(0), c));
    }
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    if (!UP) return (I)fours;
    return (I)_mm256_add_epi32(fours, _mm256_load_si256(reinterpret_cast<const __m256i*>(q.moved)));
  }
#else
  using Codes = __m512i;
  __m512i table;  // four times over, as look-ups take six bits
  explicit Integers(WmElement) {
    alignas(64) uint8_t of[64] = {};
    if constexpr (E == WM_E2M1)
      for (int c = 0; c < 64; ++c) of[c] = uint8_t(element_values(E)[c % 16] / 0.5f + UP);
    table = _mm512_load_si512(of);
  }
  WM_METHOD Codes load(const uint8_t* p) const { return in_register(_mm512_loadu_si512(p)); }
  WM_METHOD __m512i bytes(Codes c, bool upper) const {
    if constexpr (!FOUR_BITS) return UP ? _mm512_xor_si512(c, _mm512_set1_epi8(char(UP))) : c;
    if (upper) c = _mm512_srli_epi32(c, 4);
    if constexpr (E == WM_E2M1) return _mm512_permutexvar_epi8(c, table);
    return _mm512_ternarylogic_epi32(c, _mm512_set1_epi8(UP), _mm512_set1_epi8(15), 0x28);  // (c ^ UP) & 15
  }
#endif

  // What each lane's products sum up to, times its unit, added to `sum`. TWO_ROWS: of the first half of the lanes, in both
  // halves.
  template <bool TWO_ROWS>
  WM_METHOD V products(const Codes& c, const X* x, V sum, bool first) const {
    const Group& q = *reinterpret_cast<const Group*>(x);
#if WM_SIMD == 512
    const auto vector = [](const auto& stored) __attribute__((always_inline)) {
      return TWO_ROWS ? _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(&stored)))
                      : _mm512_load_si512(&stored);
    };
    __m512i found = UP ? vector(q.moved) : _mm512_setzero_si512();
    for (int i = 0; i < IN_BYTE; ++i) found = _mm512_dpbusd_epi32(found, bytes(c, i == 1), vector(q.codes[i]));
    const V v = (V)_mm512_cvtepi32_ps(found), times = (V)vector(q.unit);
#else
    const V v = __builtin_convertvector(integers(c, q), V), times = gemv::load(q.unit);
#endif
    return first ? v * times : fused(v, times, sum);
  }
};

// What a block's integers are in, by the bits of the largest of its values without their signs; and the inverse. A NaN
// where not all are finite.
struct Step {
  float unit, inverse;
};
WM_INLINE Step step_of(int32_t largest) {
  float top;
  std::memcpy(&top, &largest, 4);
  if (largest >= 0x7F800000) return {__builtin_nanf(""), 0};
  if (top >= 0x1p-120f) return {top * (1 / 127.0f), 127.0f / top};
  return {0, 0};  // not from next to nothing, of which the inverse were infinite
}

#if WM_SIMD == 512
#include "gemv_bytes.h"

// To integers, block by block; always possible.
template <class L>
static bool arrange_fixed(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  constexpr int IN_BLOCK = UNIT / L::OWN;  // lanes
  typename L::Group* const groups = static_cast<typename L::Group*>(out);
  typename L::Group* to = groups;
  for (int64_t g = 0; g < n; g += L::GROUP, ++to)
    for (int b = 0; b < L::GROUP / UNIT; ++b) {
      const __m512 v[] = {sixteen_of(x, from_bf16, g + UNIT * b, n), sixteen_of(x, from_bf16, g + UNIT * b + 16, n)};
      const __m512 most = _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(v[0])),
                                                               _mm512_castps_si512(_mm512_abs_ps(v[1]))));
      const Step step = step_of(_mm512_reduce_max_epi32(_mm512_castps_si512(most)));
      const __mmask16 all = step.unit == step.unit ? 0xFFFF : 0;
      for (int i = 0; i < 2; ++i) {
        const __m512i codes = _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(v[i], _mm512_set1_ps(step.inverse)));
        put_bytes<L::FOUR_BITS>(_mm512_cvtepi32_epi8(codes), 2 * b + i, to->codes);
      }
      std::fill_n(to->unit + b * IN_BLOCK, IN_BLOCK, step.unit);
    }
  for (typename L::Group* of = groups; of != to; ++of) {  // not at once: what was stored in pieces is read whole
    __m512i total = _mm512_setzero_si512();
    for (const auto& codes : of->codes) total = _mm512_dpbusd_epi32(total, _mm512_set1_epi8(1), _mm512_load_si512(codes));
    _mm512_store_si512(of->moved, _mm512_mullo_epi32(total, _mm512_set1_epi32(-L::UP)));
    if (sums)
      _mm512_storeu_ps(sums + (of - groups) * LANES, _mm512_mul_ps(_mm512_cvtepi32_ps(total), _mm512_load_ps(of->unit)));
  }
  return true;
}
#elif WM_SIMD == 256
#include "gemv_units_avx2.h"

// To integers, block by block; always possible.
template <class L>
static bool arrange_fixed(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  typename L::Group* const groups = static_cast<typename L::Group*>(out);
  V ignored{};
  for (int64_t k = 0; k < (n + L::GROUP - 1) / L::GROUP * L::GROUP; k += UNIT) {
    alignas(32) float here[UNIT];
    const float* v = unit_at(x, from_bf16, k, n, here);
    const auto [unit, inverse] = step_of(largest_of(v, ignored));
    const Unit u = unit == unit ? integers_of(v, inverse) : Unit{};
    const int64_t lane = k / L::OWN;
    const int which = int(lane % LANES);
    typename L::Group& group = groups[lane / LANES];
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(u.of[0], u.of[1]), _mm256_packs_epi32(u.of[2], u.of[3]));
    if constexpr (L::FOUR_BITS) {  // even elements meet lower codes, odd ones upper ones
      const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
      bytes = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(apart)), 0xD8);
      put(group.codes[0] + 4 * which, _mm256_castsi256_si128(bytes));
      put(group.codes[L::IN_BYTE - 1] + 4 * which, _mm256_extracti128_si256(bytes, 1));
    } else {
      _mm256_store_si256(reinterpret_cast<__m256i*>(group.codes[0]), bytes);
    }
    put_lanes<L::OWN>(u, unit, L::UP, group.unit + which, group.moved + which, sums ? sums + lane : nullptr);
  }
  return true;
}
#else
// To integers, block by block; always possible.
template <class L>
static bool arrange_fixed(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  typename L::Group* to = static_cast<typename L::Group*>(out);
  constexpr int IN_BLOCK = UNIT / L::OWN;  // lanes
  const int64_t lanes = (n + L::GROUP - 1) / L::GROUP * LANES;
  for (int64_t first = 0; first < lanes; first += IN_BLOCK) {
    const int64_t k = first * L::OWN, count = n - k < UNIT ? (n > k ? n - k : 0) : UNIT;
    float here[UNIT] = {};
    if (!from_bf16) std::memcpy(here, static_cast<const float*>(x) + k, size_t(count) * 4);
    else
      for (int64_t i = 0; i < count; ++i) here[i] = widened(static_cast<const Bf16*>(x)[k + i]);
    int32_t largest = 0, codes[UNIT];
    for (float v : here) {
      int32_t bits;
      std::memcpy(&bits, &v, 4);
      bits &= 0x7FFFFFFF;
      largest = largest < bits ? bits : largest;
    }
    const auto [unit, inverse] = step_of(largest);
    for (int i = 0; i < UNIT; ++i) {
      const float v = here[i] * inverse + 12582912.0f;  // 1.5 · 2²³, whose last place is 1: rounded to even
      std::memcpy(codes + i, &v, 4);
      codes[i] = unit == unit ? codes[i] - 0x4B400000 : 0;
    }
    for (int l = 0; l < IN_BLOCK && first + l < lanes; ++l) {
      typename L::Group& group = to[(first + l) / LANES];
      const int64_t lane = (first + l) % LANES;
      int32_t total = 0;
      for (int j = 0; j < L::OWN; ++j) {
        const int32_t code = codes[l * L::OWN + j];
        group.codes[j % L::IN_BYTE][lane * 4 + j / L::IN_BYTE] = int8_t(code);
        total += code;
      }
      group.unit[lane] = unit, group.moved[lane] = -L::UP * total;
      if (sums) sums[first + l] = float(total) * unit;
    }
  }
  return true;
}
#endif
