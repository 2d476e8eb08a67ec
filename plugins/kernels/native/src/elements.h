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

static inline VF load(const float* x) { return *reinterpret_cast<const InMemoryF*>(x); }
static inline void store(float* x, VF v) { *reinterpret_cast<InMemoryF*>(x) = v; }
static inline void store(int32_t* x, VI v) { *reinterpret_cast<InMemoryI*>(x) = v; }
static inline VF full(float v) { return VF{} + v; }
static inline VI full(int32_t v) { return VI{} + v; }
static inline VF least_of(VF a, VF b) { return a < b ? a : b; }
static inline VF most_of(VF a, VF b) { return a > b ? a : b; }
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

// `count` codes, one a byte, and in y, unless it is null, what they stand for under a scale of 1.
// u: values divided by their scales, free of NaN. zeros: where it is 0, so is the value.
template <bool EVEN>
static void encode_floats(const QuantizeCall& q, const float* u, const float* zeros, int64_t count, uint8_t* code,
                          float* y) {
  const int mantissa = q.mantissa, bias = q.bias, down = 32 - q.bits;
  const VF largest = full(q.largest);
  const VI away = full(q.ties == WM_TIES_AWAY ? -1 : 0), by_sign = full(q.ties == WM_TIES_DOWN ? -1 : 0);
  const VI positive = full(q.sign == WM_POSITIVE ? -1 : 0);
  for (int64_t i = 0; i < count; i += LANES) {
    const VF v = load(u + i);
    const VF a = least_of(magnitude(v), largest);
    VI sign = (VI)v & int32_t(0x80000000);
    Rounded r = spaced(a, mantissa, bias);
    if (!EVEN) {
      // Half a spacing, from the exponent of the value's binade.
      VI binade = (VI)a & 0x7F800000;
      const VI first = full((128 - bias) << 23);
      binade = binade > first ? binade : first;
      const VF half = (VF)(binade - ((mantissa + 1) << 23)), rest = a - r.value;
      const VI step = untied((VI)(magnitude(rest) == half), rest, away | (by_sign & (sign >> 31)));
      r.code += step;
      r.value += __builtin_convertvector(step, VF) * (half + half);
    }
    if (q.sign == WM_MINUS) sign |= (VI)(load(zeros + i) == 0) & int32_t(0x80000000);
    sign &= ~(positive & (VI)(r.code == 0));
    store_bytes(code + i, r.code | ((sign >> down) & (1 << (31 - down))));
    if (y != nullptr) store(y + i, (VF)((VI)r.value | sign));
  }
}

// zero: of a zero point, the point less half the codes; else null.
template <bool EVEN>
static void encode_integers(const QuantizeCall& q, const float* u, const float* zero, int64_t count, uint8_t* code,
                            float* y) {
  const VF low = full(float(q.least)), high = full(float(q.most)), inverse = full(1 / q.unit), unit = full(q.unit);
  const float half = float(1 << (q.bits - 1));
  const VI away = full(q.ties == WM_TIES_AWAY ? -1 : 0), toward = full(q.ties == WM_TIES_ZERO ? -1 : 0);
  const VI mask = full((1 << q.bits) - 1);
  const bool adds = q.ties == WM_TIES_UP;
  const float end = q.zero == WM_AS_NO_ZERO ? -half : 0;  // the least that bits can say
  for (int64_t i = 0; i < count; i += LANES) {
    VF m = load(u + i);
    if (zero != nullptr) {  // codes of compressed-tensors are signed
      m = least_of(most_of(m + load(zero + i), full(-half)), full(half - 1));
      if (EVEN) m = whole(m);
      m += half;
    } else {
      m = m * inverse;
    }
    m = least_of(most_of(m, low), high);
    VF k;
    if (EVEN) {
      k = whole(m);
    } else if (adds) {  // ggml adds in float32 and cuts off
      k = __builtin_convertvector(__builtin_convertvector(m + (0.5f - end), VI), VF) + end;
      k = least_of(most_of(k, low), high);
    } else {
      k = whole(m);
      const VF rest = m - k;
      const VI past = (VI)(m > 0);
      const VI up = (away & past) | (toward & (VI)(m < 0));
      k += __builtin_convertvector(untied((VI)(magnitude(rest) == 0.5f), rest, up), VF);
    }
    store_bytes(code + i, (VI)(k + WHOLE) & mask);
    if (y != nullptr) store(y + i, k * unit);
  }
}

static void encode_table(const QuantizeCall& q, const float* u, int64_t count, uint8_t* code, float* y) {
#if WM_SIMD == 512
  // Of 15 boundaries the number that a value is past, by halves; the last is infinite.
  const __m512 edges = _mm512_loadu_ps(q.edges), values = _mm512_loadu_ps(q.values);
  for (int64_t i = 0; i < count; i += LANES) {
    const __m512 v = _mm512_loadu_ps(u + i);
    __m512i found = _mm512_setzero_si512();
    for (int step = 8; step > 0; step /= 2) {
      const __m512i at = _mm512_add_epi32(found, _mm512_set1_epi32(step - 1));
      const __mmask16 past = _mm512_cmp_ps_mask(v, _mm512_permutexvar_ps(at, edges), _CMP_GT_OQ);
      found = _mm512_mask_add_epi32(found, past, found, _mm512_set1_epi32(step));
    }
    store_bytes(code + i, (VI)found);
    if (y != nullptr) _mm512_storeu_ps(y + i, _mm512_permutexvar_ps(found, values));
  }
#else
  for (int64_t i = 0; i < count; i += LANES) {
    const VF v = load(u + i);
    VI found = {};
    for (int k = 0; k < 15; ++k) found -= (VI)(v > q.edges[k]);
    store_bytes(code + i, found);
    if (y == nullptr) continue;
#if WM_SIMD == 256
    const __m256i at = (__m256i)found;
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(q.values), at);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(q.values + 8), at);
    _mm256_storeu_ps(y + i, _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28))));
#else
    for (int l = 0; l < LANES; ++l) y[i + l] = q.values[found[l]];
#endif
  }
#endif
}

// Codes, one a byte, squeezed together in place, low bit first: 8 of them become `bits` bytes. `code` has room for
// whole words; `out` takes n · bits / 8 bytes and not one more.
static void pack(uint8_t* code, int64_t n, int bits, uint8_t* out) {
  if (bits == 8) {
    std::memcpy(out, code, size_t(n));
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
