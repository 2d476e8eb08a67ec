// Rows of weights as float32, in their natural order: what `dequantize` defines, each operation rounded once. Included
// once for each instruction set, after elements.h and floats.h; of headers that are included together one includes it.
//
// LANES codes at a time become 32-bit lanes that hold a code in their lowest bits, with whatever stands above. Up to
// four bits a table holds every value, and the look-up takes no notice of what stands above. Wider floats are float32
// with fewer bits, but for subnormals, which are integers times a unit; so no step meets a subnormal float32, and
// threads that flush them (XLA's) decode the same. Only what is itself no normal float32 they see as 0: scale byte 0
// of E8M0, and products that small.

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors go between functions that are inlined, and no others

#include "structs.h"

namespace decoding {

constexpr int LANES = WM_SIMD == 512 ? 16 : 8;
constexpr int RUN = 64;  // blocks whose scales are decoded before their elements
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES)));
#define WM_INLINE static inline __attribute__((always_inline))

#include "small_floats.h"

// ---- Elements ----

struct Table {
  float value[16];
};

// Of codes of up to four bits, repeated so that stray bits above do no harm.
template <WmElement E>
constexpr Table table() {
  Table t{};
  for (int i = 0; i < 16; ++i) t.value[i] = values_of(E).of[i % (1 << bits_of(E))];
  return t;
}

WM_INLINE Floats to_float(Ints v) { return __builtin_convertvector(v, Floats); }

WM_INLINE Floats float_of(WmElement e, Ints c) {
  switch (e) {  // the element is known where this is inlined
    case WM_E2M3: return small_float<Floats, 5, 3, 1, 31, 0>(c);
    case WM_E3M2: return small_float<Floats, 5, 2, 3, 31, 0>(c);
    case WM_E4M3: return small_float<Floats, 7, 3, 7, 0x7E, 0>(c);
    default: return small_float<Floats, 7, 2, 15, 0x7B, 0x7C>(c);
  }
}

#if WM_SIMD
struct alignas(64) Spread {
  uint8_t byte[4 * LANES];
  int32_t shift[LANES];
};

// Of each lane: the bytes that its code lies in, and how far from their lowest bit.
template <int BITS>
constexpr Spread spread() {
  Spread s{};
  for (int l = 0; l < LANES; ++l) {
    s.byte[4 * l] = uint8_t(l * BITS / 8);
    for (int b = 1; b < 4; ++b) s.byte[4 * l + b] = uint8_t(l * BITS / 8 + 1);
    s.shift[l] = l * BITS % 8;
  }
  return s;
}
#endif

// LANES codes, each in the lowest bits of its lane.
template <int BITS>
WM_INLINE Ints unpacked(const uint8_t* p) {
#if WM_SIMD == 512
  if constexpr (BITS == 8) return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  static constexpr Spread S = spread<BITS>();
  const __m128i bytes = _mm_maskz_loadu_epi8(__mmask16((1 << (2 * BITS)) - 1), p);
  const __m512i there = _mm512_permutexvar_epi8(_mm512_load_si512(S.byte), _mm512_castsi128_si512(bytes));
  return (Ints)_mm512_srlv_epi32(there, _mm512_load_si512(S.shift));
#elif WM_SIMD == 256
  // In loads of powers of two: others go by way of memory.
  constexpr int HEAD = BITS == 6 ? 4 : BITS == 3 ? 2 : BITS;
  uint64_t bytes = 0, tail = 0;
  std::memcpy(&bytes, p, HEAD);
  std::memcpy(&tail, p + HEAD, BITS - HEAD);
  bytes |= tail << (8 * HEAD % 64);
  if constexpr (BITS == 8) return (Ints)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(bytes)));
  static constexpr Spread S = spread<BITS>();
  const __m256i at = _mm256_load_si256(reinterpret_cast<const __m256i*>(S.byte));
  const __m256i there = _mm256_shuffle_epi8(_mm256_set1_epi64x(int64_t(bytes)), at);
  return (Ints)_mm256_srlv_epi32(there, _mm256_load_si256(reinterpret_cast<const __m256i*>(S.shift)));
#else
  if constexpr (BITS == 8) {
    uint8_t bytes __attribute__((vector_size(LANES)));
    std::memcpy(&bytes, p, LANES);
    return __builtin_convertvector(bytes, Ints);
  }
  Ints found;
  for (int l = 0; l < LANES; ++l) {
    const int at = l * BITS / 8, more = (l * BITS + BITS - 1) / 8;
    found[l] = (p[at] | p[more] << (more > at ? 8 : 0)) >> l * BITS % 8;
  }
  return found;
