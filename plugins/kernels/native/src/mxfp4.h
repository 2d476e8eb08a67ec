// MXFP4 as one table look-up cannot do it and seven comparisons can: magnitudes of floats are ordered like their bit
// patterns, so the code of a value is the number of thresholds that its bfloat16 pattern passes, and the thresholds of
// a block follow from its scale. Included once for each instruction set (see targets.h); the loops are written so that
// compilers make SIMD of them.
//
// float32 and float16 become 16 bits rounded to odd first: every boundary is an even bfloat16 pattern, so that no
// comparison can tell.

struct Quantize {
  const void* x;
  int64_t rows, n, row_stride, col_stride;  // strides in elements
  int64_t block;
  int rule;                  // what, added to a magnitude, carries into the exponent when the rule rounds amax up
  const int16_t* thresholds; // [256][8]: of each scale byte; the eighth is never passed
  bool positive_zero, poison;
  uint8_t* codes;
  int64_t codes_stride;
  uint8_t* scales;
  int64_t scales_stride;
  uint8_t* scratch;  // SCRATCH × block bytes and LANES; the standard library is left out here, as its inline functions
                     // would be compiled for one instruction set and linked into another
};

constexpr int SCRATCH = 16;

// Sums over a call. Squares are summed in float32 lanes over 8192 values at most, and those in float64.
struct Sums {
  double count = 0, largest = 0, error = 0, signal = 0;
};

constexpr int LANES = 32;
constexpr int RUN_BLOCKS = 256;
constexpr int16_t INFINITY_BF16 = 0x7F80;

// Registers: WIDTH bytes of int16, or half as many int32 or float.
constexpr int WIDTH = WM_SIMD ? WM_SIMD / 8 : 16, DOWN = WIDTH / 2;
typedef int16_t V16 __attribute__((vector_size(WIDTH), aligned(2), may_alias));
typedef int16_t Half16 __attribute__((vector_size(WIDTH / 2), aligned(2), may_alias));
typedef uint8_t Half8 __attribute__((vector_size(WIDTH / 2), aligned(1), may_alias));
typedef int32_t V32 __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef float VF __attribute__((vector_size(WIDTH), aligned(4), may_alias));

static inline Half16 half(V16 v, int which) {
  Half16 found;
  std::memcpy(&found, reinterpret_cast<const char*>(&v) + which * int(sizeof found), sizeof found);
  return found;
}

// Patterns of DOWN neighbours, rounded to odd.
static inline V16 patterns(const Bf16* x) { return *reinterpret_cast<const V16*>(x); }
static inline V16 patterns(const float* x) {
  V16 found;
  for (int h = 0; h < 2; ++h) {
    const V32 b = *reinterpret_cast<const V32*>(x + h * DOWN / 2);
    const Half16 p = __builtin_convertvector((b >> 16) | (((b & 0xFFFF) != 0) & 1), Half16);
    std::memcpy(reinterpret_cast<char*>(&found) + h * int(sizeof p), &p, sizeof p);
  }
  return found;
}
static inline V16 patterns(const F16* x) {
  float wide[DOWN];
  for (int l = 0; l < DOWN; ++l) wide[l] = widened(x[l]);
  return patterns(wide);
}

// Magnitudes of half of them.
static inline VF magnitudes(const Bf16*, V16 m, int which) {
  return (VF)(__builtin_convertvector(half(m, which), V32) << 16);
}
static inline VF magnitudes(const float* x, V16, int which) {
  return (VF)(*reinterpret_cast<const V32*>(x + which * DOWN / 2) & 0x7FFFFFFF);
}
static inline VF magnitudes(const F16* x, V16, int which) {
  VF wide;
  for (int l = 0; l < DOWN / 2; ++l) wide[l] = std::fabs(widened(x[which * DOWN / 2 + l]));
  return wide;
}

struct Lanes {
  float error[LANES], signal[LANES], largest[LANES];
  int blocks;

  void clear() {
    for (int l = 0; l < LANES; ++l) error[l] = signal[l] = largest[l] = 0;
    blocks = 0;
  }

