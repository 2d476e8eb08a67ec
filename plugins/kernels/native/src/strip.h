// Strips of weights: STRIP rows by some columns, transposed, as kernels for many rows of activations want them. Included
// once for each instruction set, after weights.h and floats.h.
//
// Codes are transposed before they are decoded, as 32-bit lanes of a few codes each: a shift then brings the codes of one
// column to the lowest bits, for LANES rows at once. Three lanes hold whole codes of any width.
#include "lanes.h"

namespace gemm {

constexpr int64_t SCALES = 768;     // of a row at a time, at most
constexpr int64_t HALF_SCALES = 2 * SCALES * LANES;  // floats: factors and zeros of half a strip
constexpr int64_t SCALES_SCRATCH = 2 * HALF_SCALES;

// Part of a strip: rows `row` … of a matrix, of which `rows` are there (the last stands for those that are not), columns
// `k` … `k + depth`, `k` a multiple of 8. `out` is [depth][STRIP]; `scales` is SCALES_SCRATCH, and has those of blocks
// `first_block` … of the rows.
struct Part {
  const Weights& w;
  int64_t matrix, row, rows, k, depth;
  float *out, *scales;
  int64_t first_block;

  int64_t at(int r) const { return row + least(r, rows - 1); }
  const float* scales_of(int half, int64_t column) const {
    return scales + half * HALF_SCALES + (column / w.block_elems - first_block) * LANES;
  }
};

// What LANES elements are worth before their scales: codes in the lowest bits of lanes, whatever stands above.
template <WmElement E>
WM_INLINE Floats value(Ints c) {
  if constexpr (E == WM_F32) return (Floats)c;
  else if constexpr (E == WM_BF16) return (Floats)(c << 16);
  else if constexpr (bits_of(E) <= 4) return decoding::looked_up<E>(c);
  else if constexpr (E == WM_INT8) return decoding::to_float(c << 24 >> 24);
  else if constexpr (E == WM_UINT8) return decoding::to_float(c & 0xFF);
  else if constexpr (E == WM_MXINT8) return decoding::to_float(c << 24 >> 24) * decoding::exp2_float(-6);
  else return decoding::small_float<Floats>(E, c);
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

// Factors (and zeros) of the blocks that a part meets: of each half [blocks][LANES].
template <WmZero Z>
static void find_scales(Part& p) {
  const Weights& w = p.w;
  const int64_t first = p.first_block = p.k / w.block_elems, blocks = (p.k + p.depth - 1) / w.block_elems - first + 1;
  alignas(64) float run[LANES][decoding::RUN];
  for (int part = 0; part < 2 * (Z == WM_ZERO_NONE ? 1 : 2); ++part) {
    const int half = part % 2;
    float* out = p.scales + half * HALF_SCALES + part / 2 * SCALES * LANES;
    for (int64_t b = 0; b < blocks; b += decoding::RUN) {
      const int64_t count = least(decoding::RUN, blocks - b);
      for (int r = 0; r < LANES; ++r) {
        const int64_t down = p.matrix * w.down() + w.band(p.at(half * LANES + r));
        if (part < 2) decoding::factors(w, p.matrix, down * w.across() + first + b, count, run[r]);
        else decoding::zeros(w, down * w.across() + first + b, count, run[r]);
      }
      for (int64_t i = 0; i < count; i += LANES) {
        Ints square[LANES];
        for (int r = 0; r < LANES; ++r) std::memcpy(&square[r], run[r] + i, sizeof square[r]);
        transpose(square);
        for (int64_t r = 0; r < least(LANES, count - i); ++r) store(out + (b + i + r) * LANES, (Floats)square[r]);
      }
    }
  }
}

static void no_scales(Part&) {}

// Columns whose scales are found at a time: a multiple of `depth`, which has no more than SCALES.
static inline int64_t columns_of_scales(const Weights& w, int64_t depth) {
  const int64_t columns = (SCALES - 1) * w.block_elems / depth * depth;
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
        for (int i = 0; i < PER; ++i, out += STRIP) store(out, scaled(value<E>(code<BITS>(own, i))));
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
        store(out, scaled(value<E>(code<BITS>(own, i))));
        --left;
      }
    }
  }
}

// The same of structs, which are decoded first.
static void decode_half_of_structs(const Part& p, int half) {
  constexpr int64_t DEPTH = 256;
  const DecodeRow decode = struct_decoder(p.w.element);
  alignas(64) float rows[LANES][DEPTH];
  float* out = p.out + half * LANES;
  for (int64_t k = 0; k < p.depth; k += DEPTH) {
    const int64_t columns = least(DEPTH, p.depth - k);
    for (int r = 0; r < LANES; ++r) decode(p.w, p.matrix, p.at(half * LANES + r), p.k + k, columns, rows[r]);
    for (int64_t c = 0; c < columns; c += LANES) {
      Ints square[LANES];
      for (int r = 0; r < LANES; ++r) std::memcpy(&square[r], rows[r] + c, sizeof square[r]);
      transpose(square);
      for (int64_t i = 0; i < least(LANES, columns - c); ++i, out += STRIP) store(out, (Floats)square[i]);
    }
  }
}

// What decodes strips of a format.
struct StripDecoder {
  void (*find_scales)(Part&);                 // before any of its columns
  void (*half)(const Part&, int half);
};

template <WmElement E, WmZero Z>
constexpr StripDecoder DECODER = {E <= WM_F16 ? no_scales : find_scales<Z>, decode_half<E, Z>};

constexpr StripDecoder OF_STRUCTS = {no_scales, decode_half_of_structs};

static const StripDecoder& strip_decoder(const Weights& w) {
#define WM_SIGNED(e) \
  case e: return DECODER<e, WM_ZERO_NONE>;
#define WM_UNSIGNED(e) \
  case e: return w.zero == WM_ZERO_INT ? DECODER<e, WM_ZERO_INT> : DECODER<e, WM_ZERO_MIN_F16>;
  switch (w.element) {
    WM_SIGNED(WM_F32) WM_SIGNED(WM_BF16) WM_SIGNED(WM_F16)
    WM_SIGNED(WM_E2M1) WM_SIGNED(WM_E2M3) WM_SIGNED(WM_E3M2) WM_SIGNED(WM_E4M3) WM_SIGNED(WM_E5M2)
    WM_SIGNED(WM_MXINT8) WM_SIGNED(WM_NF4) WM_SIGNED(WM_INT8) WM_SIGNED(WM_INT4) WM_SIGNED(WM_INT3) WM_SIGNED(WM_INT2)
    WM_UNSIGNED(WM_UINT8) WM_UNSIGNED(WM_UINT4) WM_UNSIGNED(WM_UINT3) WM_UNSIGNED(WM_UINT2)
    default: return OF_STRUCTS;
  }
#undef WM_SIGNED
#undef WM_UNSIGNED
}

}  // namespace gemm
