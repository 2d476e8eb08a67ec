// Loaders of gemv.h for AVX-512 with VBMI.
//
// Elements that bfloat16 holds exactly become that first, 32 in a register: look-ups are what a core does fewest of at a
// time. A 32-bit lane holds neighbours, half of them in each of its words, so that shifting brings the next of each word
// to its lowest bits; look-ups take no notice of what stands above.

// The 48 bytes of sixteen lanes that take three each.
WM_INLINE __m512i three_bytes_each(const uint8_t* p) {
  alignas(64) static constexpr uint8_t AT[64] = {
      0,  1,  2,  2,  3,  4,  5,  5,  6,  7,  8,  8,  9,  10, 11, 11, 12, 13, 14, 14, 15, 16, 17, 17, 18, 19, 20, 20,
      21, 22, 23, 23, 24, 25, 26, 26, 27, 28, 29, 29, 30, 31, 32, 32, 33, 34, 35, 35, 36, 37, 38, 38, 39, 40, 41, 41,
      42, 43, 44, 44, 45, 46, 47, 47};
  const __m512i bytes = _mm512_maskz_loadu_epi8(0xFFFFFFFFFFFFull, p);
  return _mm512_permutexvar_epi8(_mm512_load_si512(AT), bytes);
}

WM_INLINE uint16_t half_of(float f) {  // that bfloat16 holds
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return uint16_t(bits >> 16);
}

// Codes of two to six bits, by a table of all of them.
template <int BITS>
struct FewHalves {
  static constexpr bool PLAIN = false;
  static constexpr int OWN = BITS == 2 ? 16 : BITS == 6 ? 4 : 8;  // elements of a lane
  static constexpr int REGISTERS = OWN / 2, GROUP = 16 * OWN, NBYTES = GROUP * BITS / 8, GRAIN = OWN;
  static constexpr int place(int k) { return k % (OWN / 2) * 32 + k / (OWN / 2); }
  using Codes = __m512i;
  float unit = 1;
  __m512i table[2];
  explicit FewHalves(WmElement e) {
    alignas(64) uint16_t values[64];
    for (int i = 0; i < 64; ++i) values[i] = half_of(element_values(e)[i % (1 << BITS)]);
    for (int i = 0; i < 2; ++i) table[i] = _mm512_load_si512(values + 32 * i);
  }
  WM_METHOD Codes load(const uint8_t* p) const {
    if constexpr (BITS % 3 == 0) return three_bytes_each(p);
    return in_register(_mm512_loadu_si512(p));
  }
  WM_METHOD __m512i halves(Codes c, int i) const {
    if constexpr (BITS == 4 || BITS == 2)
      return _mm512_permutexvar_epi16(_mm512_srli_epi32(c, unsigned(BITS * i)), table[0]);
    // Lanes of 24 bits: the second word's codes begin at bit 12.
    const int64_t low = BITS * i, high = 12 + BITS * i, lane = low | (low + 8) << 8 | high << 16 | (high + 8) << 24;
    const __m512i at = _mm512_set1_epi64(lane | (lane + 0x20202020) << 32);
    const __m512i moved = _mm512_multishift_epi64_epi8(at, c);
    if constexpr (BITS == 3) return _mm512_permutexvar_epi16(moved, table[0]);
    return _mm512_permutex2var_epi16(table[0], moved, table[1]);
  }
};

// E4M3 and E5M2, NaN and infinities too: each half of a bfloat16 by a table of 128 bytes.
struct Float8Halves {
  static constexpr bool PLAIN = false;
  static constexpr int REGISTERS = 2, GROUP = 64, NBYTES = 64, GRAIN = 16;
  static constexpr int place(int k) { return k % 16 / 8 * 32 + k / 16 * 8 + k % 8; }
  float unit = 1;
  __m512i low[2], high[2];
  explicit Float8Halves(WmElement e) {
    alignas(64) uint8_t bytes[2][128];
    for (int c = 0; c < 128; ++c) {
      const uint16_t half = half_of(element_values(e)[c]);
      bytes[0][c] = uint8_t(half), bytes[1][c] = uint8_t(half >> 8 & 0x7F);
    }
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(bytes[0] + 64 * i);
      high[i] = _mm512_load_si512(bytes[1] + 64 * i);
    }
  }
  struct Codes {
    __m512i low, high;
  };
  WM_METHOD Codes load(const uint8_t* p) const {
    const __m512i c = _mm512_loadu_si512(p), magnitude = _mm512_permutex2var_epi8(high[0], c, high[1]);
    // magnitude | (c & 0x80)
    const __m512i h = _mm512_ternarylogic_epi32(magnitude, c, _mm512_set1_epi8(char(0x80)), 0xF8);
    return {_mm512_permutex2var_epi8(low[0], c, low[1]), h};
  }
  // Of each sixteen codes, the first eight or the others.
  WM_METHOD __m512i halves(const Codes& c, int i) const {
    return i ? _mm512_unpackhi_epi8(c.low, c.high) : _mm512_unpacklo_epi8(c.low, c.high);
  }
};

