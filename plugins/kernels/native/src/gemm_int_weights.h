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
static void integers(const Part& p, int half, float multiple, bool small, int32_t* out, float* units) {
  using W = Width<BITS>;
  const Floats offset = gemm::everywhere(float(W::offset(small)));
  constexpr int32_t MASK = W::QUADS ? 0xFF : 0xFFFF;
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
        const Floats v = load(strip + W::column(t, j) * STRIP), scaled = W::QUADS ? fused(v, inverse, offset) : v * inverse;
        lane |= (rounded(scaled) & MASK) << (32 / W::PER * j);
      }
      std::memcpy(out + (b * (BLOCK / W::PER) + t) * STRIP + half * LANES, &lane, sizeof lane);
    }
  }
}

#if WM_SIMD != 0
static void units_of(const Part& p, int half, float multiple, float* units) {
  for (int64_t b = 0; b * BLOCK < p.depth; ++b) {
    Floats unit, inverse;
    unit_of_scale(p, half, b, multiple, &unit, &inverse);
    store(units + b * STRIP + half * LANES, unit);
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

#endif

#if WM_SIMD == 512
// Of four bits: look-ups of bytes, or of halves.
template <int BITS, WmElement E, int MULTIPLE>
static void four_bits(const Part& p, int half, int32_t* out, float* units) {
  using W = Width<BITS>;
  static constexpr Integers<W, E, MULTIPLE> TABLE;
  const __m512i table = _mm512_load_si512(TABLE.value);
  straight<4>(p, half, MULTIPLE, out, units, [&](const Ints* lanes, int64_t count, int32_t*& at) {
    for (int64_t t = 0; t < count; ++t)
      for (int i = 0; i < 8 / W::PER; ++i, at += STRIP) {
        const __m512i codes = (__m512i)(lanes[t] >> (4 * i));
        const __m512i found = W::QUADS ? _mm512_permutexvar_epi8(codes, table) : _mm512_permutexvar_epi16(codes, table);
        _mm512_storeu_si512(at, found);
      }
  });
}

// Of eight bits, which stay what they are: every other one of eight columns.
static void eight_bits(const Part& p, int half, float multiple, int32_t* out, float* units) {
  alignas(64) uint8_t even[64];
  for (int i = 0; i < 64; ++i) even[i] = uint8_t(i / 4 * 4 + i % 2 * 2 + i % 4 / 2 * 64);
  const __m512i evens = _mm512_load_si512(even), odds = _mm512_add_epi8(evens, _mm512_set1_epi8(1));
  const __m512i offset = _mm512_set1_epi8(char(0x80));
  straight<8>(p, half, multiple, out, units, [&](const Ints* lanes, int64_t count, int32_t*& at) {
    for (int64_t t = 0; t < count; t += 2)
      for (int i = 0; i < 2; ++i, at += STRIP) {
        const __m512i codes = _mm512_permutex2var_epi8((__m512i)lanes[t], i ? odds : evens, (__m512i)lanes[t + 1]);
        _mm512_storeu_si512(at, _mm512_xor_si512(codes, offset));
      }
  });
}
#elif WM_SIMD == 256
// Of four bits: look-ups of bytes.
template <int BITS, WmElement E, int MULTIPLE>
static void four_bits(const Part& p, int half, int32_t* out, float* units) {
  static constexpr Integers<Width<BITS>, E, MULTIPLE> TABLE;
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(TABLE.value));
  straight<4>(p, half, MULTIPLE, out, units, [&](const Ints* lanes, int64_t count, int32_t*& at) {
    for (int64_t t = 0; t < count; ++t)
      for (int i = 0; i < 2; ++i, at += STRIP) {
        const __m256i codes = _mm256_and_si256((__m256i)(lanes[t] >> (4 * i)), _mm256_set1_epi8(15));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_shuffle_epi8(table, codes));
      }
  });
}

// Of eight bits, which stay what they are: every other one of eight columns.
static void eight_bits(const Part& p, int half, float multiple, int32_t* out, float* units) {
  const __m256i evens_first =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  straight<8>(p, half, multiple, out, units, [&](const Ints* lanes, int64_t count, int32_t*& at) {
    for (int64_t t = 0; t < count; t += 2) {
      const __m256i a = _mm256_shuffle_epi8((__m256i)lanes[t], evens_first);
      const __m256i b = _mm256_shuffle_epi8((__m256i)lanes[t + 1], evens_first);
      const __m256i both[2] = {_mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA),
                               _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA)};
      for (int i = 0; i < 2; ++i, at += STRIP) _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), both[i]);
    }
  });
}
#endif

// What makes integers of half a strip. small: weights are, where that makes a difference.
template <int BITS>
static void make(const Part& p, int half, const gemm::StripDecoder& decoder, float multiple, bool small, int32_t* out,
                 float* units) {
#if WM_SIMD != 0
  constexpr bool QUADS = Width<BITS>::QUADS;
  const WmElement element = multiple != 0 ? p.w.element : WM_F32;
  if constexpr (WM_SIMD == 512 || QUADS) {
    if (element == WM_E2M1) return four_bits<BITS, WM_E2M1, 2>(p, half, out, units);
    if (element == WM_INT4) return four_bits<BITS, WM_INT4, 1>(p, half, out, units);
  }
  if (QUADS && (element == WM_INT8 || element == WM_MXINT8)) return eight_bits(p, half, multiple, out, units);
#endif
  decoder.half(p, half);
  integers<BITS>(p, half, multiple, small, out, units);
}
