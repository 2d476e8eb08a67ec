// Loaders of gemv.h for AVX2 with FMA and F16C.

// The 24 bytes of eight lanes that take three each.
WM_INLINE __m256i three_bytes_each(const uint8_t* p) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  const __m256i at = _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,  //
                                      4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1);
  return _mm256_shuffle_epi8(_mm256_set_m128i(high, low), at);
}

// Look-ups of bytes are what all of these machines do well: those of floats in registers take two cycles on AMD's before
// Zen 4. A table of sixteen bytes, in both halves of a register.
struct Bytes16 {
  __m256i of;
  // Byte `at` of what each of sixteen codes is worth as a float32.
  Bytes16(WmElement e, int at) {
    alignas(16) uint8_t bytes[16];
    for (int c = 0; c < 16; ++c) {
      uint32_t bits;
      std::memcpy(&bits, element_values(e) + c, 4);
      bytes[c] = uint8_t(bits >> 8 * at);
    }
    of = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  WM_METHOD __m256i operator()(__m256i codes) const { return _mm256_shuffle_epi8(of, codes); }
};

// Codes of four bits, eight of a lane. Bytes are put in an order in which, once what is looked up of them is interleaved,
// a lane has those that it began with.
struct Halves4 {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 8, GROUP = 64, NBYTES = 32, GRAIN = 8;
  // Vectors: of bytes that are interleaved first and last, of lower and upper codes, of the two that are neighbours then.
  static constexpr int place(int k) { return (k % 8 / 4 * 4 + k % 2 * 2 + k % 4 / 2) * 8 + k / 8; }
  struct Codes {
    __m256i of[2];  // of each byte the lower and the upper ones
  };
  WM_INLINE Codes split(const uint8_t* p, __m256i order) {
    const __m256i all = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), order);
    const __m256i kept = _mm256_set1_epi8(15);
    return {{_mm256_and_si256(all, kept), _mm256_and_si256(_mm256_srli_epi16(all, 4), kept)}};
  }
};

// Of values that bfloat16 holds: their upper bytes, and below them, in lanes, those of a neighbour.
struct Four : Floats, Halves4 {
  float unit = 1;
  Bytes16 low, high;
  explicit Four(WmElement e) : low(e, 2), high(e, 3) {}
  WM_METHOD Codes load(const uint8_t* p) const {
    return split(p, _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                     0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  }
  WM_METHOD V value(const Codes& c, int j) const {
    const __m256i a = low(c.of[j / 2 % 2]), b = high(c.of[j / 2 % 2]);
    const __m256i both = j / 4 ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
    return (V)(j % 2 ? _mm256_and_si256(both, _mm256_set1_epi32(int(0xFFFF0000))) : _mm256_slli_epi32(both, 16));
  }
};

// Of any values: all four bytes.
struct Nf4 : Floats, Halves4 {
  float unit = 1;
  Bytes16 bytes[4];
  explicit Nf4(WmElement e) : bytes{{e, 0}, {e, 1}, {e, 2}, {e, 3}} {}
  WM_METHOD Codes load(const uint8_t* p) const {
    return split(p, _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                     0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  }
  WM_METHOD V value(const Codes& c, int j) const {
    const __m256i codes = c.of[j / 2 % 2];
    const auto pairs = [&](int at) __attribute__((always_inline)) {
      const __m256i a = bytes[at](codes), b = bytes[at + 1](codes);
      return j / 4 ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
    };
    const __m256i a = pairs(0), b = pairs(2);
    return (V)(j % 2 ? _mm256_unpackhi_epi16(a, b) : _mm256_unpacklo_epi16(a, b));
  }
};

// Codes of three bits, by a table of all of them.
struct Three : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 8, GROUP = 64, NBYTES = 24, GRAIN = 8;
  static constexpr int place(int k) { return k % 8 * 8 + k / 8; }
  using Codes = __m256i;
  float unit = 1;
  __m256 table;
  explicit Three(WmElement e) : table(_mm256_loadu_ps(element_values(e))) {}
  WM_METHOD Codes load(const uint8_t* p) const { return three_bytes_each(p); }
  WM_METHOD V value(Codes c, int j) const { return (V)_mm256_permutevar8x32_ps(table, _mm256_srli_epi32(c, 3 * j)); }
};

// Codes of two bits, by a table in either half of a register.
struct Two : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 16, GROUP = 128, NBYTES = 32, GRAIN = 16;
  static constexpr int place(int k) { return k % 16 * 8 + k / 16; }
  using Codes = __m256i;
  float unit = 1;
  __m256 table;
  explicit Two(WmElement e) : table(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(element_values(e)))) {}
  WM_METHOD Codes load(const uint8_t* p) const { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  WM_METHOD V value(Codes c, int j) const { return (V)_mm256_permutevar_ps(table, _mm256_srli_epi32(c, 2 * j)); }
};