#endif
}

template <WmElement E>
WM_INLINE Floats looked_up(Ints codes) {
  static constexpr Table T = table<E>();
#if WM_SIMD == 512
  return (Floats)_mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(T.value));
#elif WM_SIMD == 256
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(T.value), (__m256i)codes);
  if constexpr (bits_of(E) < 4) return (Floats)low;
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(T.value + 8), (__m256i)codes);
  return (Floats)_mm256_blendv_ps(low, high, (__m256)(codes << 28));
#else
  Floats found;
  for (int l = 0; l < LANES; ++l) found[l] = T.value[codes[l] & 15];
  return found;
#endif
}

// What LANES elements at p are worth before their scale.
template <WmElement E>
WM_INLINE Floats elements(const uint8_t* p) {
  if constexpr (E == WM_F32) {
    Floats found;
    std::memcpy(&found, p, sizeof found);
    return found;
#if WM_SIMD == 512
  } else if constexpr (E == WM_BF16 || E == WM_F16) {  // compilers would widen halves of it, and put these together
    const __m256i wide = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return E == WM_F16 ? (Floats)_mm512_cvtph_ps(wide) : (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(wide), 16);
#endif
  } else if constexpr (E == WM_BF16 || E == WM_F16) {
    uint16_t wide __attribute__((vector_size(2 * LANES)));
    std::memcpy(&wide, p, sizeof wide);
    const Ints patterns = __builtin_convertvector(wide, Ints);
    return E == WM_BF16 ? (Floats)(patterns << 16) : from_f16<Floats>(patterns);
  } else if constexpr (bits_of(E) <= 4) {
    return looked_up<E>(unpacked<bits_of(E)>(p));
  } else if constexpr (E == WM_INT8 || E == WM_UINT8 || E == WM_MXINT8) {
    const Ints codes = unpacked<8>(p);
    const Floats whole = to_float(E == WM_UINT8 ? codes : codes << 24 >> 24);
    return E == WM_MXINT8 ? whole * power_of_two(-6) : whole;  // OCP MX v1.0, section 5.3.4
  } else {
#if WM_SIMD
    return float_of(E, unpacked<bits_of(E)>(p));
#else
    static constexpr Values ALL = values_of(E);  // where comparisons of vectors are slow, looking up is quicker
    const Ints codes = unpacked<bits_of(E)>(p);
    Floats found;
    for (int l = 0; l < LANES; ++l) found[l] = ALL.of[codes[l] & ((1 << bits_of(E)) - 1)];
    return found;
#endif
  }
}

// The first bytes of a register, `nbytes` of which may be readable; the others are 0.
WM_INLINE Ints first_of(const uint8_t* p, size_t nbytes) {
#if WM_SIMD == 512
  return (Ints)_mm512_maskz_loadu_epi8(nbytes < 64 ? (__mmask64(1) << nbytes) - 1 : ~__mmask64(0), p);
#else
  Ints v = {};
  std::memcpy(&v, p, nbytes);
  return v;
#endif
}

// What `read` makes of LANES codes, of which `count` may be readable.
template <int BITS, typename Read>
WM_INLINE auto some(const uint8_t* p, int64_t count, const Read& read) {
  if (count >= LANES) return read(p);
  const Ints there = first_of(p, size_t(count * BITS + 7) / 8);
  uint8_t whole[sizeof there];
  std::memcpy(whole, &there, sizeof there);
  return read(whole);
}
template <WmElement E>
WM_INLINE Floats some(const uint8_t* p, int64_t count) {
  return some<bits_of(E)>(p, count, [](const uint8_t* at) __attribute__((always_inline)) { return elements<E>(at); });
}
WM_INLINE void put(float* out, Floats v, int64_t count) {
#if WM_SIMD == 512
  if (count < LANES) return _mm512_mask_storeu_ps(out, __mmask16((1 << count) - 1), (__m512)v);
#endif
  std::memcpy(out, &v, count >= LANES ? sizeof v : size_t(count) * 4);
}

// ---- Scales ----

WM_INLINE Floats e8m0(const uint8_t* bytes) {  // 2^(byte - 127); byte 0 is subnormal, 0xFF is NaN: OCP MX v1.0, 5.4.1
  const Ints byte = unpacked<8>(bytes), bits = byte == 0 ? Ints{} + 0x00400000 : byte << 23;
  return (Floats)(byte == 0xFF ? Ints{} + 0x7FC00000 : bits);
}

