// Weights of gemm_int.h: half a strip as integers and their units, from what is decoded or straight from codes. Included
// there, once for each instruction set.

// What 1 is in the integers that elements are, 0 where they are none of at most `most`.
static float multiple_of(const Weights& w, float most) {
  if (is_struct(w.element)) return w.element == WM_Q2_K ? 0 : 1;  // which has minima of half a block
  const bool whole_blocks = w.block_elems % BLOCK == 0 || w.block_elems >= w.n;
  if (!whole_blocks || w.scale == WM_SCALE_NONE) return 0;
  switch (w.element) {
    case WM_INT8: case WM_INT4: case WM_INT3: case WM_INT2: case WM_UINT4: case WM_UINT3: case WM_UINT2: return 1;
    case WM_UINT8: return most < 255 ? 0 : 1;
    case WM_E2M1: return 2;
    case WM_E2M3: return 8;
    case WM_E3M2: return most < 448 ? 0 : 16;
    case WM_MXINT8: return 64;
    default: return 0;
  }
}

// How weights of a format become integers.
struct Form {
  float multiple;  // see multiple_of; if 0 they are rounded
  int group;       // columns that have a unit: BLOCK, or half of it
  bool small;      // magnitudes are under SMALL
  bool minima;     // something is added to each block, which integers are without

  Form(const Weights& w, float most)
      : multiple(multiple_of(w, most)),
        group(multiple != 0 && is_struct(w.element) ? structs::group_of(w.element) : BLOCK),
        small(multiple != 0 && !is_struct(w.element) && bits_of(w.element) <= 4),
        minima(multiple != 0 && (is_struct(w.element) ? has_minima(w.element) : w.zero != WM_ZERO_NONE)) {}

  int64_t groups(int64_t columns) const { return (columns + BLOCK - 1) / BLOCK * (BLOCK / group); }
};

// Where elements are `multiple` times integers: of group g of half a strip, whose scales are there.
WM_INLINE void unit_of_scale(const Part& p, int half, int64_t g, const Form& form, Floats* unit, Floats* inverse) {
  const Ints scale = (Ints)load(p.scales_of(half, p.k + g * form.group)), sign = scale & int32_t(0x80000000);
  unit_of(scale & 0x7FFFFFFF, form.multiple, unit, inverse);
  *unit = (Floats)((Ints)*unit | sign), *inverse = (Floats)((Ints)*inverse | sign);
}

// What is added to the values of a block, of half a strip.
WM_INLINE Floats minimum_of(const Part& p, int half, int64_t block) {
  const float* scales = p.scales_of(half, p.k + block * BLOCK);
  const Floats found = load(scales + gemm::SCALES * LANES);
  if (is_struct(p.w.element)) return -found;
  return p.w.zero == WM_ZERO_INT ? -found * load(scales) : found;
}

// Half a strip that is decoded, as integers [group][lane][STRIP], and what is theirs of units, [group][STRIP].
template <int BITS>
static void integers(const Part& p, int half, const Form& form, int32_t* out, float* units) {
  using W = Width<BITS>;
  const Floats offset = gemm::everywhere(float(W::offset(form.small)));
  constexpr int32_t MASK = W::QUADS ? 0xFF : 0xFFFF;
  float* strip = p.out + half * LANES;
  const int64_t groups = form.groups(p.depth);
  for (int64_t c = p.depth; c < groups * form.group; ++c) store(strip + c * STRIP, Floats{});
  for (int64_t g = 0; g < groups; ++g, strip += form.group * STRIP) {
    Floats unit, inverse;
    Ints largest = {};
    const Floats minimum = form.minima ? minimum_of(p, half, g * form.group / BLOCK) : Floats{};
    if (form.multiple != 0) {
      unit_of_scale(p, half, g, form, &unit, &inverse);
    } else {
      for (int c = 0; c < BLOCK; ++c) largest = larger(largest, (Ints)load(strip + c * STRIP) & 0x7FFFFFFF);
      unit_of(largest, W::MOST_W, &unit, &inverse);
    }
    store(units + g * STRIP + half * LANES, unit);
    for (int t = 0; t < form.group / W::PER; ++t) {
      Ints lane = {};
      for (int j = 0; j < W::PER; ++j) {
        const Floats v = load(strip + W::column(t, j) * STRIP) - minimum;
        const Floats scaled = W::QUADS ? fused(v, inverse, offset) : v * inverse;
        lane |= (rounded(scaled) & MASK) << (32 / W::PER * j);
      }
      std::memcpy(out + (g * (form.group / W::PER) + t) * STRIP + half * LANES, &lane, sizeof lane);
    }
  }
}

