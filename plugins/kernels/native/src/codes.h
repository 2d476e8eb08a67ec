// Codes nearest to float32 values, a register at a time and without branches. Included once for each instruction set.
//
// A float32 sum is rounded once, to nearest even: added to a power of two whose last place is the spacing of the
// element's values, a magnitude comes out as that power's pattern plus the number of spacings. What is left over is
// exact, so that a tie is known and can be broken otherwise.

// Registers: WIDTH bytes of float or int32; and the same in memory, wherever they begin.
constexpr int WIDTH = WM_SIMD ? WM_SIMD / 8 : 16, LANES = WIDTH / 4;
typedef float VF __attribute__((vector_size(WIDTH)));
typedef int32_t VI __attribute__((vector_size(WIDTH)));
typedef float InMemoryF __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef int32_t InMemoryI __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef uint64_t Word __attribute__((aligned(1), may_alias));
typedef uint16_t InMemory16 __attribute__((may_alias));
typedef uint32_t InMemory32 __attribute__((may_alias));

static inline VF load(const float* x) { return *reinterpret_cast<const InMemoryF*>(x); }
static inline void store(float* x, VF v) { *reinterpret_cast<InMemoryF*>(x) = v; }
static inline void store(int32_t* x, VI v) { *reinterpret_cast<InMemoryI*>(x) = v; }
static inline VI load(const int32_t* x) { return *reinterpret_cast<const InMemoryI*>(x); }
static inline bool any(VI v) {
  uint64_t parts[WIDTH / 8], found = 0;
  std::memcpy(parts, &v, WIDTH);
  for (uint64_t part : parts) found |= part;
  return found != 0;
}
static inline VF full(float v) { return v - VF{}; }
static inline VI full(int32_t v) { return v - VI{}; }
// b where there is a NaN.
#if WM_SIMD == 512
static inline VF least_of(VF a, VF b) { return (VF)_mm512_min_ps((__m512)a, (__m512)b); }
static inline VF most_of(VF a, VF b) { return (VF)_mm512_max_ps((__m512)a, (__m512)b); }
#else
static inline VF least_of(VF a, VF b) { return a < b ? a : b; }
static inline VF most_of(VF a, VF b) { return a > b ? a : b; }
#endif
static inline VF magnitude(VF v) { return (VF)((VI)v & 0x7FFFFFFF); }

constexpr float WHOLE = 12582912.0f;  // 1.5 · 2^23: added to |v| < 2^22 it leaves v rounded in the last places

static inline VF whole(VF v) { return (v + WHOLE) - WHOLE; }

static inline void store_bytes(uint8_t* out, VI code) {
#if WM_SIMD == 512
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8((__m512i)code));
#elif WM_SIMD == 256
  const __m256i c = _mm256_and_si256((__m256i)code, _mm256_set1_epi32(255));
  const __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(w, w));
#else
  for (int l = 0; l < LANES; ++l) out[l] = uint8_t(code[l]);
#endif
}

// What rounding up or down is right for a tie, on top of what rounding to even did: `rest` is what the value is past it.
static inline VI untied(VI tied, VF rest, VI up) {
  return tied & (up ? ((VI)(rest > 0) & 1) : (VI)(rest < 0));
}

// Magnitudes as a float of this many mantissa bits; `s` and `power` are patterns with the number of spacings between.
struct Rounded {
  VI code;
  VF value;
};

static inline Rounded spaced(VF magnitude, int mantissa, int bias) {
  VI power = (VI)magnitude & 0x7F800000;
  const VI first = full((128 - bias) << 23);  // subnormals are spaced like the smallest normal binade
  power = power > first ? power : first;
  power += (23 - mantissa) << 23;
  const VF s = magnitude + (VF)power;
  return {((VI)s - (VI)power) + (power >> (23 - mantissa)) - ((128 - bias + 23 - mantissa) << mantissa), s - (VF)power};
}

// An element makes of a register of values divided by their scales (free of NaN) codes, and gives what they stand for
// under a scale of 1. `zero`: which values become -0. `point`: of a zero point, the point less half the codes.

template <bool EVEN>
struct Floats {
  const int mantissa, bias, down;
  const VF largest;
  const VI first, away, by_sign, sign_bit;
  const bool positive;

  explicit Floats(const QuantizeCall& q)
      : mantissa(q.mantissa), bias(q.bias), down(32 - q.bits), largest(full(q.largest)),
        first(full((128 - q.bias) << 23)), away(full(-(q.ties == WM_TIES_AWAY))),
        by_sign(full(-(q.ties == WM_TIES_DOWN))), sign_bit(full(1 << (q.bits - 1))),
        positive(q.sign == WM_POSITIVE) {}

  VF operator()(VF u, VI zero, VF, VI* code) const {
    const VF a = least_of(magnitude(u), largest);
    VI sign = (VI)u & INT32_MIN;
    Rounded r = spaced(a, mantissa, bias);
    if (!EVEN) {
      VI binade = (VI)a & 0x7F800000;
      binade = binade > first ? binade : first;
      const VF half = (VF)(binade - ((mantissa + 1) << 23)), rest = a - r.value;  // half a spacing
      const VI step = untied((VI)(magnitude(rest) == half), rest, away | (by_sign & (sign >> 31)));
      r.code += step;
      r.value += __builtin_convertvector(step, VF) * (half + half);
    }
    sign |= zero & INT32_MIN;
    if (positive) sign &= (VI)(r.code != 0);
    *code = r.code | ((sign >> down) & sign_bit);
    return (VF)((VI)r.value | sign);
  }
};

