// Loaders of gemv.h for AVX-512 with VBMI. Of small codes a 32-bit lane holds neighbours, so that shifting it brings the
// next of each lane to its lowest bits; look-ups take no notice of what stands above.

// The 48 bytes of sixteen lanes that take three each.
WM_INLINE __m512i three_bytes_each(const uint8_t* p) {
  alignas(64) static constexpr uint8_t AT[64] = {
      0,  1,  2,  2,  3,  4,  5,  5,  6,  7,  8,  8,  9,  10, 11, 11, 12, 13, 14, 14, 15, 16, 17, 17, 18, 19, 20, 20,
      21, 22, 23, 23, 24, 25, 26, 26, 27, 28, 29, 29, 30, 31, 32, 32, 33, 34, 35, 35, 36, 37, 38, 38, 39, 40, 41, 41,
      42, 43, 44, 44, 45, 46, 47, 47};
  const __m512i bytes = _mm512_maskz_loadu_epi8(0xFFFFFFFFFFFFull, p);
  return _mm512_permutexvar_epi8(_mm512_load_si512(AT), bytes);
}

// Codes of two to four bits, by a table of all of them.
template <int BITS>
struct Few : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = BITS == 2 ? 16 : 8, GROUP = 16 * VECS, NBYTES = GROUP * BITS / 8, GRAIN = VECS;
  static constexpr int place(int k) { return k % VECS * 16 + k / VECS; }
  using Codes = __m512i;
  float unit = 1;
  __m512 table;
  explicit Few(WmElement e) {
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = element_values(e)[i % (1 << BITS)];
    table = _mm512_loadu_ps(values);
  }
  WM_METHOD Codes load(const uint8_t* p) const {
    if constexpr (BITS == 3) return three_bytes_each(p);
    return _mm512_loadu_si512(p);
  }
  WM_METHOD V value(Codes c, int j) const {
    return (V)_mm512_permutexvar_ps(_mm512_srli_epi32(c, unsigned(BITS * j)), table);
  }
};

// E2M3 and E3M2: magnitudes by a table of 32, signs by themselves.
struct Six : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 4, GROUP = 64, NBYTES = 48, GRAIN = 4;
  static constexpr int place(int k) { return k % 4 * 16 + k / 4; }
  using Codes = __m512i;
  float unit = 1;
  __m512 low, high;
  explicit Six(WmElement e) : low(_mm512_loadu_ps(element_values(e))), high(_mm512_loadu_ps(element_values(e) + 16)) {}
  WM_METHOD Codes load(const uint8_t* p) const { return three_bytes_each(p); }
  WM_METHOD V value(Codes c, int j) const {
    const __m512i here = _mm512_srli_epi32(c, unsigned(6 * j));
    const __m512 magnitude = _mm512_permutex2var_ps(low, here, high);
    const __m512i sign = _mm512_slli_epi32(here, 26), mask = _mm512_set1_epi32(int(0x80000000));
    return (V)_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude), sign, mask, 0xF8);  // a | (b & c)
  }
};

// E4M3 and E5M2 as bfloat16, which holds them all, NaN and infinities too: each half of it by a table of 128 bytes.
struct Bytes8 {
  __m512i low[2], high[2];
  explicit Bytes8(WmElement e) {
    alignas(64) uint8_t bytes[2][128];
    for (int c = 0; c < 128; ++c) {
      uint32_t bits;
      std::memcpy(&bits, element_values(e) + c, 4);
      bytes[0][c] = uint8_t(bits >> 16), bytes[1][c] = uint8_t(bits >> 24 & 0x7F);
    }
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(bytes[0] + 64 * i);
      high[i] = _mm512_load_si512(bytes[1] + 64 * i);
    }
  }
  struct Codes {
    __m512i half[2];
  };
  // Of each sixteen codes, the first eight and the others.
  WM_METHOD Codes load(const uint8_t* p) const {
    const __m512i c = _mm512_loadu_si512(p);
    const __m512i l = _mm512_permutex2var_epi8(low[0], c, low[1]);
    const __m512i m = _mm512_permutex2var_epi8(high[0], c, high[1]);
    const __m512i h = _mm512_ternarylogic_epi32(m, c, _mm512_set1_epi8(char(0x80)), 0xF8);
    return {{_mm512_unpacklo_epi8(l, h), _mm512_unpackhi_epi8(l, h)}};
  }
};

template <WmElement E>
struct Float8 : Floats, Bytes8 {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 4, GROUP = 64, NBYTES = 64, GRAIN = 16;
  static constexpr int place(int k) { return (k % 16 / 8 * 2 + k % 2) * 16 + k / 16 * 4 + k % 8 / 2; }
  float unit = 1;
  explicit Float8(WmElement) : Bytes8(E) {}
  WM_METHOD V value(const Codes& c, int j) const {
    const __m512i both = c.half[j / 2];
    return (V)(j % 2 ? _mm512_and_si512(both, _mm512_set1_epi32(int(0xFFFF0000))) : _mm512_slli_epi32(both, 16));
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

struct Plain : Floats {
  static constexpr bool PLAIN = true;
  static constexpr int VECS = 4, GROUP = 64, GRAIN = 64;
  using Codes = const uint8_t*;
  float unit = 1;
  explicit Plain(WmElement) {}
  WM_METHOD Codes load(const uint8_t* p) const { return p; }
};

struct PlainF32 : Plain {
  using Plain::Plain;
  static constexpr int NBYTES = 256;
  static constexpr int place(int k) { return k; }
  WM_METHOD V value(Codes p, int j) const { return (V)_mm512_loadu_ps(p + 64 * j); }
};

struct PlainF16 : Plain {
  using Plain::Plain;
  static constexpr int NBYTES = 128;
  static constexpr int place(int k) { return k; }
  WM_METHOD V value(Codes p, int j) const {
    return (V)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * j)));
  }
};

struct PlainBf16 : Plain {
  using Plain::Plain;
  static constexpr int NBYTES = 128;
  static constexpr int place(int k) { return (k / 32 * 2 + k % 2) * 16 + k % 32 / 2; }
  WM_METHOD V value(Codes p, int j) const {
    const __m512i both = _mm512_loadu_si512(p + 64 * (j / 2));
    return (V)(j % 2 ? _mm512_and_si512(both, _mm512_set1_epi32(int(0xFFFF0000))) : _mm512_slli_epi32(both, 16));
  }
};