#if WM_SIMD != 0
static void units_of(const Part& p, int half, const Form& form, float* units) {
  for (int64_t g = 0, groups = form.groups(p.depth); g < groups; ++g) {
    Floats unit, inverse;
    unit_of_scale(p, half, g, form, &unit, &inverse);
    store(units + g * STRIP + half * LANES, unit);
  }
}

// What elements of four bits are as integers of W, with the offset of bytes, repeated so that stray bits above do no harm.
template <typename W, WmElement E, int MULTIPLE>
struct Integers {
  using Number = std::conditional_t<W::QUADS, uint8_t, int16_t>;
  alignas(64) Number value[64 / sizeof(Number)];
  constexpr Integers() : value() {
    constexpr decoding::Table VALUES = decoding::table<E>();
    for (size_t i = 0; i < 64 / sizeof(Number); ++i)
      value[i] = Number(int(VALUES.value[i % 16] * MULTIPLE) + W::offset(true));
  }
};

// The same of codes that are integers, straight from them: `each` makes those of some lanes of codes, [lane of integers],
// of which `count` are there.
template <int CODE_BITS, typename Each>
WM_INLINE void straight(const Part& p, int half, int32_t* out, const Each& each) {
  using Squares = gemm::Squares<CODE_BITS>;
  const int64_t columns = (p.depth + BLOCK - 1) / BLOCK * BLOCK;
  Squares squares(p, half);
  int32_t* at = out + half * LANES;
  for (int64_t k = 0; k < columns; k += Squares::COLUMNS) {
    Ints lanes[LANES];
    squares.read(p.depth - k, lanes);
    each(lanes, least(LANES, (columns - k) / Squares::PER), at);
  }
}

#endif

#if WM_SIMD == 512
// Of four bits: look-ups of bytes, or of halves.
template <int BITS, WmElement E, int MULTIPLE>
static void four_bits(const Part& p, int half, int32_t* out) {
  using W = Width<BITS>;
  static constexpr Integers<W, E, MULTIPLE> TABLE;
  const __m512i table = _mm512_load_si512(TABLE.value);
  straight<4>(p, half, out, [&](const Ints* lanes, int64_t count, int32_t*& at) {
    for (int64_t t = 0; t < count; ++t)
      for (int i = 0; i < 8 / W::PER; ++i, at += STRIP) {
        const __m512i codes = (__m512i)(lanes[t] >> (4 * i));
        const __m512i found = W::QUADS ? _mm512_permutexvar_epi8(codes, table) : _mm512_permutexvar_epi16(codes, table);
        _mm512_storeu_si512(at, found);
      }
  });
}

// Of eight bits, which stay what they are: every other one of eight columns.
WM_INLINE void every_other(const Ints* lanes, int64_t count, int32_t*& at) {
  alignas(64) static constexpr auto EVEN = [] {
    struct { uint8_t at[64]; } found{};
    for (int i = 0; i < 64; ++i) found.at[i] = uint8_t(i / 4 * 4 + i % 2 * 2 + i % 4 / 2 * 64);
    return found;
  }();
  const __m512i evens = _mm512_load_si512(EVEN.at), odds = _mm512_add_epi8(evens, _mm512_set1_epi8(1));
  const __m512i offset = _mm512_set1_epi8(char(0x80));
  for (int64_t t = 0; t < count; t += 2)
    for (int i = 0; i < 2; ++i, at += STRIP) {
      const __m512i codes = _mm512_permutex2var_epi8((__m512i)lanes[t], i ? odds : evens, (__m512i)lanes[t + 1]);
      _mm512_storeu_si512(at, _mm512_xor_si512(codes, offset));
    }
}
#elif WM_SIMD == 256
// Of four bits: look-ups of bytes.
template <int BITS, WmElement E, int MULTIPLE>
static void four_bits(const Part& p, int half, int32_t* out) {
  static constexpr Integers<Width<BITS>, E, MULTIPLE> TABLE;
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(TABLE.value));
  straight<4>(p, half, out, [&](const Ints* lanes, int64_t count, int32_t*& at) {
    for (int64_t t = 0; t < count; ++t)
      for (int i = 0; i < 2; ++i, at += STRIP) {
        const __m256i codes = _mm256_and_si256((__m256i)(lanes[t] >> (4 * i)), _mm256_set1_epi8(15));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_shuffle_epi8(table, codes));
      }
  });
}

