// Weights of gemm_int.h: half a strip as integers and their units, from what is decoded or straight from codes. Included
// there, once for each instruction set.

// What 1 is in the integers that elements are, 0 where they are none of at most `most`.
static float multiple_of(const Weights& w, float most) {
  const bool whole_blocks = w.block_elems % BLOCK == 0 || w.block_elems >= w.n;
  if (!whole_blocks || w.zero != WM_ZERO_NONE || w.scale == WM_SCALE_NONE) return 0;
  switch (w.element) {
    case WM_INT8: case WM_INT4: case WM_INT3: case WM_INT2: return 1;
    case WM_E2M1: return 2;
    case WM_E2M3: return 8;
    case WM_E3M2: return most < 448 ? 0 : 16;
    case WM_MXINT8: return 64;
    default: return 0;
  }
}

// Where elements are `multiple` times integers: of block b of half a strip, whose scales are there.
WM_INLINE void unit_of_scale(const Part& p, int half, int64_t b, float multiple, Floats* unit, Floats* inverse) {
  const Ints scale = (Ints)load(p.scales_of(half, p.k + b * BLOCK)), sign = scale & int32_t(0x80000000);
  unit_of(scale & 0x7FFFFFFF, multiple, unit, inverse);
  *unit = (Floats)((Ints)*unit | sign), *inverse = (Floats)((Ints)*inverse | sign);
}

// Half a strip that is decoded, as integers [block][lane][STRIP], and what is theirs of units, [block][STRIP].
template <int BITS>
static void integers(const Part& p, int half, float multiple, int32_t* out, float* units) {
  using W = Width<BITS>;
  float* strip = p.out + half * LANES;
  const int64_t blocks = (p.depth + BLOCK - 1) / BLOCK;
  for (int64_t c = p.depth; c < blocks * BLOCK; ++c) store(strip + c * STRIP, Floats{});
  for (int64_t b = 0; b < blocks; ++b, strip += BLOCK * STRIP) {
    Floats unit, inverse;
    Ints largest = {};
    if (multiple != 0) {
      unit_of_scale(p, half, b, multiple, &unit, &inverse);
    } else {
      for (int c = 0; c < BLOCK; ++c) largest = larger(largest, (Ints)load(strip + c * STRIP) & 0x7FFFFFFF);
      unit_of(largest, W::MOST_W, &unit, &inverse);
    }
    store(units + b * STRIP + half * LANES, unit);
    for (int t = 0; t < BLOCK / W::PER; ++t) {
      Ints lane = {};
      for (int j = 0; j < W::PER; ++j) {
        const Floats v = load(strip + W::column(t, j) * STRIP);
        if (W::QUADS) lane |= rounded(fused(v, inverse, gemm::everywhere(128.0f))) << (8 * j);
        else lane |= j ? rounded(v * inverse) << 16 : rounded(v * inverse) & 0xFFFF;
      }
      std::memcpy(out + (b * (BLOCK / W::PER) + t) * STRIP + half * LANES, &lane, sizeof lane);
    }
  }
}

#if WM_SIMD == 512
static void units_of(const Part& p, int half, float multiple, float* units) {
  for (int64_t b = 0; b * BLOCK < p.depth; ++b) {
    Floats unit, inverse;
    unit_of_scale(p, half, b, multiple, &unit, &inverse);
    store(units + b * STRIP + half * LANES, unit);
  }
}

// What elements of four bits are as integers, with the offset of bytes, repeated so that stray bits above do no harm.
template <typename Number, WmElement E, int MULTIPLE>
struct Integers {
  alignas(64) Number value[64 / sizeof(Number)];
  constexpr Integers() : value() {
    constexpr decoding::Table VALUES = decoding::table<E>();
    for (size_t i = 0; i < 64 / sizeof(Number); ++i)
      value[i] = Number(int(VALUES.value[i % 16] * MULTIPLE) + (sizeof(Number) == 1 ? 128 : 0));
  }
};

// The same of codes that are integers, straight from them: `each` makes those of some lanes of codes, [lane of integers],
// of which `count` are there.
template <int CODE_BITS, typename Each>
WM_INLINE void straight(const Part& p, int half, float multiple, int32_t* out, float* units, const Each& each) {
  using Squares = gemm::Squares<CODE_BITS>;
  const int64_t columns = (p.depth + BLOCK - 1) / BLOCK * BLOCK;
  units_of(p, half, multiple, units);
  Squares squares(p, half);
  int32_t* at = out + half * LANES;
  for (int64_t k = 0; k < columns; k += Squares::COLUMNS) {
    Ints lanes[LANES];
    squares.read(p.depth - k, lanes);
    each(lanes, least(LANES, (columns - k) / Squares::PER), at);
  }
}

// Of four bits: look-ups of bytes, or of halves.
template <int BITS, WmElement E, int MULTIPLE>
static void four_bits(const Part& p, int half, int32_t* out, float* units) {
  constexpr bool QUADS = Width<BITS>::QUADS;
  static constexpr Integers<std::conditional_t<QUADS, uint8_t, int16_t>, E, MULTIPLE> TABLE;
  const __m512i table = _mm512_load_si512(TABLE.value);
  straight<4>(p, half, MULTIPLE, out, units, [&](const Ints* lanes, int64_t count, int32_t*& at) {
    for (int64_t t = 0; t < count; ++t)
      for (int i = 0; i < (QUADS ? 2 : 4); ++i, at += STRIP) {
        const __m512i codes = (__m512i)(lanes[t] >> (4 * i));
        _mm512_storeu_si512(at, QUADS ? _mm512_permutexvar_epi8(codes, table) : _mm512_permutexvar_epi16(codes, table));
      }
  });
}

// Of eight bits, which stay what they are: every other one of eight columns.
static void eight_bits(const Part& p, int half, int32_t* out, float* units) {
  alignas(64) uint8_t even[64];
  for (int i = 0; i < 64; ++i) even[i] = uint8_t(i / 4 * 4 + i % 2 * 2 + i % 4 / 2 * 64);
  const __m512i evens = _mm512_load_si512(even), odds = _mm512_add_epi8(evens, _mm512_set1_epi8(1));
  const __m512i offset = _mm512_set1_epi8(char(0x80));
  straight<8>(p, half, 1, out, units, [&](const Ints* lanes, int64_t count, int32_t*& at) {
    for (int64_t t = 0; t < count; t += 2)
      for (int i = 0; i < 2; ++i, at += STRIP) {
        const __m512i codes = _mm512_permutex2var_epi8((__m512i)lanes[t], i ? odds : evens, (__m512i)lanes[t + 1]);
        _mm512_storeu_si512(at, _mm512_xor_si512(codes, offset));
      }
  });
}
#endif

// What makes integers of half a strip.
template <int BITS>
static void make(const Part& p, int half, const gemm::StripDecoder& decoder, float multiple, int32_t* out,
                 float* units) {
#if WM_SIMD == 512
  if (multiple != 0 && p.w.element == WM_E2M1) return four_bits<BITS, WM_E2M1, 2>(p, half, out, units);
  if (multiple != 0 && p.w.element == WM_INT8 && BITS == 8) return eight_bits(p, half, out, units);
  if (multiple != 0 && p.w.element == WM_INT4) return four_bits<BITS, WM_INT4, 1>(p, half, out, units);
#endif
  decoder.half(p, half);
  integers<BITS>(p, half, multiple, out, units);
}