  void flush(Sums& sums) {
    double e = 0, s = 0;
    float m = 0;
    for (int l = 0; l < LANES; ++l) {
      e += error[l];
      s += signal[l];
      m = largest[l] > m ? largest[l] : m;
    }
    sums.error += e;
    sums.signal += s;
    if (m > sums.largest) sums.largest = m;
    clear();
  }
};

static inline float scale_value(int byte) {  // 2^(byte - 127); byte 0 is subnormal
  return std::ldexp(1.0f, byte - 127);
}

template <typename T>
static inline uint16_t pattern(T v);
template <>
inline uint16_t pattern(Bf16 v) {
  return v.bits;
}
template <>
inline uint16_t pattern(float v) {
  uint32_t b;
  std::memcpy(&b, &v, 4);
  return uint16_t(b >> 16) | uint16_t((b & 0xFFFF) != 0);
}
template <>
inline uint16_t pattern(F16 v) {
  return pattern(widened(v));
}

// Twice the E2M1 magnitude, 0 1 2 3 4 6 8 12: one for each of the first four thresholds, two for each of the next two,
// four for the last.
static const float TWICE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12};

// Errors of a block whose values or scale are near an end of float32's range, in float64.
template <typename T>
static void measure_carefully(const T* x, const uint8_t* code, int64_t block, int scale, Sums& sums) {
  const double unit = std::ldexp(0.5, scale - 127);
  for (int64_t i = 0; i < block; ++i) {
    const double v = std::fabs(double(widened(x[i])));
    const double e = std::fabs(v - TWICE[code[i]] * unit);
    sums.error += e * e;
    sums.signal += v * v;
    if (e > sums.largest) sums.largest = e;
  }
}

#if WM_SIMD == 512
// 32 values: their bfloat16 patterns, rounded to odd, and themselves.
struct Block32 {
  __m512i patterns;
  __m512 low, high;
};

static inline Block32 load32(const Bf16* x) {
  const __m512i p = _mm512_loadu_si512(x);
  const __m512i a = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(p));
  const __m512i b = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(p, 1));
  return {p, _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b, 16))};
}

static inline __m256i odd16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v), top = _mm512_srli_epi32(bits, 16);
  const __mmask16 sticky = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0xFFFF));
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(top, sticky, top, _mm512_set1_epi32(1)));
}

static inline Block32 load32(const float* x) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  return {_mm512_inserti64x4(_mm512_castsi256_si512(odd16(a)), odd16(b), 1), a, b};
}

static inline Block32 load32(const F16* x) {
  float wide[32];
  _mm512_storeu_ps(wide, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))));
  _mm512_storeu_ps(wide + 16, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16))));
  return load32(wide);
}

static inline int top32(__m512i magnitudes) {
  __m256i m = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes), _mm512_extracti64x4_epi64(magnitudes, 1));
  __m128i n = _mm_max_epu16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  return 0xFFFF ^ (_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(n, _mm_set1_epi32(-1)))) & 0xFFFF);
}