// Of eight bits, which stay what they are: every other one of eight columns.
WM_INLINE void every_other(const Ints* lanes, int64_t count, int32_t*& at) {
  const __m256i evens_first =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  for (int64_t t = 0; t < count; t += 2) {
    const __m256i a = _mm256_shuffle_epi8((__m256i)lanes[t], evens_first);
    const __m256i b = _mm256_shuffle_epi8((__m256i)lanes[t + 1], evens_first);
    const __m256i both[2] = {_mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA),
                             _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA)};
    for (int i = 0; i < 2; ++i, at += STRIP) _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), both[i]);
  }
}
#endif

#if WM_SIMD != 0
template <WmElement E>
static void bytes_of_structs(const Part& p, int half, int32_t* out) {
  int32_t* at = out + half * LANES;
  gemm::squares_of_structs<E>(p, half, [&](const Ints* lanes, int64_t count, int64_t) { every_other(lanes, count, at); });
}

// Whether integers come straight from codes of the element, and here they are.
template <int BITS>
static bool made_straight(const Part& p, int half, const Form& form, int32_t* out) {
  constexpr bool QUADS = Width<BITS>::QUADS;
  const WmElement element = form.multiple != 0 ? p.w.element : WM_F32;
  if constexpr (WM_SIMD == 512 || QUADS) {
    switch (element) {
      case WM_E2M1: four_bits<BITS, WM_E2M1, 2>(p, half, out); return true;
      case WM_INT4: four_bits<BITS, WM_INT4, 1>(p, half, out); return true;
      case WM_UINT4: four_bits<BITS, WM_UINT4, 1>(p, half, out); return true;
      default: break;
    }
  }
  if constexpr (QUADS) {
    switch (element) {
      case WM_INT8: case WM_MXINT8: straight<8>(p, half, out, every_other); return true;
      case WM_Q3_K: bytes_of_structs<WM_Q3_K>(p, half, out); return true;
      case WM_Q4_K: bytes_of_structs<WM_Q4_K>(p, half, out); return true;
      case WM_Q5_K: bytes_of_structs<WM_Q5_K>(p, half, out); return true;
      case WM_Q6_K: bytes_of_structs<WM_Q6_K>(p, half, out); return true;
      case WM_Q5_0: bytes_of_structs<WM_Q5_0>(p, half, out); return true;
      case WM_Q5_1: bytes_of_structs<WM_Q5_1>(p, half, out); return true;
      case WM_IQ4_NL: bytes_of_structs<WM_IQ4_NL>(p, half, out); return true;
      default: break;
    }
  }
  return false;
}
#endif

// What makes integers of half a strip, their units, and what is added to blocks, [block][STRIP].
template <int BITS>
static void make(const Part& p, int half, const gemm::StripDecoder& decoder, const Form& form, int32_t* out, float* units,
                 float* minima) {
  if (form.minima)
    for (int64_t b = 0; b * BLOCK < p.depth; ++b) store(minima + b * STRIP + half * LANES, minimum_of(p, half, b));
#if WM_SIMD != 0
  if (made_straight<BITS>(p, half, form, out)) return units_of(p, half, form, units);
#endif
  decoder.half(p, half);
  integers<BITS>(p, half, form, out, units);
}
