// Strips of weights: STRIP rows by some columns, transposed, as kernels for many rows of activations want them. Included
// once for each instruction set, after elements.h and floats.h.
//
// Codes are transposed before they are decoded, as 32-bit lanes of a few codes each: a shift then brings the codes of one
// column to the lowest bits, for LANES rows at once. Three lanes hold whole codes of any width.
#include "lanes.h"

namespace gemm {

constexpr int64_t SCALES = 768;     // of a row at a time, at most
constexpr int64_t HALF_SCALES = 2 * SCALES * LANES;  // floats: factors and zeros of half a strip
constexpr int64_t SCALES_SCRATCH = 2 * HALF_SCALES;

// Columns of a row that share a scale.
static inline int64_t group_of(const Weights& w) {
  return is_struct(w.element) ? structs::group_of(w.element) : w.block_elems;
}

// Part of a strip: rows `row` … of a matrix, of which `rows` are there (the last stands for those that are not), columns
// `k` … `k + depth`, `k` a multiple of 8. `out` is [depth][STRIP]; `scales` is SCALES_SCRATCH, and has those of groups
// `first_group` … of the rows.
struct Part {
  const Weights& w;
  int64_t matrix, row, rows, k, depth;
  float *out, *scales;
  int64_t first_group;

  int64_t at(int r) const { return row + least(r, rows - 1); }
  const float* scales_of(int half, int64_t column) const {
    return scales + half * HALF_SCALES + (column / group_of(w) - first_group) * LANES;
  }
};

// Byte i of lanes as a number, signed or not.
template <bool SIGNED>
WM_INLINE Floats byte_of(Ints lanes, int i) {
#if WM_SIMD == 512  // as the last of 2^23 + byte, a float, of which signed ones are moved up: shifts have one port
  const __m512i bytes = SIGNED ? _mm512_xor_si512((__m512i)lanes, _mm512_set1_epi8(char(0x80))) : (__m512i)lanes;
  const __m512i at = _mm512_broadcast_i32x4(_mm_setr_epi32(i, 4 + i, 8 + i, 12 + i));
  const __m512i moved = _mm512_mask_shuffle_epi8(_mm512_set1_epi32(0x4B000000), 0x1111111111111111ull, bytes, at);
  return (Floats)_mm512_sub_ps(_mm512_castsi512_ps(moved), _mm512_set1_ps(SIGNED ? 0x1p23f + 128 : 0x1p23f));
#else
  return decoding::to_float(SIGNED ? lanes << (24 - 8 * i) >> 24 : lanes >> 8 * i & 0xFF);
#endif
}

// What LANES elements are worth before their scales: codes in the lowest bits of lanes, whatever stands above.
template <WmElement E>
WM_INLINE Floats value(Ints c) {
  if constexpr (E == WM_F32) return (Floats)c;
  else if constexpr (E == WM_BF16) return (Floats)(c << 16);
  else if constexpr (E == WM_F16) return decoding::from_f16<Floats>(c);
  else if constexpr (bits_of(E) <= 4) return decoding::looked_up<E>(c);
  else {
    static_assert(E < WM_MXINT8, "integers of eight bits are no floats: see `element`");
    return decoding::float_of(E, c);
  }
}

// The i-th code of lanes that hold one stream of bits.
template <int BITS>
WM_INLINE Ints code(const Ints* lanes, int i) {
  const int word = i * BITS / 32, shift = i * BITS % 32;
  const Ints low = lanes[word] >> shift;
  if (shift + BITS <= 32) return low;
  const int above = (32 - shift) % 32;  // bits that the next word has
  return (low & ((1 << above) - 1)) | (lanes[word + 1] << above);
}

// The i-th element of lanes that hold one stream of bits.
template <WmElement E>
WM_INLINE Floats element(const Ints* lanes, int i) {
  if constexpr (E == WM_INT8 || E == WM_UINT8) return byte_of<E == WM_INT8>(lanes[i / 4], i % 4);
  else if constexpr (E == WM_MXINT8) return byte_of<true>(lanes[i / 4], i % 4) * power_of_two(-6);
  else return value<E>(code<bits_of(E)>(lanes, i));
}

// Factors (and zeros) of the blocks that a part meets: of each half [blocks][LANES].
template <WmZero Z>
static void find_scales(Part& p) {
  const Weights& w = p.w;
  const int64_t first = p.first_group = p.k / w.block_elems, blocks = (p.k + p.depth - 1) / w.block_elems - first + 1;
  const int64_t across = w.across(), above = p.matrix * w.down();
  const int64_t nbytes = SCALE_NBYTES[w.scale], zero_nbytes = Z == WM_ZERO_INT ? 1 : 2;
  // Those of the next strip are wanted when this one has met its activations.
  const int64_t soon = STRIP * across / (w.block_rows < STRIP ? w.block_rows : STRIP);
  for (int half = 0; half < 2; ++half)
    for (int64_t b = 0; b < blocks; b += LANES) {
      Ints factors[LANES], zeros[LANES];
      for (int r = 0; r < LANES; ++r) {
        const int64_t from = (above + w.band(p.at(half * LANES + r))) * across + first + b;
        __builtin_prefetch(w.scales + (from + soon) * nbytes);
        factors[r] = (Ints)decoding::some_factors(w, p.matrix, from, blocks - b);
        if constexpr (Z == WM_ZERO_NONE) continue;
        __builtin_prefetch(w.zeros + (from + soon) * zero_nbytes);
        zeros[r] = (Ints)decoding::some_zeros(w, from, blocks - b);
      }
      float* out = p.scales + half * HALF_SCALES + b * LANES;
      transpose(factors);
      if constexpr (Z != WM_ZERO_NONE) transpose(zeros);
      for (int64_t r = 0; r < least(LANES, blocks - b); ++r, out += LANES) {
        store(out, (Floats)factors[r]);
        if constexpr (Z != WM_ZERO_NONE) store(out + SCALES * LANES, (Floats)zeros[r]);
      }
    }
}

// [LANES][COUNT] → [COUNT][LANES]
template <int COUNT>
WM_INLINE void turned(const float (&rows)[LANES][COUNT], float* out) {
  if constexpr (COUNT == 1) std::memcpy(out, rows, sizeof rows);
  for (int from = 0; COUNT > 1 && from < COUNT; from += LANES) {
    constexpr int SOME = COUNT < LANES ? COUNT : LANES;
    Ints square[LANES];
    for (int r = 0; r < LANES; ++r)
      square[r] = decoding::first_of(reinterpret_cast<const uint8_t*>(rows[r] + from), 4 * SOME);
    transpose(square);
    for (int i = 0; i < SOME; ++i, out += LANES) store(out, (Floats)square[i]);
  }
}

// The same of structs.
template <WmElement E>
static void find_scales_of_structs(Part& p) {
  constexpr int GROUPS = structs::GROUPS<E>;
  const int64_t row = p.w.row_nbytes(), first = p.k / structs::SIZE<E>, end = p.k + p.depth;
  p.first_group = first * GROUPS;
  for (int half = 0; half < 2; ++half) {
    float* out = p.scales + half * HALF_SCALES;
    for (int64_t b = first; b * structs::SIZE<E> < end; ++b, out += GROUPS * LANES) {
      alignas(64) float factors[LANES][GROUPS], minima[LANES][GROUPS];
      for (int r = 0; r < LANES; ++r) {
        const int64_t at = (p.matrix * p.w.rows + p.at(half * LANES + r)) * row + b * struct_nbytes(E);
        structs::factors_of<E>(p.w.codes + at, factors[r], minima[r]);
      }
      turned(factors, out);
      if constexpr (structs::MINIMA<E>) turned(minima, out + SCALES * LANES);
    }
  }
}

static void no_scales(Part&) {}

// Columns whose scales are found at a time: a multiple of `depth`, which has no more than SCALES.
static inline int64_t columns_of_scales(const Weights& w, int64_t depth) {
  const int64_t columns = (SCALES - 32) * group_of(w) / depth * depth;  // those of two structs may be more
  return columns > depth ? columns : depth;
}

// Codes of half a strip, a square at a time: as many columns as LANES of 32 bits hold, LANES of each row, transposed.
template <int BITS>
struct Squares {
  static constexpr int WORDS = 32 % BITS ? 3 : 1, PER = WORDS * 32 / BITS;  // codes of so many words
  static constexpr int GROUPS = LANES / WORDS, COLUMNS = GROUPS * PER;
  static constexpr size_t NBYTES = COLUMNS * BITS / 8;  // of a row
  const int64_t row, last;  // bytes of a row; the last of LANES rows that is there
  const uint8_t* from;      // of the first row