struct PlainHalves {
  static constexpr bool PLAIN = true;
  static constexpr int REGISTERS = 2, GROUP = 64, NBYTES = 128, GRAIN = 64;
  static constexpr int place(int k) { return k; }
  using Codes = const uint8_t*;
  float unit = 1;
  explicit PlainHalves(WmElement) {}
  WM_METHOD Codes load(const uint8_t* p) const { return p; }
  WM_METHOD __m512i halves(Codes p, int i) const { return _mm512_loadu_si512(p + 64 * i); }
};

#if WM_PAIRED

// Halves as they are. The products are exact and their sums float32, but that what is subnormal counts as 0.
template <class H>
struct Paired : H {
  using H::H;
  using X = uint16_t;
  static constexpr bool HALVES = true, FIXED = false;
  static constexpr int VECS = H::REGISTERS;
  WM_INLINE X taken(Bf16 v) { return v.bits; }
  WM_INLINE float value_of(X v) { return widened(Bf16{v}); }
  WM_INLINE __m512i activations(const X* x, int j) { return _mm512_loadu_si512(x + j * 32); }
  WM_METHOD __m512i value(const typename H::Codes& c, int j) const { return H::halves(c, j); }
  WM_INLINE V dot(__m512i w, __m512i x, V sum) {
    return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
  }
};

template <class H>
using Loader = Paired<H>;
template <int BITS>
using Few = Loader<FewHalves<BITS>>;

#else

// Halves as float32: the lower ones, then the upper ones.
template <class H>
struct Widened : Floats, H {
  using H::H;
  static constexpr int VECS = 2 * H::REGISTERS;
  static constexpr int place(int k) { return (H::place(k) / 32 * 2 + H::place(k) % 2) * 16 + H::place(k) % 32 / 2; }
  WM_METHOD V value(const typename H::Codes& c, int j) const {
    const __m512i both = H::halves(c, j / 2);
    return (V)(j % 2 ? _mm512_and_si512(both, _mm512_set1_epi32(int(0xFFFF0000))) : _mm512_slli_epi32(both, 16));
  }
};

template <class H>
using Loader = Widened<H>;

// Codes of four bits, which look-ups, shifts and products share the core's units for evenly: bfloat16, half as many
// look-ups, is slower. And NF4, which bfloat16 does not hold.
struct Four : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 8, GROUP = 128, NBYTES = 64, GRAIN = 8;
  static constexpr int place(int k) { return k % 8 * 16 + k / 8; }
  using Codes = __m512i;
  float unit = 1;
  __m512 table;
  explicit Four(WmElement e) : table(_mm512_loadu_ps(element_values(e))) {}
  WM_METHOD Codes load(const uint8_t* p) const { return in_register(_mm512_loadu_si512(p)); }
  WM_METHOD V value(Codes c, int j) const {
    return (V)_mm512_permutexvar_ps(_mm512_srli_epi32(c, unsigned(4 * j)), table);
  }
};

// Bytes as the last of 2^23 + byte, a float: signed ones are moved up by 128 first.
struct Int8 : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 4, GROUP = 64, NBYTES = 64, GRAIN = 4;
  static constexpr int place(int k) { return k % 4 * 16 + k / 4; }
  using Codes = __m512i;
  float unit;
  __m512i flip;
  __m512 zero;
  explicit Int8(WmElement e)
      : unit(element_values(e)[1]),
        flip(_mm512_set1_epi8(e == WM_UINT8 ? 0 : char(0x80))),
        zero(_mm512_set1_ps(e == WM_UINT8 ? 0x1p23f : 0x1p23f + 128)) {}
  WM_METHOD Codes load(const uint8_t* p) const { return _mm512_xor_si512(_mm512_loadu_si512(p), flip); }
  WM_METHOD V value(Codes c, int j) const {
    const __m512i at = _mm512_broadcast_i32x4(_mm_setr_epi32(j, 4 + j, 8 + j, 12 + j));
    const __m512i moved = _mm512_mask_shuffle_epi8(_mm512_set1_epi32(0x4B000000), 0x1111111111111111ull, c, at);
    return (V)_mm512_sub_ps(_mm512_castsi512_ps(moved), zero);
  }
};

template <int BYTES>
struct Plain : Floats {
  static constexpr bool PLAIN = true;
  static constexpr int VECS = 4, GROUP = 64, NBYTES = GROUP * BYTES, GRAIN = 64;
  static constexpr int place(int k) { return k; }
  using Codes = const uint8_t*;
  float unit = 1;
  explicit Plain(WmElement) {}
  WM_METHOD Codes load(const uint8_t* p) const { return p; }
  WM_METHOD V value(Codes p, int j) const {
    if constexpr (BYTES == 4) return (V)_mm512_loadu_ps(p + 64 * j);
    return (V)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * j)));
  }
};

template <int BITS>
using Few = std::conditional_t<BITS == 4, Four, Loader<FewHalves<BITS>>>;
using Nf4 = Four;
using Uint8 = Int8;
using PlainF32 = Plain<4>;
using PlainF16 = Plain<2>;

#endif

using Six = Loader<FewHalves<6>>;
using E4m3 = Loader<Float8Halves>;
using E5m2 = E4m3;
using PlainBf16 = Loader<PlainHalves>;