// LANES factors of the scales from `from` on, all of one matrix, of which `count` may be there.
WM_INLINE Floats some_factors(const Weights& w, int64_t matrix, int64_t from, int64_t count) {
  const uint8_t* s = w.scales;
  Floats found = {};
  switch (w.scale) {
    case WM_SCALE_E8M0: found = some<8>(s + from, count, e8m0); break;
    case WM_SCALE_E4M3: found = some<WM_E4M3>(s + from, count); break;
    case WM_SCALE_F16: found = some<WM_F16>(s + 2 * from, count); break;
    case WM_SCALE_BF16: found = some<WM_BF16>(s + 2 * from, count); break;
    case WM_SCALE_DYNAMIC8: {
      const float offset = w.seconds[(w.matrices * w.down() * w.across() + 255) / 256];
      for (int64_t i = 0; i < LANES && i < count; ++i)
        found[i] = w.book[s[from + i]] * w.seconds[(from + i) / 256] + offset;
      return found;
    }
    default: found = some<WM_F32>(s + 4 * from, count);
  }
  if (w.second == WM_SECOND_F32) return found * w.seconds[matrix];
  if (w.second == WM_SECOND_INVERSE_F32) return found / w.seconds[matrix];
  return found;
}
WM_INLINE Floats some_zeros(const Weights& w, int64_t from, int64_t count) {
  return w.zero == WM_ZERO_INT ? some<WM_UINT8>(w.zeros + from, count) : some<WM_F16>(w.zeros + 2 * from, count);
}

static void factors(const Weights& w, int64_t matrix, int64_t from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += LANES) put(out + i, some_factors(w, matrix, from + i, count - i), count - i);
}
static void zeros(const Weights& w, int64_t from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += LANES) put(out + i, some_zeros(w, from + i, count - i), count - i);
}

// ---- Rows ----

template <WmZero Z, typename F, typename S>
WM_INLINE F scaled(F value, S factor, S zero) {
  if constexpr (Z == WM_ZERO_INT) return (value - zero) * factor;
  if constexpr (Z == WM_ZERO_MIN_F16) return value * factor + zero;
  return value * factor;
}

template <WmElement E>
static void plain_row(const Weights& w, int64_t matrix, int64_t row, int64_t from, int64_t count, float* out) {
  const uint8_t* p = w.codes + (matrix * w.rows + row) * w.row_nbytes() + from * bits_of(E) / 8;
  for (int64_t i = 0; i < count; i += LANES) put(out + i, some<E>(p + i * bits_of(E) / 8, count - i), count - i);
}

template <WmElement E, WmZero Z>
static void coded_row(const Weights& w, int64_t matrix, int64_t row, int64_t from, int64_t count, float* out) {
  const uint8_t* codes = w.codes + (matrix * w.rows + row) * w.row_nbytes();
  const int64_t block = w.block_elems, scales = (matrix * w.down() + row / w.block_rows) * w.across();
  float factor[RUN], zero[RUN] = {};
  for (int64_t at = from, end = from + count; at < end;) {
    const int64_t first = at / block, most = (end - 1) / block + 1 - first, blocks = most < RUN ? most : RUN;
    factors(w, matrix, scales + first, blocks, factor);
    if constexpr (Z != WM_ZERO_NONE) zeros(w, scales + first, blocks, zero);
    const int64_t stop = blocks < most ? (first + blocks) * block : end;
    if (block % LANES == 0 && at % LANES == 0) {
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t last = (first + b + 1) * block < stop ? (first + b + 1) * block : stop;
        const Floats f = factor[b] - Floats{}, z = zero[b] - Floats{};  // of all lanes; 0 + -0 would be 0
        for (; at + LANES <= last; at += LANES)
          put(out + at - from, scaled<Z>(elements<E>(codes + at * bits_of(E) / 8), f, z), LANES);
        if (at == last) continue;
        put(out + at - from, scaled<Z>(some<E>(codes + at * bits_of(E) / 8, last - at), f, z), last - at);
        at = last;
      }
      continue;
    }
    int64_t b = 0, left = (first + 1) * block - at;  // elements until the next block begins
    for (; at < stop; at += LANES) {
      Floats f = {}, z = {};
      const int64_t here = stop - at < LANES ? stop - at : LANES;
      if (block == 1 && here == LANES) {
        std::memcpy(&f, factor + b, sizeof f);
        std::memcpy(&z, zero + b, sizeof z);
        b += LANES;
      } else for (int l = 0; l < here; ++l) {
        f[l] = factor[b];
        z[l] = zero[b];
        if (--left == 0) ++b, left = block;
      }
      put(out + at - from, scaled<Z>(some<E>(codes + at * bits_of(E) / 8, end - at), f, z), here);
    }
  }
}