template <int BITS>
using Few = std::conditional_t<BITS == 4, Four, std::conditional_t<BITS == 3, Three, Two>>;

// Eight of the halves of two registers, the lower ones of each first.
WM_INLINE V halves_to_floats(__m256i a, __m256i b, int j) {
  const __m256i from = j % 2 ? b : a;
  return (V)_mm256_cvtph_ps(j / 2 ? _mm256_extracti128_si256(from, 1) : _mm256_castsi256_si128(from));
}

// E2M3 and E3M2 are binary16 further down, 2^14 and 2^12 too small: its subnormals are theirs, which nobody flushes.
struct Six : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 4, GROUP = 32, NBYTES = 24, GRAIN = 32;
  static constexpr int place(int k) { return k; }
  struct Codes {
    __m256i a, b;  // binary16: of each half's sixteen codes the first eight, and the others
  };
  float unit;
  __m128i down;
  __m256i kept;
  explicit Six(WmElement e)
      : unit(e == WM_E2M3 ? 0x1p14f : 0x1p12f),
        down(_mm_cvtsi32_si128(e == WM_E2M3 ? 3 : 2)),
        kept(_mm256_set1_epi16(short(e == WM_E2M3 ? 0x8F80 : 0x9F00))) {}
  // To each code the two bytes that it lies in, then its sign to the uppermost bit.
  WM_METHOD __m256i halves(__m256i all, __m256i at) const {
    const __m256i up = _mm256_set1_epi64x(1 << 10 | 1 << (4 + 16) | 1ll << (6 + 32) | 1ll << (8 + 48));
    const __m256i moved = _mm256_mullo_epi16(_mm256_shuffle_epi8(all, at), up);
    return _mm256_and_si256(_mm256_sra_epi16(moved, down), kept);
  }
  WM_METHOD Codes load(const uint8_t* p) const {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
    const __m256i all = _mm256_set_m128i(high, low), six = _mm256_set1_epi8(6);
    const __m256i at = _mm256_setr_epi8(0, 1, 0, 1, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 6,  //
                                        4, 5, 4, 5, 5, 6, 6, 7, 7, 8, 7, 8, 8, 9, 9, 10);
    return {halves(all, at), halves(all, _mm256_add_epi8(at, six))};
  }
  WM_METHOD V value(const Codes& c, int j) const { return halves_to_floats(c.a, c.b, j); }
};

// Of eight bits, which become 16: of each half of a register the first eight codes, and the others.
struct Wide8 : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 4, GROUP = 32, NBYTES = 32, GRAIN = 16;
  struct Codes {
    __m256i a, b;
  };
};

// The upper half of a binary16.
struct E5m2 : Wide8 {
  static constexpr int place(int k) { return k % 16 / 4 * 8 + k / 16 * 4 + k % 4; }
  float unit = 1;
  explicit E5m2(WmElement) {}
  WM_METHOD Codes load(const uint8_t* p) const {
    const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), none = _mm256_setzero_si256();
    const __m256i c = _mm256_permutevar8x32_epi32(stored, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return {_mm256_unpacklo_epi8(none, c), _mm256_unpackhi_epi8(none, c)};
  }
  WM_METHOD V value(const Codes& c, int j) const { return halves_to_floats(c.a, c.b, j); }
};