template <bool EVEN>
struct Integers {
  const VF low, high, inverse, unit, least, most;
  const VI toward, mask;
  const bool pointed, adds, outward;

  explicit Integers(const QuantizeCall& q)
      : low(full(float(q.least))), high(full(float(q.most))), inverse(full(1 / q.unit)), unit(full(q.unit)),
        least(full(-float(1 << (q.bits - 1)))), most(-least - 1), toward(full(-(q.ties == WM_TIES_ZERO))),
        mask(full((1 << q.bits) - 1)), pointed(q.zero == WM_ZERO_INT), adds(q.ties == WM_TIES_UP),
        outward(q.ties == WM_TIES_AWAY), end(q.zero == WM_ZERO_NONE ? least : VF{}) {}
  const VF end;  // the least that bits can say

  VF operator()(VF u, VI, VF point, VI* code) const {
    VF m = u * inverse;
    if (pointed) {  // codes of compressed-tensors are signed
      m = least_of(most_of(m + point, least), most);
      if (EVEN) m = whole(m);
      m = m - least;
    }
    m = least_of(most_of(m, low), high);
    VF k;
    if (EVEN) {
      k = whole(m);
    } else if (adds) {  // ggml adds in float32 and cuts off
      k = __builtin_convertvector(__builtin_convertvector(m + (0.5f - end), VI), VF) + end;
      k = least_of(most_of(k, low), high);
    } else if (outward) {  // with less than a half no more than a tie comes to the next integer, in the sum's rounding
      const VF almost_half = (VF)(((VI)m & INT32_MIN) | (VI)full(0x1.fffffep-2f));
      k = __builtin_convertvector(__builtin_convertvector(m + almost_half, VI), VF);
    } else {
      k = whole(m);
      const VF rest = m - k;
      const VI up = toward & (VI)(m < 0);
      k += __builtin_convertvector(untied((VI)(magnitude(rest) == 0.5f), rest, up), VF);
    }
    *code = (VI)(k + WHOLE) & mask;
    return k * unit;
  }
};

// Of 15 boundaries the number that a value is past; the sixteenth is infinite.
struct Table {
  const float *edges, *values;
#if WM_SIMD == 512
  const __m512 all_edges, all_values;
  explicit Table(const QuantizeCall& q)
      : edges(q.edges), values(q.values), all_edges(_mm512_loadu_ps(q.edges)), all_values(_mm512_loadu_ps(q.values)) {}
#else
  explicit Table(const QuantizeCall& q) : edges(q.edges), values(q.values) {}
#endif

  VF operator()(VF u, VI, VF, VI* code) const {
    VI found = {};
#if WM_SIMD == 512
    for (int step = 8; step > 0; step /= 2) {  // by halves
      const VF edge = (VF)_mm512_permutexvar_ps((__m512i)(found + (step - 1)), all_edges);
      found -= (VI)(u > edge) * step;
    }
    *code = found;
    return (VF)_mm512_permutexvar_ps((__m512i)found, all_values);
#else
    for (int k = 0; k < 15; ++k) found -= (VI)(u > edges[k]);
    *code = found;
#if WM_SIMD == 256
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), (__m256i)found);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values + 8), (__m256i)found);
    return (VF)_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32((__m256i)found, 28)));
#else
    VF y;
    for (int l = 0; l < LANES; ++l) y[l] = values[found[l]];
    return y;
#endif
#endif
  }
};

// Codes, one a byte, squeezed together in place, low bit first: 8 of them become `bits` bytes. `code` has room for
// whole words; `out` takes n · bits / 8 bytes and not one more.
static void pack(uint8_t* __restrict code, int64_t n, int bits, uint8_t* __restrict out) {
  if (bits == 8) {
    std::memcpy(out, code, size_t(n));
    return;
  }
  if (bits == 4) {
    const InMemory16* pair = reinterpret_cast<const InMemory16*>(code);
    for (int64_t i = 0; i < n / 2; ++i) out[i] = uint8_t(pair[i] | (pair[i] >> 4));
    return;
  }
  std::memset(code + n, 0, 8);
  const int64_t words = (n + 7) / 8;
  Word* word = reinterpret_cast<Word*>(code);
  uint64_t low[3];  // the lower half of each group of 2, 4 and 8 codes
  for (int k = 0; k < 3; ++k) {
    const int used = bits << k, every = 16 << k;
    low[k] = 0;
    for (int at = 0; at < 64; at += every) low[k] |= ((uint64_t(1) << used) - 1) << at;
  }
  const uint64_t low0 = low[0], low1 = low[1], low2 = low[2];
  const int by0 = 8 - bits, by1 = 16 - 2 * bits, by2 = 32 - 4 * bits;
  for (int64_t i = 0; i < words; ++i) {
    uint64_t w = word[i];
    w = (w & low0) | ((w >> by0) & (low0 << bits));
    w = (w & low1) | ((w >> by1) & (low1 << (2 * bits)));
    word[i] = (w & low2) | ((w >> by2) & (low2 << (4 * bits)));
  }
  const int64_t size = n * bits / 8;
  int64_t i = 0;
  for (; i * bits + 8 <= size; ++i) std::memcpy(out + i * bits, word + i, 8);  // the next goes over what is too much
  for (; i < words; ++i)
    for (int64_t b = i * bits; b < size && b < (i + 1) * bits; ++b) out[b] = uint8_t(word[i] >> (8 * (b - i * bits)));
}
