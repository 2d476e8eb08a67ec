// Loaders of gemv.h for AVX2 with FMA and F16C.

// The 24 bytes of eight lanes that take three each.
WM_INLINE __m256i three_bytes_each(const uint8_t* p) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  const __m256i at = _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,  //
                                      4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1);
  return _mm256_shuffle_epi8(_mm256_set_m128i(high, low), at);
}

// Codes of two to four bits, by a table of all of them.
template <int BITS>
struct Few : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = BITS == 2 ? 16 : 8, GROUP = 8 * VECS, NBYTES = GROUP * BITS / 8, GRAIN = VECS;
  static constexpr int place(int k) { return k % VECS * 8 + k / VECS; }
  using Codes = __m256i;
  float unit = 1;
  __m256 low, high;
  explicit Few(WmElement e) {
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = element_values(e)[i % (1 << BITS)];
    low = _mm256_loadu_ps(values), high = _mm256_loadu_ps(values + 8);
  }
  WM_METHOD Codes load(const uint8_t* p) const {
    if constexpr (BITS == 3) return three_bytes_each(p);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  WM_METHOD V value(Codes c, int j) const {
    const __m256i here = _mm256_srli_epi32(c, BITS * j);
    const __m256 found = _mm256_permutevar8x32_ps(low, here);
    if constexpr (BITS < 4) return (V)found;
    const __m256 others = _mm256_permutevar8x32_ps(high, here);
    return (V)_mm256_blendv_ps(found, others, _mm256_castsi256_ps(_mm256_slli_epi32(here, 28)));
  }
};

// E2M3 and E3M2: a float32's bits, but for subnormals, which are integers.
struct Six : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 4, GROUP = 32, NBYTES = 24, GRAIN = 4;
  static constexpr int place(int k) { return k % 4 * 8 + k / 4; }
  using Codes = __m256i;
  float unit = 1;
  int fraction;
  __m256i bias, normal;
  __m256 step;
  explicit Six(WmElement e)
      : fraction(e == WM_E2M3 ? 3 : 2),
        bias(_mm256_set1_epi32((e == WM_E2M3 ? 126 : 124) << 23)),
        normal(_mm256_set1_epi32((1 << fraction) - 1)),
        step(_mm256_set1_ps(element_values(e)[1])) {}
  WM_METHOD Codes load(const uint8_t* p) const { return three_bytes_each(p); }
  WM_METHOD V value(Codes c, int j) const {
    const __m256i here = _mm256_srli_epi32(c, 6 * j), m = _mm256_and_si256(here, _mm256_set1_epi32(31));
    const __m256i moved = _mm256_add_epi32(_mm256_sll_epi32(m, _mm_cvtsi32_si128(23 - fraction)), bias);
    const __m256 tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(m), step);
    const __m256i is_normal = _mm256_cmpgt_epi32(m, normal);
    const __m256 found = _mm256_blendv_ps(tiny, _mm256_castsi256_ps(moved), _mm256_castsi256_ps(is_normal));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(here, 26), _mm256_set1_epi32(int(0x80000000)));
    return (V)_mm256_or_ps(found, _mm256_castsi256_ps(sign));
  }
};

// E5M2 is the upper half of a binary16; E4M3, a bit further down in one, is 2^8 too small, and its NaN a number.
struct Float8 : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 2, GROUP = 16, NBYTES = 16, GRAIN = 16;
  static constexpr int place(int k) { return k; }
  using Codes = __m128i;
  float unit;
  __m128i down, kept, nan;
  explicit Float8(WmElement e)
      : unit(e == WM_E4M3 ? 256 : 1),
        down(_mm_cvtsi32_si128(e == WM_E4M3)),
        kept(_mm_set1_epi16(e == WM_E4M3 ? short(0xBFFF) : -1)),
        nan(_mm_set1_epi16(e == WM_E4M3 ? 0x7F00 : 0x0080)) {}  // the latter is the upper half of nothing
  WM_METHOD Codes load(const uint8_t* p) const { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  WM_METHOD V value(Codes c, int j) const {
    const __m128i none = _mm_setzero_si128(), half = j ? _mm_unpackhi_epi8(none, c) : _mm_unpacklo_epi8(none, c);
    const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(half, _mm_set1_epi16(0x7F00)), nan);
    return (V)_mm256_cvtph_ps(_mm_or_si128(_mm_and_si128(_mm_sra_epi16(half, down), kept), is_nan));
  }
};

struct Int8 : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int VECS = 2, GROUP = 16, NBYTES = 16, GRAIN = 16;
  static constexpr int place(int k) { return k; }
  using Codes = __m128i;
  float unit;
  __m128i flip;
  __m256 zero;
  explicit Int8(WmElement e)
      : unit(element_values(e)[1]),
        flip(_mm_set1_epi8(e == WM_UINT8 ? 0 : char(0x80))),
        zero(_mm256_set1_ps(e == WM_UINT8 ? 0 : 128)) {}
  WM_METHOD Codes load(const uint8_t* p) const {
    return _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), flip);
  }
  WM_METHOD V value(Codes c, int j) const {
    const __m256i wide = _mm256_cvtepu8_epi32(j ? _mm_srli_si128(c, 8) : c);
    return (V)_mm256_sub_ps(_mm256_cvtepi32_ps(wide), zero);
  }
};

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

using Nf4 = Few<4>;
