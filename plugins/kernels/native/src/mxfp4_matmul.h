// Products of a few rows of activations with MXFP4 weights, from the stored codes: nothing is repacked, and nothing but
// the codes is read from memory. Included once for each instruction set (see targets.h).
//
// A 32-bit lane of codes holds the elements k … k + 7, so shifting it by 4 j brings element k + j to its lowest bits,
// for all lanes at once. The activations are put in that order once (`arrange`); then a look-up, whose index is those
// bits and whatever stands above them, and a fused product. Blocks are four lanes, so a vector of scales is applied once
// for all that a register of codes held. Products are float32, scales are powers of two, and every weight is exact.
//
// Scale byte 0 counts as 0, as it does wherever subnormals are flushed, and 0xFF is not looked for: who loads weights
// does.

constexpr int GROUP = 128;  // elements: a register of codes of the widest machine

static const float VALUES[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static inline float scale_of(uint8_t byte) {
  const uint32_t bits = uint32_t(byte) << 23;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

#if WM_SIMD == 512

// x [n] → out [ceil(n / 128)][8][16]: out[g][j][l] = x[128 g + 8 l + j], 0 past the end.
static void arrange(const float* x, int64_t n, float* out) {
  const int64_t whole = (n + GROUP - 1) / GROUP * GROUP;
  for (int64_t k = 0; k < whole; ++k) out[k / GROUP * GROUP + k % 8 * 16 + k % GROUP / 8] = k < n ? x[k] : 0.0f;
}

static inline __m512 scales16(const uint8_t* s, int64_t blocks) {
  int32_t four = 0;
  std::memcpy(&four, s, size_t(blocks < 4 ? blocks : 4));
  const __m128i spread = _mm_set_epi8(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  const __m128i bytes = _mm_shuffle_epi8(_mm_cvtsi32_si128(four), spread);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23));
}

// R rows of weights times M arranged activations: y[m * y_stride + r].
template <int R, int M>
static inline void rows(const uint8_t* codes, const uint8_t* scales, int64_t n, const float* x, int64_t x_stride,
                        float* y, int64_t y_stride) {
  const __m512 table = _mm512_loadu_ps(VALUES);
  const int64_t row = n / 2, blocks = n / 32, groups = (n + GROUP - 1) / GROUP;
  __m512 sum[R][M];
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) sum[r][m] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t left = n - g * GROUP;
    const __mmask16 lanes = left >= GROUP ? __mmask16(0xFFFF) : __mmask16((1u << (left / 8)) - 1);
    const float* xg = x + g * GROUP;
    __m512i c[R];
    __m512 part[R][M];
    for (int r = 0; r < R; ++r) {
      c[r] = _mm512_maskz_loadu_epi32(lanes, codes + r * row + g * 64);
      _mm_prefetch(reinterpret_cast<const char*>(codes + r * row + g * 64 + 2048), _MM_HINT_T0);
      for (int m = 0; m < M; ++m) part[r][m] = _mm512_setzero_ps();
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      __m512 v[M];
      for (int m = 0; m < M; ++m) v[m] = _mm512_loadu_ps(xg + m * x_stride + j * 16);
      for (int r = 0; r < R; ++r) {
        const __m512 w = _mm512_permutexvar_ps(_mm512_srli_epi32(c[r], unsigned(4 * j)), table);
        for (int m = 0; m < M; ++m) part[r][m] = _mm512_fmadd_ps(w, v[m], part[r][m]);
      }
    }
    for (int r = 0; r < R; ++r) {
      const __m512 s = scales16(scales + r * blocks + g * 4, blocks - g * 4);
      for (int m = 0; m < M; ++m) sum[r][m] = _mm512_fmadd_ps(part[r][m], s, sum[r][m]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) y[m * y_stride + r] = _mm512_reduce_add_ps(sum[r][m]);
}

#else

static void arrange(const float* x, int64_t n, float* out) {
  const int64_t whole = (n + GROUP - 1) / GROUP * GROUP;
  for (int64_t k = 0; k < whole; ++k) {
    // Within a block: the even elements, then the odd ones, as the low and the high halves of bytes come.
    const int64_t at = k / 32 * 32 + k % 2 * 16 + k % 32 / 2;
    out[at] = k < n ? x[k] : 0.0f;
  }
}

template <int R, int M>
static inline void rows(const uint8_t* codes, const uint8_t* scales, int64_t n, const float* x, int64_t x_stride,
                        float* y, int64_t y_stride) {
  const int64_t row = n / 2, blocks = n / 32;
  for (int r = 0; r < R; ++r) {
    float sum[M][8] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* c = codes + r * row + b * 16;
      const float s = scale_of(scales[r * blocks + b]);
      float w[32];
#if WM_SIMD == 256
      const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(c)), low = _mm_set1_epi8(15);
      const __m128i even = _mm_shuffle_epi8(doubled, _mm_and_si128(bytes, low));
      const __m128i odd = _mm_shuffle_epi8(doubled, _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
      _mm256_storeu_ps(w, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(even)));
      _mm256_storeu_ps(w + 8, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(even, 8))));
      _mm256_storeu_ps(w + 16, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(odd)));
      _mm256_storeu_ps(w + 24, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(odd, 8))));
      const float half = 0.5f * s;
#else
      for (int i = 0; i < 16; ++i) {
        w[i] = VALUES[c[i] & 15];
        w[16 + i] = VALUES[c[i] >> 4];
      }
      const float half = s;
#endif
      for (int m = 0; m < M; ++m) {
        const float* xb = x + m * x_stride + b * 32;
        float part[8];
        for (int l = 0; l < 8; ++l) part[l] = w[l] * xb[l];
        for (int i = 8; i < 32; i += 8)
          for (int l = 0; l < 8; ++l) part[l] += w[i + l] * xb[i + l];
        for (int l = 0; l < 8; ++l) sum[m][l] += part[l] * half;
      }
    }
    for (int m = 0; m < M; ++m) {
      float total = 0;
      for (int l = 0; l < 8; ++l) total += sum[m][l];
      y[m * y_stride + r] = total;
    }
  }
}

#endif

template <int M>
static void some_rows(const uint8_t* codes, const uint8_t* scales, int64_t n, int64_t count, const float* x,
                      int64_t x_stride, float* y, int64_t y_stride) {
  constexpr int R = M <= 2 ? 4 : 2;  // so that sums and weights stay in registers
  int64_t r = 0;
  for (; r + R <= count; r += R)
    rows<R, M>(codes + r * (n / 2), scales + r * (n / 32), n, x, x_stride, y + r, y_stride);
  for (; r < count; ++r) rows<1, M>(codes + r * (n / 2), scales + r * (n / 32), n, x, x_stride, y + r, y_stride);
}

// `count` rows of weights times `m` (1 … 4) arranged activations.
static void product(int64_t m, const uint8_t* codes, const uint8_t* scales, int64_t n, int64_t count, const float* x,
                    int64_t x_stride, float* y, int64_t y_stride) {
  if (m == 1) return some_rows<1>(codes, scales, n, count, x, x_stride, y, y_stride);
  if (m == 2) return some_rows<2>(codes, scales, n, count, x, x_stride, y, y_stride);
  if (m == 3) return some_rows<3>(codes, scales, n, count, x, x_stride, y, y_stride);
  some_rows<4>(codes, scales, n, count, x, x_stride, y, y_stride);
}