// As `block_row` below, in registers.
template <typename T>
static inline bool block_row32(const Quantize& q, const T* x, uint8_t* out, uint8_t* scale_out, uint8_t* code,
                               Lanes* lanes, Sums* sums) {
  const Block32 v = load32(x);
  const __m512i m = _mm512_and_si512(v.patterns, _mm512_set1_epi16(0x7FFF));
  const int top = top32(m);
  if (top >= INFINITY_BF16) {
    if (!q.poison) return false;
    *scale_out = 0xFF;
    std::memset(out, 0, 16);
    return true;
  }
  int scale = ((top + q.rule) >> 7) - 2;
  scale = scale < 0 ? 0 : scale;
  *scale_out = uint8_t(scale);
  const int16_t* t = q.thresholds + scale * 8;
  const __m512i one = _mm512_set1_epi16(1);
  __m512i c = _mm512_maskz_mov_epi16(_mm512_cmpge_epi16_mask(m, _mm512_set1_epi16(t[0])), one);
  for (int k = 1; k < 7; ++k)
    c = _mm512_mask_add_epi16(c, _mm512_cmpge_epi16_mask(m, _mm512_set1_epi16(t[k])), c, one);
  __mmask32 negative = _mm512_movepi16_mask(v.patterns);
  if (q.positive_zero) negative &= _mm512_test_epi16_mask(c, c);
  const __m512i s = _mm512_mask_add_epi16(c, negative, c, _mm512_set1_epi16(8));
  const __m512i pair = _mm512_or_si512(s, _mm512_srli_epi32(s, 12));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(pair));
  if (sums == nullptr) return true;
  sums->count += 32;
  if (scale < 127 - 40 || scale > 127 + 40) {
    for (int i = 0; i < 16; ++i) {
      code[2 * i] = out[i] & 15;
      code[2 * i + 1] = out[i] >> 4;
    }
    measure_carefully(x, code, 32, scale, *sums);
    return true;
  }
  const __m512 unit = _mm512_set1_ps(0.5f * scale_value(scale)), twice = _mm512_loadu_ps(TWICE);
  const __m512i halves[2] = {_mm512_cvtepu16_epi32(_mm512_castsi512_si256(c)),
                             _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(c, 1))};
  const __m512 values[2] = {v.low, v.high};
  for (int h = 0; h < 2; ++h) {
    const __m512 a = _mm512_abs_ps(values[h]);
    const __m512 e = _mm512_abs_ps(_mm512_fnmadd_ps(_mm512_permutexvar_ps(halves[h], twice), unit, a));
    float* error = lanes->error + 16 * h;
    float* signal = lanes->signal + 16 * h;
    float* largest = lanes->largest + 16 * h;
    _mm512_storeu_ps(error, _mm512_fmadd_ps(e, e, _mm512_loadu_ps(error)));
    _mm512_storeu_ps(signal, _mm512_fmadd_ps(a, a, _mm512_loadu_ps(signal)));
    _mm512_storeu_ps(largest, _mm512_max_ps(e, _mm512_loadu_ps(largest)));
  }
  if (++lanes->blocks == RUN_BLOCKS) lanes->flush(*sums);
  return true;
}
#endif

// One block of contiguous values; B is its size where the compiler is to know it and makes SIMD of it, else 0.
// False: not finite.
template <typename T, int B>
static inline bool block_row(const Quantize& q, const T* __restrict x, uint8_t* __restrict out, uint8_t* scale_out,
                             uint8_t* __restrict code, Lanes* lanes, Sums* sums) {
#if WM_SIMD == 512
  if constexpr (B == 32) return block_row32(q, x, out, scale_out, code, lanes, sums);
#endif
  const int64_t size = B ? B : q.block;
  int16_t top = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int16_t m = int16_t(pattern(x[i]) & 0x7FFF);
    top = m > top ? m : top;
  }
  if (top >= INFINITY_BF16) {
    if (!q.poison) return false;
    *scale_out = 0xFF;
    std::memset(out, 0, size / 2);
    return true;
  }
  int scale = ((top + q.rule) >> 7) - 2;
  scale = scale < 0 ? 0 : scale;
  *scale_out = uint8_t(scale);
  const int16_t* t = q.thresholds + scale * 8;
  const int16_t t0 = t[0], t1 = t[1], t2 = t[2], t3 = t[3], t4 = t[4], t5 = t[5], t6 = t[6];
  for (int64_t i = 0; i < size; ++i) {
    const uint16_t p = pattern(x[i]);
    const int16_t m = int16_t(p & 0x7FFF);
    const int16_t c = int16_t((m >= t0) + (m >= t1) + (m >= t2) + (m >= t3) + (m >= t4) + (m >= t5) + (m >= t6));
    const int16_t sign = int16_t((p >> 12) & 8);
    code[i] = uint8_t(c | (q.positive_zero && c == 0 ? 0 : sign));
  }
  for (int64_t i = 0; i < size / 2; ++i) out[i] = uint8_t(code[2 * i] | (code[2 * i + 1] << 4));
  if (sums == nullptr) return true;
  sums->count += double(size);
  // Within 2^±40 squares are far from both ends of float32.
  if (B == 0 || scale < 127 - 40 || scale > 127 + 40) {
    measure_carefully(x, code, size, scale, *sums);
    return true;
  }
  const float unit = 0.5f * scale_value(scale);
  for (int64_t i = 0; i < B; i += LANES) {
    for (int l = 0; l < LANES; ++l) {
      const float v = std::fabs(widened(x[i + l]));
      const int16_t m = int16_t(pattern(x[i + l]) & 0x7FFF);
      // Twice the magnitude, 0 1 2 3 4 6 8 12: one for each of the first four thresholds, two for each of the next
      // two, four for the last.
      const int32_t twice =
          (m >= t0) + (m >= t1) + (m >= t2) + (m >= t3) + 2 * ((m >= t4) + (m >= t5)) + 4 * (m >= t6);
      const float e = std::fabs(v - float(twice) * unit);
      lanes->error[l] += e * e;
      lanes->signal[l] += v * v;
      lanes->largest[l] = e > lanes->largest[l] ? e : lanes->largest[l];
    }
  }
  if (++lanes->blocks == RUN_BLOCKS) lanes->flush(*sums);
  return true;
}

