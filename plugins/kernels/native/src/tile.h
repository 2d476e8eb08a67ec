// The innermost loop of products, `tile`, and how rows are put in order for it. Included once for each instruction set,
// after gemm_call.h and lanes.h.
//
// It is an outer product: two registers of one matrix and a broadcast number of the other for each of M rows, whose sums
// stay in registers. It reads 2 + M numbers for 2 M products of registers, where a loop along the columns reads 10 for 24
// and has sums of lanes to make: measured on Zen 5, 96 % and 31 % of the FMA peak.

namespace gemm {

constexpr int MOST = WM_SIMD == 512 ? 14 : WM_SIMD == 256 ? 6 : 3;  // rows whose sums fit registers, at most LANES

#if WM_SIMD == 512
WM_INLINE Floats everywhere(float v) { return (Floats)_mm512_set1_ps(v); }
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif WM_SIMD == 256
WM_INLINE Floats everywhere(float v) { return (Floats)_mm256_set1_ps(v); }
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
WM_INLINE Floats everywhere(float v) { return Floats{v, v, v, v, v, v, v, v}; }
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }
#endif

WM_INLINE void put(const Floats sum[2], float* sums, bool add) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) store(sums + h * LANES, add ? load(sums + h * LANES) + sum[h] : sum[h]);
}

// sums [M][STRIP] = (or +=) x · w: w is [depth][STRIP], x is [depth][M], as `decode` and `arrange` leave them.
template <int M>
static void tile(const float* w, const float* x, int64_t depth, float* sums, bool add) {
  Floats sum[M][2];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = Floats{};  // not at once, which clears memory for them as well
  for (int64_t k = 0; k < depth; ++k, w += STRIP, x += M) {
    const Floats w0 = load(w), w1 = load(w + LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Floats v = everywhere(x[m]);
      sum[m][0] = fused(w0, v, sum[m][0]);
      sum[m][1] = fused(w1, v, sum[m][1]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) put(sum[m], sums + m * STRIP, add);  // or they go there by way of memory
}

using Tile = void (*)(const float*, const float*, int64_t, float*, bool);

template <int M>
static inline Tile tile_of(int64_t rows) {
  if constexpr (M == 1) return tile<1>;
  else return rows == M ? tile<M> : tile_of<M - 1>(rows);
}

// Rows of the i-th of `parts` parts of `rows`, as even as can be, and the first of them.
static inline int64_t share(int64_t rows, int64_t parts, int64_t i) { return rows / parts + (i < rows % parts); }
static inline int64_t first_of(int64_t rows, int64_t parts, int64_t i) {
  return rows / parts * i + least(rows % parts, i);
}

// LANES columns of a row of activations, of which `left` are there.
WM_INLINE Ints columns(const void* x, bool bf16, int64_t at, int64_t left) {
  Ints v = {};
  if (!bf16) {
    std::memcpy(&v, static_cast<const float*>(x) + at, left >= LANES ? sizeof v : size_t(left) * 4);
    return v;
  }
  uint16_t half __attribute__((vector_size(2 * LANES))) = {};
  std::memcpy(&half, static_cast<const uint16_t*>(x) + at, left >= LANES ? sizeof half : size_t(left) * 2);
  return __builtin_convertvector(half, Ints) << 16;
}

// Rows first … first + m of activations from column k on, as numbers of EACH columns → [number][m].
// read(row, column, left): LANES numbers, of which only those of `left` columns are there.
template <int EACH, typename Read>
WM_INLINE void arrange_part(const GemmRows& q, int64_t first, int64_t m, int64_t k, int64_t numbers, float* out,
                            const Read& read) {
  const void* from[LANES];
  for (int64_t l = 0; l < LANES; ++l) from[l] = q.x_of(first + least(l, m - 1));
  for (int64_t c = 0; c < numbers; c += LANES) {
    const int64_t at = k + c * EACH, left = q.n - at;
    Ints v[LANES];
    if (left >= EACH * LANES)
      for (int l = 0; l < LANES; ++l) v[l] = read(from[l], at, EACH * LANES);
    else
      for (int l = 0; l < LANES; ++l) v[l] = read(from[l], at, left);
    transpose(v);
    for (int64_t j = 0; j < least(LANES, numbers - c); ++j) {
      float* to = out + (c + j) * m;  // what lies behind is written next, but for what is another tile's
      if ((c + j) * m + LANES <= numbers * m) store(to, (Floats)v[j]);
      else std::memcpy(to, &v[j], size_t(m) * 4);
    }
  }
}

template <bool BF16>
static void arrange(const GemmRows& q, int64_t first, int64_t m, int64_t k, int64_t depth, float* out) {
  arrange_part<1>(q, first, m, k, depth, out,
                  [](const void* x, int64_t at, int64_t left) { return columns(x, BF16, at, left); });
}

// Tile i of the rows of activations, TALL rows at most: `deep` columns at a time; the columns at an end are rounded up to
// `whole` of them. Tiles lie one after another for the columns that are decoded first, and so on.
template <int TALL, int EACH, typename Read>
WM_INLINE void arrange_rows(const GemmRows& q, int64_t i, int64_t deep, int64_t whole, float* out, const Read& read) {
  const int64_t tiles = (q.count + TALL - 1) / TALL, first = first_of(q.count, tiles, i), m = share(q.count, tiles, i);
  for (int64_t k = 0; k < q.n; k += deep) {
    const int64_t numbers = (least(deep, q.n - k) + whole - 1) / whole * whole / EACH;
    arrange_part<EACH>(q, first, m, k, numbers, out + k / EACH * q.count + first * numbers, read);
  }
}

}  // namespace gemm