  WM_METHOD Squares(const Part& p, int half)
      : row(p.w.row_nbytes()),
        last(p.rows - 1 - half * LANES),
        from(p.w.codes + (p.matrix * p.w.rows + p.at(half * LANES)) * row + p.k * BITS / 8) {}

  // Zeros where there are fewer columns.
  WM_METHOD void read(int64_t columns, Ints lanes[LANES]) {
    if (columns >= COLUMNS) {
      each(lanes, [](const uint8_t* p) { return decoding::first_of(p, NBYTES); });
    } else {
      const size_t nbytes = size_t(columns * BITS + 7) / 8;
      each(lanes, [=](const uint8_t* p) { return decoding::first_of(p, nbytes); });
    }
    transpose(lanes);
  }

 private:
  template <typename Read>
  WM_METHOD void each(Ints lanes[LANES], const Read& read) {
    const uint8_t* p = from;
    for (int r = 0; r < LANES; ++r, p += r <= last ? row : 0) {
      lanes[r] = read(p);
      // The next strip's are far away, and wanted when this one has met its activations.
      __builtin_prefetch(p + STRIP * row, 0, 2);
    }
    from += NBYTES;
  }
};

// Half a strip, LANES rows of it.
template <WmElement E, WmZero Z>
static void decode_half(const Part& p, int half) {
  constexpr bool PLAIN = E <= WM_F16;
  constexpr int BITS = bits_of(E), PER = Squares<BITS>::PER, COLUMNS = Squares<BITS>::COLUMNS;
  const Weights& w = p.w;
  const float* factors = PLAIN ? nullptr : p.scales_of(half, p.k);
  Floats factor = {}, zero = {};
  int64_t left = PLAIN ? p.depth : w.block_elems - p.k % w.block_elems;  // columns of this block
  const auto next_block = [&] {
    factor = load(factors);
    if constexpr (Z != WM_ZERO_NONE) zero = load(factors + SCALES * LANES);
    factors += LANES;
  };
  if constexpr (!PLAIN) next_block();
  const auto scaled = [&](Floats v) {
    if constexpr (PLAIN) return v;
    else return decoding::scaled<Z>(v, factor, zero);
  };
  float* out = p.out + half * LANES;
  Squares<BITS> squares(p, half);
  for (int64_t k = 0; k < p.depth; k += COLUMNS) {
    const int64_t columns = least(COLUMNS, p.depth - k);
    Ints lanes[LANES];
    squares.read(columns, lanes);
    for (int64_t c = 0, group = 0; c < columns; c += PER, ++group) {
      const Ints* own = lanes + group * Squares<BITS>::WORDS;
      if (left >= PER && columns - c >= PER) {
#pragma GCC unroll 32
        for (int i = 0; i < PER; ++i, out += STRIP) store(out, scaled(element<E>(own, i)));
        left -= PER;
        if (!PLAIN && left == 0 && k + c + PER < p.depth) {
          next_block();
          left = w.block_elems;
        }
        continue;
      }
      for (int i = 0; i < PER && c + i < columns; ++i, out += STRIP) {
        if (!PLAIN && left == 0) {
          next_block();
          left = w.block_elems;
        }
        store(out, scaled(element<E>(own, i)));
        --left;
      }
    }
  }
}

// Codes of half a strip of structs, as bytes in order, a square at a time: `each` is given lanes of four columns of LANES
// rows, how many of them are there, and the first column.
template <WmElement E, typename Each>
WM_INLINE void squares_of_structs(const Part& p, int half, const Each& each) {
  constexpr int SIZE = structs::SIZE<E>, SQUARE = 4 * LANES, NBYTES = struct_nbytes(E);
  constexpr int SPAN = SIZE < SQUARE ? SQUARE : SIZE;  // columns at a time: a block, or some
  alignas(64) int8_t codes[LANES][SPAN];
  const int64_t row = p.w.row_nbytes();
  const uint8_t* const first = p.w.codes + p.matrix * p.w.rows * row;
  for (int64_t k = p.k, end = p.k + p.depth, columns; k < end; k += columns) {
    const int skipped = int(k % SIZE);
    columns = least(SPAN - skipped, end - k);
    for (int r = 0; r < LANES; ++r) {
      const uint8_t* b = first + p.at(half * LANES + r) * row + k / SIZE * NBYTES;
      for (int c = 0; c < skipped + columns; c += SIZE, b += NBYTES) {
        for (int at = 0; at < NBYTES; at += 64) __builtin_prefetch(b + STRIP * row + at, 0, 2);  // as in Squares
        structs::codes_of<E>(b, codes[r] + c, skipped, int(least(SIZE, skipped + columns - c)));
      }
    }
    for (int64_t c = skipped, last = skipped + columns; c < last; c += SQUARE) {
      Ints lanes[LANES];
      for (int r = 0; r < LANES; ++r) std::memcpy(&lanes[r], codes[r] + c, sizeof lanes[r]);
      transpose(lanes);
      each(lanes, least(LANES, (last - c) / 4), k - skipped + c);
    }
  }
}

template <WmElement E>
static void decode_half_of_structs(const Part& p, int half) {
  constexpr int GROUP = structs::GROUP<E>;
  const float* factors = p.scales_of(half, p.k);
  float* out = p.out + half * LANES;
  squares_of_structs<E>(p, half, [&](const Ints* lanes, int64_t count, int64_t column) {
    for (int64_t t = 0; t < count; factors += LANES) {
      const Floats by = load(factors), less = structs::MINIMA<E> ? load(factors + SCALES * LANES) : Floats{};
      for (const int64_t next = least(count, t + GROUP / 4 - (column + 4 * t) % GROUP / 4); t < next; ++t)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i, out += STRIP) {
          const Floats v = byte_of<!structs::MINIMA<E>>(lanes[t], i) * by;
          store(out, structs::MINIMA<E> ? v - less : v);
        }
    }
  });
}

