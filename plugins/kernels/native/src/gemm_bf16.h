// Products of many rows of bfloat16 activations, with the dot products of pairs of bfloat16 that some machines have
// (AVX512_BF16). Included once, after gemm.h.
//
// The products are exact. Sums are float32, rounded to nearest even after each product, and what is subnormal counts as
// 0, as in all threads of XLA: the error is that of any sum of float32. Weights are multiplied as what they are before
// their scales, where bfloat16 holds that exactly: floats and integers of up to eight bits. The sums of a block then
// meet its scale, so that blocks are to be of whole BLOCKs.

namespace gemm_bf16 {

using gemm::Floats;
using gemm::Ints;
using gemm::LANES;
using gemm::STRIP;
using gemm::Part;
using gemm::least;
using gemm::load;
using gemm::store;

constexpr int BLOCK = 32, PAIRS = BLOCK / 2;
constexpr int64_t MOST_DEPTH = 768;  // columns of a strip at a time
constexpr int64_t ROWS = 532;   // of activations at a time

// sum + the dot products of pairs of w and x.
WM_INLINE Floats dot(Floats sum, Ints w, Ints x) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
}
WM_INLINE Ints load_pairs(const int32_t* p) { return (Ints)_mm512_loadu_si512(p); }
WM_INLINE Ints everywhere(int32_t pair) { return (Ints)_mm512_set1_epi32(pair); }
static inline int64_t blocks_of(int64_t columns) { return (columns + BLOCK - 1) / BLOCK; }

static bool takes(const Weights& w, bool scaled) {
  if (!scaled) return w.element == WM_BF16;
  if (w.scale == WM_SCALE_NONE || w.element == WM_NF4 || w.zero != WM_ZERO_NONE) return false;
  return w.block_elems % BLOCK == 0 || w.block_elems >= w.n;
}

// ---- Activations: pairs of columns, put in order as gemm.h's are ----

static inline int64_t depth_of(int64_t n) { return gemm::even_depth(n, MOST_DEPTH, BLOCK); }

static int64_t arranged(int64_t n) { return blocks_of(n) * PAIRS; }

// LANES pairs, of which `left` columns are there.
WM_INLINE Ints pairs_of(const void* x, int64_t at, int64_t left) {
  Ints v = {};
  std::memcpy(&v, static_cast<const uint16_t*>(x) + at, size_t(least(2 * LANES, left)) * 2);
  return v;
}

template <int TALL>
static void arrange_tile(const GemmRows& q, int64_t i, float* out) {
  gemm::arrange_rows<TALL, 2>(q, i, depth_of(q.n), BLOCK, out, pairs_of);
}

// ---- Weights: pairs of columns [pair][STRIP] ----

// bfloat16 of codes of four bits, repeated so that a stray bit above does no harm.
template <WmElement E>
static Ints halves() {
  uint32_t all[LANES] = {};
  if constexpr (bits_of(E) == 4) {
    constexpr decoding::Table VALUES = decoding::table<E>();
    uint32_t patterns[16];
    std::memcpy(patterns, VALUES.value, sizeof patterns);
    for (int i = 0; i < LANES; ++i) all[i] = patterns[2 * i % 16] >> 16 | patterns[(2 * i + 1) % 16];
  }
  Ints found;
  std::memcpy(&found, all, sizeof found);
  return found;
}

// The i-th pair of codes of lanes that hold one stream of bits, as what they are worth before their scale.
template <WmElement E>
WM_INLINE Ints pair(const Ints* lanes, int i, Ints table) {
  constexpr int BITS = bits_of(E);
  if constexpr (E == WM_BF16) {
    return lanes[0];
  } else if constexpr (BITS == 4) {
    const int64_t at = 8 * i, half = at | (at + 4) << 16, both = half | (half | 32 | 32 << 16) << 32;
    const __m512i codes = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(both), (__m512i)lanes[0]);
    return (Ints)_mm512_permutexvar_epi16(codes, (__m512i)table);
  } else {
    const Ints low = (Ints)gemm::element<E>(lanes, 2 * i), high = (Ints)gemm::element<E>(lanes, 2 * i + 1);
    return ((low >> 16) & 0xFFFF) | (high & int32_t(0xFFFF0000));
  }
}

// Half a strip; where there are no more columns, weights are finite and activations are 0.
template <WmElement E>
static void make_half(const Part& p, int half, int32_t* out) {
  using Squares = gemm::Squares<bits_of(E)>;
  const int64_t columns = blocks_of(p.depth) * BLOCK;
  const Ints table = halves<E>();
  Squares squares(p, half);
  out += half * LANES;
  for (int64_t k = 0; k < columns; k += Squares::COLUMNS) {
    Ints lanes[LANES];
    squares.read(p.depth - k, lanes);
    const int64_t groups = least(Squares::GROUPS, (columns - k) / Squares::PER);
    for (int64_t g = 0; g < groups; ++g)
#pragma GCC unroll 16
      for (int i = 0; i < Squares::PER / 2; ++i, out += STRIP) {
        const Ints found = pair<E>(lanes + g * Squares::WORDS, i, table);
        std::memcpy(out, &found, sizeof found);
      }
  }
}