// As bfloat16, whose upper byte is known by the upper four bits, and the lower one by the others; below twice the least
// normal number the upper byte takes the others too.
struct E4m3 : Wide8 {
  static constexpr bool TABLES = true;
  static constexpr int place(int k) { return (k % 16 / 8 * 2 + k % 2) * 8 + k / 16 * 4 + k % 8 / 2; }
  float unit = 1;
  __m256i upper, upper_of_small, lower, other_of_small;  // the last: what is another in the lower byte of a small one
  explicit E4m3(WmElement e) {
    alignas(16) uint8_t of[4][16];
    const auto half = [&](int code) {
      uint32_t bits;
      std::memcpy(&bits, element_values(e) + code, 4);
      return bits >> 16;
    };
    for (int i = 0; i < 16; ++i) {
      of[0][i] = uint8_t(i % 8 ? half(16 * i) >> 8 : 16 * i);
      of[1][i] = uint8_t(half(i) >> 8);
      of[2][i] = uint8_t(16 * i);
      of[3][i] = uint8_t(half(i) ^ of[2][i]);
    }
    const auto table = [&](int i) {
      return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(of[i])));
    };
    upper = table(0), upper_of_small = table(1), lower = table(2), other_of_small = table(3);
  }
  WM_METHOD Codes load(const uint8_t* p) const {
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), four = _mm256_set1_epi8(15);
    const __m256i last = _mm256_and_si256(c, four), first = _mm256_and_si256(_mm256_srli_epi16(c, 4), four);
    const __m256i small = _mm256_cmpeq_epi8(_mm256_and_si256(c, _mm256_set1_epi8(0x70)), _mm256_setzero_si256());
    const __m256i nan = _mm256_cmpeq_epi8(_mm256_or_si256(c, _mm256_set1_epi8(-128)), _mm256_set1_epi8(-1));
    const auto of_small = [&](__m256i table) __attribute__((always_inline)) {
      return _mm256_and_si256(_mm256_shuffle_epi8(table, last), small);
    };
    const __m256i high = _mm256_or_si256(_mm256_or_si256(_mm256_shuffle_epi8(upper, first), of_small(upper_of_small)), nan);
    const __m256i low = _mm256_xor_si256(_mm256_shuffle_epi8(lower, last), of_small(other_of_small));
    return {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
  }
  WM_METHOD V value(const Codes& c, int j) const {
    const __m256i from = j / 2 ? c.b : c.a;
    return (V)(j % 2 ? _mm256_and_si256(from, _mm256_set1_epi32(int(0xFFFF0000))) : _mm256_slli_epi32(from, 16));
  }
};

// Bytes of lanes: signed ones by way of the uppermost, from where shifting brings their sign along.
template <bool SIGNED>
struct Byte : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 4, GROUP = 32, NBYTES = 32, GRAIN = 4;
  static constexpr int place(int k) { return k % 4 * 8 + k / 4; }
  using Codes = __m256i;
  float unit;
  explicit Byte(WmElement e) : unit(element_values(e)[1]) {}
  WM_METHOD Codes load(const uint8_t* p) const { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  WM_METHOD V value(Codes c, int j) const {
    // The j-th byte of each lane; its others become 0. As one constant, which compilers do not make of several.
    const int32_t k = j * (SIGNED ? 0x1000000 : 1);
    constexpr int32_t LANE = SIGNED ? 0x00808080 : int32_t(0x80808000), NEXT = SIGNED ? 0x4000000 : 4;
    const __m256i at = _mm256_setr_epi32(LANE + k, LANE + NEXT + k, LANE + 2 * NEXT + k, LANE + 3 * NEXT + k,  //
                                         LANE + k, LANE + NEXT + k, LANE + 2 * NEXT + k, LANE + 3 * NEXT + k);
    const __m256i found = _mm256_shuffle_epi8(c, at);
    return (V)_mm256_cvtepi32_ps(SIGNED ? _mm256_srai_epi32(found, 24) : found);
  }
};
using Int8 = Byte<true>;
using Uint8 = Byte<false>;

struct Plain : Floats {
  static constexpr bool PLAIN = true;
  static constexpr int VECS = 4, GROUP = 32, GRAIN = 32;
  using Codes = const uint8_t*;
  float unit = 1;
  explicit Plain(WmElement) {}
  WM_METHOD Codes load(const uint8_t* p) const { return p; }
};

struct PlainF32 : Plain {
  using Plain::Plain;
  static constexpr int NBYTES = 128;
  static constexpr int place(int k) { return k; }
  WM_METHOD V value(Codes p, int j) const {
    return (V)_mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * j)));
  }
};

struct PlainF16 : Plain {
  using Plain::Plain;
  static constexpr int NBYTES = 64;
  static constexpr int place(int k) { return k; }
  WM_METHOD V value(Codes p, int j) const {
    return (V)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * j)));
  }
};

struct PlainBf16 : Plain {
  using Plain::Plain;
  static constexpr int NBYTES = 64;
  static constexpr int place(int k) { return (k / 16 * 2 + k % 2) * 8 + k % 16 / 2; }
  WM_METHOD V value(Codes p, int j) const {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * (j / 2)));
    return (V)(j % 2 ? _mm256_and_si256(both, _mm256_set1_epi32(int(0xFFFF0000))) : _mm256_slli_epi32(both, 16));
  }
};