// What decodes strips of a format.
struct StripDecoder {
  void (*find_scales)(Part&);                 // before any of its columns
  void (*half)(const Part&, int half);
};

template <WmElement E, WmZero Z>
constexpr StripDecoder DECODER = {E <= WM_F16 ? no_scales : find_scales<Z>, decode_half<E, Z>};

template <WmElement E>
constexpr StripDecoder OF_STRUCTS = {find_scales_of_structs<E>, decode_half_of_structs<E>};

static const StripDecoder& strip_decoder(const Weights& w) {
#define WM_SIGNED(e) \
  case e: return DECODER<e, WM_ZERO_NONE>;
#define WM_UNSIGNED(e) \
  case e: return w.zero == WM_ZERO_INT ? DECODER<e, WM_ZERO_INT> : DECODER<e, WM_ZERO_MIN_F16>;
#define WM_STRUCT(e) \
  case e: return OF_STRUCTS<e>;
  switch (w.element) {
    WM_SIGNED(WM_F32) WM_SIGNED(WM_BF16) WM_SIGNED(WM_F16)
    WM_SIGNED(WM_E2M1) WM_SIGNED(WM_E2M3) WM_SIGNED(WM_E3M2) WM_SIGNED(WM_E4M3) WM_SIGNED(WM_E5M2)
    WM_SIGNED(WM_MXINT8) WM_SIGNED(WM_NF4) WM_SIGNED(WM_INT8) WM_SIGNED(WM_INT4) WM_SIGNED(WM_INT3) WM_SIGNED(WM_INT2)
    WM_UNSIGNED(WM_UINT8) WM_UNSIGNED(WM_UINT4) WM_UNSIGNED(WM_UINT3) WM_UNSIGNED(WM_UINT2)
    WM_STRUCT(WM_Q2_K) WM_STRUCT(WM_Q3_K) WM_STRUCT(WM_Q4_K) WM_STRUCT(WM_Q5_K) WM_STRUCT(WM_Q6_K)
    WM_STRUCT(WM_Q5_0) WM_STRUCT(WM_Q5_1) WM_STRUCT(WM_IQ4_NL)
  }
  __builtin_unreachable();
#undef WM_SIGNED
#undef WM_UNSIGNED
#undef WM_STRUCT
}

}  // namespace gemm