// ---- Structs ----

template <WmElement E>
WM_INLINE void struct_block(const uint8_t* p, float* out) {
  constexpr int GROUP = structs::GROUP<E>, GROUPS = structs::GROUPS<E>;
  alignas(64) int8_t codes[structs::SIZE<E>];
  alignas(64) float factor[GROUPS], less[GROUPS];
  structs::codes_of<E>(p, codes);
  structs::factors_of<E>(p, factor, less);
  for (int g = 0; g < GROUPS; ++g)
    for (int i = g * GROUP; i < (g + 1) * GROUP; i += LANES) {
      Floats v = to_float(unpacked<8>(reinterpret_cast<const uint8_t*>(codes) + i) << 24 >> 24) * factor[g];
      if constexpr (structs::MINIMA<E>) v = v - less[g];
      put(out + i, v, LANES);
    }
}

template <WmElement E>
static void struct_row(const Weights& w, int64_t matrix, int64_t row, int64_t from, int64_t count, float* out) {
  constexpr int SIZE = structs::SIZE<E>;
  const uint8_t* p = w.codes + (matrix * w.rows + row) * w.row_nbytes() + from / SIZE * struct_nbytes(E);
  for (int64_t at = from, end = from + count; at < end; p += struct_nbytes(E)) {
    const int64_t skipped = at % SIZE, some = SIZE - skipped < end - at ? SIZE - skipped : end - at;
    if (some == SIZE) {
      struct_block<E>(p, out);
    } else {
      float whole[SIZE];
      struct_block<E>(p, whole);
      std::memcpy(out, whole + skipped, size_t(some) * 4);
    }
    at += some, out += some;
  }
}

}  // namespace decoding

// out [count] = elements [from, from + count) of a row of a matrix. `from` is a multiple of 8, so that it begins a byte
// whatever the format; a multiple of 16 is quicker.
using DecodeRow = void (*)(const Weights& w, int64_t matrix, int64_t row, int64_t from, int64_t count, float* out);

// What decodes rows of structs; null of what is none.
static DecodeRow struct_decoder(WmElement e) {
  using namespace decoding;
#define WM_STRUCT(e) \
  case e: return struct_row<e>;
  switch (e) {
    WM_STRUCT(WM_Q2_K) WM_STRUCT(WM_Q3_K) WM_STRUCT(WM_Q4_K) WM_STRUCT(WM_Q5_K) WM_STRUCT(WM_Q6_K)
    WM_STRUCT(WM_Q5_0) WM_STRUCT(WM_Q5_1) WM_STRUCT(WM_IQ4_NL)
    default: return nullptr;
  }
#undef WM_STRUCT
}

// What decodes rows of w, to be asked once for many of them.
static DecodeRow decoder(const Weights& w) {
  using namespace decoding;
#define WM_ZEROS(e) \
  case e: return w.zero == WM_ZERO_INT ? coded_row<e, WM_ZERO_INT> : coded_row<e, WM_ZERO_MIN_F16>;
#define WM_SIGNED(e) \
  case e: return coded_row<e, WM_ZERO_NONE>;
  switch (w.element) {
    case WM_F32: return plain_row<WM_F32>;
    case WM_BF16: return plain_row<WM_BF16>;
    case WM_F16: return plain_row<WM_F16>;
    WM_SIGNED(WM_E2M1) WM_SIGNED(WM_E2M3) WM_SIGNED(WM_E3M2) WM_SIGNED(WM_E4M3) WM_SIGNED(WM_E5M2)
    WM_SIGNED(WM_MXINT8) WM_SIGNED(WM_NF4) WM_SIGNED(WM_INT8) WM_SIGNED(WM_INT4) WM_SIGNED(WM_INT3) WM_SIGNED(WM_INT2)
    WM_ZEROS(WM_UINT8) WM_ZEROS(WM_UINT4) WM_ZEROS(WM_UINT3) WM_ZEROS(WM_UINT2)
    default: return struct_decoder(w.element);
  }
#undef WM_ZEROS
#undef WM_SIGNED
}

static inline void decode_row(const Weights& w, int64_t matrix, int64_t row, int64_t from, int64_t count, float* out) {
  decoder(w)(w, matrix, row, from, count, out);
}
#undef WM_INLINE