template <typename T, int B>
static int64_t quantize_rows(const Quantize& q, Sums* sums) {
  const int64_t size = B ? B : q.block, across = q.n / size;
  uint8_t* code = q.scratch;
  T* gathered = reinterpret_cast<T*>(q.scratch + size);
  Lanes lanes;
  lanes.clear();
  for (int64_t r = 0; r < q.rows; ++r) {
    const T* row = static_cast<const T*>(q.x) + r * q.row_stride;
    uint8_t* out = q.codes + r * q.codes_stride;
    uint8_t* scale = q.scales + r * q.scales_stride;
    for (int64_t b = 0; b < across; ++b) {
      const T* x = row + b * size * q.col_stride;
      if (q.col_stride != 1) {
        for (int64_t i = 0; i < size; ++i) gathered[i] = x[i * q.col_stride];
        x = gathered;
      }
      if (!block_row<T, B>(q, x, out + b * size / 2, scale + b, code, &lanes, sums)) {
        for (int64_t i = 0;; ++i)
          if ((pattern(x[i]) & 0x7FFF) >= INFINITY_BF16) return r * q.n + b * size + i;
      }
    }
  }
  if (sums != nullptr) lanes.flush(*sums);
  return -1;
}

// Rows, not columns, are neighbours in memory: DOWN rows at once, a lane for each. q.rows is a multiple of DOWN.
template <typename T>
static int64_t quantize_columns(const Quantize& q, Sums* sums) {
  const int64_t size = q.block, across = q.n / size;
  uint8_t* packed = q.scratch;  // [block / 2][DOWN]
  int64_t bad = -1;
  for (int64_t r = 0; r < q.rows; r += DOWN) {
    for (int64_t b = 0; b < across; ++b) {
      const T* x = static_cast<const T*>(q.x) + r + b * size * q.col_stride;
      V16 top = {};
      for (int64_t i = 0; i < size; ++i) {
        const V16 m = patterns(x + i * q.col_stride) & 0x7FFF;
        top = m > top ? m : top;
      }
      V16 t[7];
      float unit[DOWN];
      uint8_t scales[DOWN];
      bool careful = false;
      for (int l = 0; l < DOWN; ++l) {
        int scale = ((top[l] + q.rule) >> 7) - 2;
        scale = scale < 0 ? 0 : scale;
        if (top[l] >= INFINITY_BF16) {
          for (int64_t i = 0; i < size && !q.poison; ++i) {
            if ((pattern(x[i * q.col_stride + l]) & 0x7FFF) < INFINITY_BF16) continue;
            const int64_t place = (r + l) * q.n + b * size + i;
            bad = bad < 0 || place < bad ? place : bad;
            break;
          }
          scale = 0xFF;
        }
        careful |= scale < 127 - 40 || scale > 127 + 40;
        scales[l] = uint8_t(scale);
        unit[l] = sums != nullptr && !careful ? 0.5f * scale_value(scale) : 0;
        for (int k = 0; k < 7; ++k) t[k][l] = q.thresholds[scale * 8 + k];
      }
      VF errors[2] = {}, signals[2] = {}, largest[2] = {};
      for (int64_t i = 0; i < size; i += 2) {
        V16 pair = {};
        for (int h = 0; h < 2; ++h) {
          const T* at = x + (i + h) * q.col_stride;
          const V16 p = patterns(at), m = p & 0x7FFF;
          const V16 low = -((m >= t[0]) + (m >= t[1]) + (m >= t[2]) + (m >= t[3]));
          const V16 middle = -((m >= t[4]) + (m >= t[5])), high = -(m >= t[6]);
          const V16 c = low + middle + high;
          V16 sign = (p >> 12) & 8;
          if (q.positive_zero) sign &= c != 0;
          pair |= (c | sign) << (4 * h);
          if (sums == nullptr || careful) continue;
          const V16 twice = low + middle * 2 + high * 4;
          for (int w = 0; w < 2; ++w) {
            const VF y = __builtin_convertvector(__builtin_convertvector(half(twice, w), V32), VF);
            const VF v = magnitudes(at, m, w);
            const VF e = (VF)((V32)(v - y * *reinterpret_cast<const VF*>(unit + w * DOWN / 2)) & 0x7FFFFFFF);
            errors[w] += e * e;
            signals[w] += v * v;
            largest[w] = e > largest[w] ? e : largest[w];
          }
        }
        *reinterpret_cast<Half8*>(packed + i / 2 * DOWN) = __builtin_convertvector(pair, Half8);
      }
      for (int l = 0; l < DOWN; ++l) {
        uint8_t* out = q.codes + (r + l) * q.codes_stride + b * size / 2;
        q.scales[(r + l) * q.scales_stride + b] = scales[l];
        if (scales[l] == 0xFF) {
          std::memset(out, 0, size / 2);
          continue;
        }
        for (int64_t i = 0; i < size / 2; ++i) out[i] = packed[i * DOWN + l];
        if (sums == nullptr) continue;
        sums->count += double(size);
        if (!careful) {
          const int w = l / (DOWN / 2), k = l % (DOWN / 2);
          sums->error += errors[w][k];
          sums->signal += signals[w][k];
          if (largest[w][k] > sums->largest) sums->largest = largest[w][k];
          continue;
        }
        const double half = std::ldexp(0.5, scales[l] - 127);
        for (int64_t i = 0; i < size; ++i) {
          const double v = std::fabs(double(widened(x[i * q.col_stride + l])));
          const double e = std::fabs(v - TWICE[(out[i / 2] >> (i % 2 * 4)) & 15] * half);
          sums->error += e * e;
          sums->signal += v * v;
          if (e > sums->largest) sums->largest = e;
        }
      }
    }
    if (bad >= 0) return bad;
  }
  return -1;
}

template <typename T>
static int64_t quantize_any(const Quantize& q, Sums* sums) {
  if (q.row_stride != 1 || q.col_stride == 1 || q.rows < DOWN || q.block > 256)
    return q.block == 32 ? quantize_rows<T, 32>(q, sums) : quantize_rows<T, 0>(q, sums);
  Quantize part = q;
  part.rows = q.rows / DOWN * DOWN;
  const int64_t bad = quantize_columns<T>(part, sums);
  if (bad >= 0 || part.rows == q.rows) return bad;
  const int64_t done = part.rows;
  part.rows = q.rows - done;
  part.x = static_cast<const T*>(q.x) + done;
  part.codes += done * q.codes_stride;
  part.scales += done * q.scales_stride;
  const int64_t rest = q.block == 32 ? quantize_rows<T, 32>(part, sums) : quantize_rows<T, 0>(part, sums);
  return rest < 0 ? rest : rest + done * q.n;
}
