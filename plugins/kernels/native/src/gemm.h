// Products of many rows of activations with packed weights, exact: float32 products and sums. Included once for each
// instruction set, after weights.h.
//
// Weights are decoded a strip at a time, STRIP rows by at most DEPTH columns, transposed, into cache; a strip meets every
// row of activations that wants it before it is let go. The innermost loop (`tile`) is an outer product: two registers of
// weights and a broadcast activation for each of M rows, whose sums stay in registers. It reads 2 + M numbers for 2 M
// products of registers, where a loop along the columns reads 10 for 24 and has sums of lanes to make: measured on
// Zen 5, 96 % and 31 % of the FMA peak.

namespace gemm {

constexpr int LANES = WM_SIMD ? WM_SIMD / 32 : 4;
constexpr int STRIP = 2 * LANES;                                    // rows of weights
constexpr int MOST = WM_SIMD == 512 ? 14 : WM_SIMD == 256 ? 6 : 4;  // rows whose sums fit registers; at most LANES
constexpr int64_t DEPTH = 512;                                     // columns; a strip and the activations fit L2
constexpr int64_t ROWS = 126;                                       // of activations at a time
constexpr int64_t SCRATCH = (STRIP + ROWS) * DEPTH + LANES;         // floats that `product` works in
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline Floats load(const float* p) { return *reinterpret_cast<const Floats*>(p); }
static inline void store(float* p, Floats v) { *reinterpret_cast<Floats*>(p) = v; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#if WM_SIMD == 512

static inline Floats everywhere(float v) { return (Floats)_mm512_set1_ps(v); }
static inline Floats fused(Floats a, Floats b, Floats c) {
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

static inline void transpose(Ints v[LANES]) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32((__m512i)v[i], (__m512i)v[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32((__m512i)v[i], (__m512i)v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + j + 2]);
      b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i)
    for (int h = 0; h < 2; ++h) {
      a[8 * h + i] = _mm512_shuffle_i32x4(b[8 * h + i], b[8 * h + i + 4], 0x88);
      a[8 * h + i + 4] = _mm512_shuffle_i32x4(b[8 * h + i], b[8 * h + i + 4], 0xDD);
    }
  for (int i = 0; i < 8; ++i) {
    v[i] = (Ints)_mm512_shuffle_i32x4(a[i], a[i + 8], 0x88);
    v[i + 8] = (Ints)_mm512_shuffle_i32x4(a[i], a[i + 8], 0xDD);
  }
}

#elif WM_SIMD == 256

static inline Floats everywhere(float v) { return (Floats)_mm256_set1_ps(v); }
static inline Floats fused(Floats a, Floats b, Floats c) {
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

static inline void transpose(Ints v[LANES]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32((__m256i)v[i], (__m256i)v[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32((__m256i)v[i], (__m256i)v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm256_unpacklo_epi64(a[i + j], a[i + j + 2]);
      b[i + 2 * j + 1] = _mm256_unpackhi_epi64(a[i + j], a[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    v[i] = (Ints)_mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    v[i + 4] = (Ints)_mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}

#else

static inline Floats everywhere(float v) { return Floats{v, v, v, v}; }
static inline Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }

static inline void transpose(Ints v[LANES]) {
  Ints found[LANES];
  for (int i = 0; i < LANES; ++i)
    for (int j = 0; j < LANES; ++j) found[i][j] = v[j][i];
  std::memcpy(v, found, sizeof found);
}

#endif

// ---- Products ----

// y [M, count] = (or +=) x · w: w is [depth][STRIP], x is [depth][M], as `decode` and `arrange` leave them.
template <int M>
static void tile(const float* w, const float* x, int64_t depth, float* y, int64_t y_stride, int64_t count, bool add) {
  Floats sum[M][2] = {};
  for (int64_t k = 0; k < depth; ++k, w += STRIP, x += M) {
    const Floats w0 = load(w), w1 = load(w + LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Floats v = everywhere(x[m]);
      sum[m][0] = fused(w0, v, sum[m][0]);
      sum[m][1] = fused(w1, v, sum[m][1]);
    }
  }
  for (int m = 0; m < M; ++m, y += y_stride) {
    float all[STRIP];
    store(all, sum[m][0]);
    store(all + LANES, sum[m][1]);
    if (count == STRIP)
      for (int r = 0; r < STRIP; ++r) y[r] = add ? y[r] + all[r] : all[r];
    else
      for (int64_t r = 0; r < count; ++r) y[r] = add ? y[r] + all[r] : all[r];
  }
}

using Tile = void (*)(const float*, const float*, int64_t, float*, int64_t, int64_t, bool);

template <int M>
static inline Tile tile_of(int64_t rows) {
  if constexpr (M == 1) return tile<1>;
  else return rows == M ? tile<M> : tile_of<M - 1>(rows);
}

// Rows of the i-th of `parts` parts of `rows`, as even as can be.
static inline int64_t share(int64_t rows, int64_t parts, int64_t i) { return rows / parts + (i < rows % parts); }

// x [m, depth], m ≤ MOST → [depth][m]. Writes up to LANES floats past the end.
static void arrange(const float* x, int64_t x_stride, int64_t m, int64_t depth, float* out) {
  int64_t k = 0;
  for (; k + LANES <= depth; k += LANES) {
    Ints v[LANES] = {};
    for (int64_t i = 0; i < m; ++i) v[i] = (Ints)load(x + i * x_stride + k);
    transpose(v);
    for (int j = 0; j < LANES; ++j) store(out + (k + j) * m, (Floats)v[j]);
  }
  for (; k < depth; ++k)
    for (int64_t i = 0; i < m; ++i) out[k * m + i] = x[i * x_stride + k];
}

// ---- Weights ----

// Part of a strip: rows `row` … of a matrix, of which `rows` are there (the last stands for those that are not), columns
// `k` … `k + depth`; out is [depth][STRIP].
struct Part {
  const Weights& w;
  int64_t matrix, row, rows, k, depth;
  float* out;

  int64_t at(int r) const { return matrix * w.rows + row + least(r, rows - 1); }  // of all rows of all matrices
};

static inline Floats e2m1(Ints codes) {
  static const float VALUES[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
#if WM_SIMD == 512
  return (Floats)_mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(VALUES));
#elif WM_SIMD == 256
  const Floats magnitude = (Floats)_mm256_permutevar8x32_ps(_mm256_loadu_ps(VALUES), (__m256i)codes);
  return (Floats)((Ints)magnitude | ((codes << 28) & int32_t(0x80000000)));
#else
  Floats found;
  for (int l = 0; l < LANES; ++l) found[l] = VALUES[codes[l] & 15];
  return found;
#endif
}

// Codes are transposed as 32-bit lanes of eight: a shift brings the element of one column to the lowest bits, for LANES
// rows at once. `count` lanes of each row; all of LANES is known when this is compiled.
static inline __attribute__((always_inline)) void mxfp4_square(const Part& p, int half, int64_t k, int64_t count) {
  Ints codes[LANES] = {};
  Ints scales = {};
  const int64_t blocks = (count + 3) / 4;
  for (int r = 0; r < LANES; ++r) {
    const int64_t row = p.at(half * LANES + r);
    std::memcpy(&codes[r], p.w.codes + row * (p.w.n / 2) + (p.k + k) / 2, size_t(4 * count));
    // The next strip's are far away, and wanted when this one has met its activations.
    __builtin_prefetch(p.w.codes + (row + STRIP) * (p.w.n / 2) + (p.k + k) / 2, 0, 2);
    int32_t bytes = 0;
    std::memcpy(&bytes, p.w.scales + row * (p.w.n / 32) + (p.k + k) / 32, size_t(blocks));
    scales[r] = bytes;
  }
  transpose(codes);
  for (int t = 0; t < count; ++t) {
    const Floats scale = (Floats)(((scales >> (t / 4 * 8)) & 0xFF) << 23);
    for (int j = 0; j < 8; ++j)
      store(p.out + (k + 8 * t + j) * STRIP + half * LANES, e2m1(codes[t] >> (4 * j)) * scale);
  }
}

static void decode(const Part& p) {
  for (int half = 0; half < 2; ++half) {
    int64_t k = 0;
    for (; k + 8 * LANES <= p.depth; k += 8 * LANES) mxfp4_square(p, half, k, LANES);
    if (k < p.depth) mxfp4_square(p, half, k, (p.depth - k) / 8);
  }
}

// ---- The whole ----

// y [rows, last - first] = x [rows, n] · w[matrix, first … last]ᵀ; at most ROWS rows, `first` a multiple of STRIP.
static void product(const Weights& w, int64_t matrix, int64_t first, int64_t last, const float* x, int64_t x_stride,
                    int64_t rows, float* y, int64_t y_stride, float* scratch) {
  const int64_t tiles = (rows + MOST - 1) / MOST;
  float* arranged = scratch + STRIP * DEPTH;
  for (int64_t k = 0; k < w.n; k += DEPTH) {
    const int64_t depth = least(DEPTH, w.n - k);
    for (int64_t i = 0, m = 0, count; i < tiles; ++i, m += count) {
      count = share(rows, tiles, i);
      arrange(x + m * x_stride + k, x_stride, count, depth, arranged + m * depth);
    }
    for (int64_t row = first; row < last; row += STRIP) {
      const int64_t count = least(STRIP, last - row);
      decode({w, matrix, row, count, k, depth, scratch});
      for (int64_t i = 0, m = 0, height; i < tiles; ++i, m += height) {
        height = share(rows, tiles, i);
        tile_of<MOST>(height)(scratch, arranged + m * depth, depth, y + m * y_stride + row - first, y_stride, count,
                              k != 0);
      }
    }
  }
}

}  // namespace gemm