using MakeHalf = void (*)(const Part&, int, int32_t*);

static MakeHalf maker(WmElement e) {
#define WM_CASE(e) \
  case e: return make_half<e>;
  switch (e) {
    WM_CASE(WM_E2M1) WM_CASE(WM_E2M3) WM_CASE(WM_E3M2) WM_CASE(WM_E4M3) WM_CASE(WM_E5M2) WM_CASE(WM_MXINT8)
    WM_CASE(WM_INT8) WM_CASE(WM_INT4) WM_CASE(WM_INT3) WM_CASE(WM_INT2)
    WM_CASE(WM_UINT8) WM_CASE(WM_UINT4) WM_CASE(WM_UINT3) WM_CASE(WM_UINT2)
    default: return make_half<WM_BF16>;
  }
#undef WM_CASE
}

// ---- Products ----

// sums [M][STRIP] = (or +=) x · w of some pairs.
template <int M>
static void tile(const int32_t* w, const int32_t* x, int64_t pairs, float* sums, bool add) {
  Floats sum[M][2];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = Floats{};
  for (int64_t k = 0; k < pairs; ++k, w += STRIP, x += M) {
    const Ints w0 = load_pairs(w), w1 = load_pairs(w + LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Ints v = everywhere(x[m]);
      sum[m][0] = dot(sum[m][0], w0, v);
      sum[m][1] = dot(sum[m][1], w1, v);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) gemm::put(sum[m], sums + m * STRIP, add);
}

// The same of blocks whose scales are `units` [block][STRIP].
template <int M>
static void scaled_tile(const int32_t* w, const float* units, const int32_t* x, int64_t blocks, float* sums, bool add) {
  Floats sum[M][2];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = Floats{};
  for (int64_t b = 0; b < blocks; ++b, units += STRIP) {
    Floats whole[M][2];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) whole[m][0] = whole[m][1] = Floats{};
    for (int k = 0; k < PAIRS; ++k, w += STRIP, x += M) {
      const Ints w0 = load_pairs(w), w1 = load_pairs(w + LANES);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const Ints v = everywhere(x[m]);
        whole[m][0] = dot(whole[m][0], w0, v);
        whole[m][1] = dot(whole[m][1], w1, v);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) sum[m][h] = gemm::fused(whole[m][h], load(units + h * LANES), sum[m][h]);
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) gemm::put(sum[m], sums + m * STRIP, add);
}

template <bool SCALED, int M>
static inline void multiply(int64_t rows, const int32_t* w, const float* units, const int32_t* x, int64_t blocks,
                            float* sums, bool add) {
  if constexpr (M > 1)
    if (rows != M) return multiply<SCALED, M - 1>(rows, w, units, x, blocks, sums, add);
  if constexpr (SCALED) scaled_tile<M>(w, units, x, blocks, sums, add);
  else tile<M>(w, x, blocks * PAIRS, sums, add);
}

// As gemm::product.
template <bool SCALED, int TALL>
static void product(const Weights& w, int64_t matrix, int64_t first, int64_t last, const GemmRows& q,
                    const float* ordered, float* scratch) {
  const MakeHalf make = maker(w.element);
  float *scales = scratch + STRIP * MOST_DEPTH / 2, *units = scales + gemm::SCALES_SCRATCH;
  float* sums = units + STRIP * MOST_DEPTH / BLOCK;
  int32_t* strip = reinterpret_cast<int32_t*>(scratch);
  const int32_t* x = reinterpret_cast<const int32_t*>(ordered);
  gemm::products<TALL>(
      gemm::strip_decoder(w), Part{w, matrix, 0, 0, 0, 0, nullptr, scales, 0}, depth_of(w.n), first, last, q, sums,
      [&](const Part& p) {
        for (int half = 0; half < 2; ++half) {
          make(p, half, strip);
          for (int64_t b = 0; SCALED && b < blocks_of(p.depth); ++b)
            store(units + b * STRIP + half * LANES, load(p.scales_of(half, p.k + b * BLOCK)));
        }
      },
      [&](const Part& p, int64_t m, int64_t height, float* to, bool add) {
        const int64_t blocks = blocks_of(p.depth);
        multiply<SCALED, TALL>(height, strip, units, x + p.k / 2 * q.count + m * blocks * PAIRS, blocks, to, add);
      });
}

constexpr int64_t SCRATCH = STRIP * (MOST_DEPTH / 2 + MOST_DEPTH / BLOCK + ROWS) + gemm::SCALES_SCRATCH;
// Sums of as many rows as fit registers; where there are scales, with those of a block beside them.
template <bool SCALED, int TALL>
constexpr GemmKernel KERNEL = {STRIP, TALL, ROWS, SCRATCH, arranged, arrange_tile<TALL>, product<SCALED, TALL>};
constexpr GemmKernel PLAIN = KERNEL<false, 14>, SCALED = KERNEL<true, 6>;

}  // namespace gemm_bf16
