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
template <int CODES>  // of a byte
struct alignas(64) FixedGroup {
  __m512i digits[Digits::COUNT][CODES];
  __m512 unit;
  __m512i moved[CODES == 2 ? 1 : 2];
};

template <WmElement E>
struct Integers {
  static_assert(bits_of(E) == 8 || E == WM_E2M1 || bits_of(E) == 4, "integers, or halves of such");
  using X = float;
  using Codes = __m512i;
  static constexpr bool PLAIN = false, HALVES = false, FIXED = true, FOUR_BITS = bits_of(E) == 4;
  static constexpr int TAKES = set_of(Scaled::ROW, Scaled::LANES);
  static constexpr int IN_BYTE = FOUR_BITS ? 2 : 1, OWN = 4 * IN_BYTE;  // elements of a lane
  static constexpr int VECS = OWN, GROUP = 16 * OWN, NBYTES = 64, GRAIN = OWN;  // those of the float32 loader
  static constexpr int UP = E == WM_E2M1 ? 12 : E == WM_INT4 ? 8 : E == WM_UINT4 || E == WM_UINT8 ? 0 : 128;
  using Group = FixedGroup<IN_BYTE>;
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
    // The last digits are summed apart, so that others do not wait for them; and because all three may be too much for 32
    // bits, if codes have eight.
    const __m512i none = _mm512_setzero_si512();
    __m512i high = add(UP && !FOUR_BITS ? vector(q.moved[0]) : none, 0);
    high = add(_mm512_slli_epi32(high, 8), 1);
    const __m512i low = add(UP ? vector(q.moved[FOUR_BITS ? 0 : 1]) : none, 2);
    const V times = (V)vector(q.unit);
    V v;
    if constexpr (FOUR_BITS) v = (V)_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
    else v = fused((V)_mm512_cvtepi32_ps(high), V{} + 256.0f, (V)_mm512_cvtepi32_ps(low));
    return first ? v * times : fused(v, times, sum);
  }
};

// Whether float32 would do no better: all are finite, not all of them tiny, and none outweighs the others.
template <class L>
static bool arrange_fixed(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  constexpr int OWN = L::OWN;
  constexpr float LEAST = 0x1p-80f;  // of the largest: powers of two have an end
  const __m512i every = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                           _mm512_set1_epi32(OWN));
  typename L::Group* to = static_cast<typename L::Group*>(out);
  __mmask16 endless = 0;
  __m512 largest = _mm512_setzero_ps(), all = largest;
  for (int64_t g = 0; g < n; g += L::GROUP, ++to) {
    const int64_t count = n - g < L::GROUP ? n - g : L::GROUP;
    alignas(64) float here[L::GROUP] = {};
    if (from_bf16)
      for (int64_t k = 0; k < count; ++k) here[k] = widened(static_cast<const Bf16*>(x)[g + k]);
    else std::memcpy(here, static_cast<const float*>(x) + g, size_t(count) * 4);
    __m512 own[OWN], most = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
    for (int j = 0; j < OWN; ++j) {
      own[j] = _mm512_i32gather_ps(every, here + j, 4);
      endless |= _mm512_fpclass_ps_mask(own[j], 0x99);  // NaN of either kind, infinities
      most = _mm512_max_ps(most, _mm512_abs_ps(own[j]));
      all = _mm512_add_ps(all, _mm512_abs_ps(own[j]));
      sum = _mm512_add_ps(sum, own[j]);
    }
    largest = _mm512_max_ps(largest, most);
    // The power of two: past what the largest is in digits, the next; not so small that its inverse were infinite.
    constexpr float ROOM = float(1 << (Digits::BITS)) / float(Digits::LARGEST);
    __m512i power = _mm512_castps_si512(_mm512_mul_ps(most, _mm512_set1_ps(ROOM)));
    power = _mm512_max_epi32(_mm512_and_si512(power, _mm512_set1_epi32(0x7F800000)), _mm512_set1_epi32(23 << 23));
    const __m512i below = _mm512_set1_epi32((Digits::BITS - 1) << 23);
    const __m512 times = _mm512_castsi512_ps(
        _mm512_sub_epi32(_mm512_add_epi32(_mm512_set1_epi32(254 << 23), below), power));
    __m512i digits[Digits::COUNT][L::IN_BYTE] = {}, total[Digits::COUNT] = {};
    for (int j = 0; j < OWN; ++j) {
      __m512i rest = _mm512_cvtps_epi32(_mm512_mul_ps(own[j], times));
      for (int digit = Digits::COUNT - 1; digit >= 0; --digit) {
        const __m512i last = _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24);
        const __m512i byte = _mm512_and_si512(rest, _mm512_set1_epi32(255));
        __m512i& into = digits[digit][j % L::IN_BYTE];
        into = _mm512_or_si512(into, _mm512_sllv_epi32(byte, _mm512_set1_epi32(j / L::IN_BYTE * 8)));
        total[digit] = _mm512_add_epi32(total[digit], last);
        rest = _mm512_srai_epi32(_mm512_sub_epi32(rest, last), 8);
      }
    }
    std::memcpy(to->digits, digits, sizeof digits);
    to->unit = _mm512_castsi512_ps(_mm512_sub_epi32(power, below));
    for (__m512i& t : total) t = _mm512_mullo_epi32(t, _mm512_set1_epi32(-L::UP));
    if constexpr (L::FOUR_BITS) {
      to->moved[0] = _mm512_add_epi32(
          _mm512_slli_epi32(_mm512_add_epi32(_mm512_slli_epi32(total[0], 8), total[1]), 8), total[2]);
    } else {  // before the first digit is times 256, as much of the second's as is a multiple of that
      to->moved[0] = _mm512_add_epi32(total[0], _mm512_srai_epi32(total[1], 8));
      const __m512i left = _mm512_and_si512(total[1], _mm512_set1_epi32(255));
      to->moved[1] = _mm512_add_epi32(_mm512_slli_epi32(left, 8), total[2]);
    }
    if (sums) _mm512_store_ps(sums, sum), sums += LANES;
  }
  const float most = _mm512_reduce_max_ps(largest);
  return endless == 0 && (most == 0 || most >= LEAST) && 2 * most <= _mm512_reduce_add_ps(all);
}
