// Products of many rows of activations with packed weights, over integers: activations in blocks of BLOCK columns, each
// with a scale of its own, as integers of 8 or 16 bits. Included once for each instruction set, after gemm.h; with 512
// bits by way of dot products of integers (VNNI).
//
// Weights become integers too. Those of a format whose elements are some (of at most `most`, in a unit), and whose blocks
// are of whole BLOCKs, or of halves of one, are exact; others are rounded as activations are. What zero points take off and
// minimums add is the same for all of a block: products of float32, one a block, with what activations sum up to. A
// block's products are summed as int32 and cannot overflow; blocks are summed as float32. Where a block holds what is not
// finite its sums are NaN.
//
// Pairs of int16 serve both widths. Of bytes VNNI sums products of four, of which one side is unsigned: weights + 128, and
// sums begin at -128 · Σ x. AVX2 sums products of two as int16, which holds all of a block where weights are small: then
// they are weights + SMALL, and sums begin at -SMALL · Σ x (both modulo 2¹⁶; what they come to is within ± 2¹⁵). Others
// lend activations their signs and are summed as int32 at once.

namespace gemm_int {

using gemm::Floats;
using gemm::Ints;
using gemm::LANES;
using gemm::STRIP;
using gemm::Part;
using gemm::least;
using gemm::load;
using gemm::store;
using gemm::everywhere;
using gemm::fused;

constexpr int BLOCK = 32;
constexpr int64_t MOST_DEPTH = 768;  // columns of a strip at a time
constexpr int64_t BLOCKS = MOST_DEPTH / BLOCK;
constexpr int MOST = WM_SIMD == 0 ? 2 : 6;  // rows whose sums fit registers: with AVX2 those of integers alone
constexpr int64_t ROWS = 516;

WM_INLINE Ints load_ints(const int32_t* p) {
  Ints v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
WM_INLINE Ints everywhere(int32_t v) { return Ints{} + v; }

constexpr int SMALL = 16;  // more than the magnitude of any small weight; 32 · 127 · 15 / 2 < 2¹⁵

// What BITS of activations mean: how integers lie in 32-bit lanes, and the largest of both sides.
template <int BITS>
struct Width {
  static constexpr bool QUADS = WM_SIMD != 0 && BITS == 8;
  static constexpr int PER = QUADS ? 4 : 2;  // of a lane
  static constexpr float MOST_X = BITS == 8 ? 127 : 32767;
  static constexpr float MOST_W = BITS == 8 ? 127 : 2047;  // 32 · 32767 · 2047 < 2³¹
  // The column of a block that is the i-th of lane t: of eight columns every other one, or every fourth. So four-bit
  // codes lie in bytes and in halves of 32 bits.
  static constexpr int column(int t, int i) {
    return !QUADS && WM_SIMD != 512 ? 2 * t + i : t / (8 / PER) * 8 + t % (8 / PER) + 8 / PER * i;
  }
  // What is added to weights.
  static constexpr int offset(bool small) { return !QUADS ? 0 : WM_SIMD == 512 ? 128 : small ? SMALL : 0; }
};

// sums + the dot products of lanes of w and x.
template <bool QUADS, bool IS_SMALL>
WM_INLINE Ints dot(Ints sum, Ints w, Ints x) {
#if WM_SIMD == 512
  if (QUADS) return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif WM_SIMD == 256
  const __m256i a = (__m256i)w, b = (__m256i)x;
  if (!QUADS) return sum + (Ints)_mm256_madd_epi16(a, b);
  if (IS_SMALL) return (Ints)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16(a, b));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));  // 2 · 127 · 128 < 2¹⁵
  return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  return sum + (w << 16 >> 16) * (x << 16 >> 16) + (w >> 16) * (x >> 16);
#endif
}

// What `dot` comes to in the end.
template <bool PAIRS>
WM_INLINE Ints summed(Ints sum) {
#if WM_SIMD == 256
  if (PAIRS) return (Ints)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
#endif
  return sum;
}

// To the nearest integer, of magnitudes under 2²².
WM_INLINE Ints rounded(Floats v) {
#if WM_SIMD == 512
  return (Ints)_mm512_cvtps_epi32((__m512)v);
#elif WM_SIMD == 256
  return (Ints)_mm256_cvtps_epi32((__m256)v);
#else
  return (Ints)(v + 12582912.0f) - 0x4B400000;  // 1.5 · 2²³: its last place is 1
#endif
}

WM_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }

// The unit in which the largest magnitude (given as its pattern) is `most`, and how many of it are 1: NaN where it is not
// finite, nothing where it is next to nothing.
WM_INLINE void unit_of(Ints largest, float most, Floats* unit, Floats* inverse) {
  const Floats top = (Floats)largest;
  const Ints some = largest >= 0x03800000;  // 2^-120: so that neither is infinite
  *inverse = (Floats)((Ints)(everywhere(most) / top) & some);
  *unit = (Floats)(((Ints)(top * (1 / most)) & some) | ((largest >= 0x7F800000) & 0x7FC00000));
}

#if WM_SIMD == 512
WM_INLINE int32_t most(Ints v) { return _mm512_reduce_max_epi32((__m512i)v); }
#else
WM_INLINE int32_t most(Ints v) {
  int32_t found = v[0];
  for (int l = 1; l < LANES; ++l) found = v[l] > found ? v[l] : found;
  return found;
}
#endif

#include "gemm_int_rows.h"
#include "gemm_int_weights.h"

// ---- Products ----

// Units whose products are neither next to nothing nor infinite: of magnitudes 2^-60 … 2^60, and with `fraction` all bits
// of one, powers of two.
static bool moderate(const float* units, int64_t count, int32_t fraction) {
  constexpr int32_t LEAST = (127 - 60) << 23, LARGEST = (127 + 60) << 23;
  int32_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t unit;
    std::memcpy(&unit, units + i, sizeof unit);
    wrong |= (unit & fraction) | (unit < LEAST) | (unit > LARGEST);
  }
  return wrong == 0;
}

// POWERS: all units are moderate, those of weights powers of two. What remains of a product of units is a sum of
// exponents, which leaves the ports that multiply to the dot products: measured on Zen 5, 86 % of their peak, not 77 %.
// Units are those of GROUP columns of weights: all of a block, or half of it.
template <int BITS, int M, bool POWERS, bool IS_SMALL, int GROUP>
static void tile(const int32_t* w, const float* w_units, const int32_t* x, const float* x_units, const int32_t* begin,
                 int64_t blocks, float* sums, bool add) {
  using W = Width<BITS>;
  constexpr bool AS_PAIRS = IS_SMALL && W::QUADS && WM_SIMD == 256, BEGIN = AS_PAIRS || (W::QUADS && WM_SIMD == 512);
  Floats sum[M][2];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = Floats{};  // not at once, which clears memory for them as well
  constexpr int PARTS = BLOCK / GROUP;  // of a block of activations
  for (int64_t g = 1; g <= blocks * PARTS; ++g, begin += M, w_units += STRIP) {
    Ints whole[M][2];
    for (int m = 0; m < M; ++m) whole[m][0] = whole[m][1] = everywhere(BEGIN ? begin[m] : 0);
#if WM_SIMD == 256
#pragma GCC unroll 1  // or products are made of all and wait in memory to be summed
#endif
    for (int t = 0; t < GROUP / W::PER; ++t, w += STRIP, x += M) {
      const Ints w0 = load_ints(w), w1 = load_ints(w + LANES);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        Ints v = everywhere(x[m]);
#if WM_SIMD == 256  // row by row, or products of all rows are made first and find no registers
        asm volatile("" : "+x"(v));
#endif
        whole[m][0] = dot<W::QUADS, AS_PAIRS>(whole[m][0], w0, v);
        whole[m][1] = dot<W::QUADS, AS_PAIRS>(whole[m][1], w1, v);
#if WM_SIMD == 256
        asm volatile("" : "+x"(whole[m][0]), "+x"(whole[m][1]));
#endif
      }
    }
    const Floats w_unit[2] = {load(w_units), load(w_units + LANES)};
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Floats x_unit = gemm::everywhere(x_units[m]);
      for (int h = 0; h < 2; ++h) {
        Floats unit;
        if constexpr (POWERS) unit = (Floats)((Ints)x_unit + ((Ints)w_unit[h] - (127 << 23)));
        else unit = x_unit * w_unit[h];
        sum[m][h] = fused(decoding::to_float(summed<AS_PAIRS>(whole[m][h])), unit, sum[m][h]);
      }
    }
    if (g % PARTS == 0) x_units += M;
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) gemm::put(sum[m], sums + m * STRIP, add);
}

using Tile = void (*)(const int32_t*, const float*, const int32_t*, const float*, const int32_t*, int64_t, float*,
                      bool);

template <int BITS, int M>
static inline Tile tile_of(int64_t rows, bool powers, const Form& form) {
  if constexpr (M > 1)
    if (rows < M) return tile_of<BITS, M - 1>(rows, powers, form);
  if (form.group < BLOCK) return tile<BITS, M, false, false, BLOCK / 2>;
  if constexpr (WM_SIMD == 256 && BITS == 8)
    if (form.small) return powers ? tile<BITS, M, true, true, BLOCK> : tile<BITS, M, false, true, BLOCK>;
  return powers ? tile<BITS, M, true, false, BLOCK> : tile<BITS, M, false, false, BLOCK>;
}

// Activations in order: integers of all rows, then units, and so on: see InOrder.
template <int BITS, typename Number>
struct Arranged {
  static constexpr int64_t LANES_OF_BLOCK = BLOCK / Width<BITS>::PER;
  Number* ints;
  int64_t rows, blocks;  // of all columns

  Arranged(Number* at, const GemmRows& q) : ints(at), rows(q.count), blocks((q.n + BLOCK - 1) / BLOCK) {}

  // Of `some` blocks of a tile that begins at row m, where `before` blocks are before them.
  Number* ints_at(int64_t m, int64_t before, int64_t some) const {
    return ints + (before * rows + m * some) * LANES_OF_BLOCK;
  }
  Number* units_at(int64_t m, int64_t before, int64_t some) const {
    return ints + rows * blocks * LANES_OF_BLOCK + before * rows + m * some;
  }
  Number* begin_at(int64_t m, int64_t before, int64_t some) const { return units_at(m, before, some) + rows * blocks; }
  Number* sums_at(int64_t m, int64_t before, int64_t some) const { return begin_at(m, before, some) + rows * blocks; }
  Number* halves_begin_at(int64_t m, int64_t before, int64_t some) const {
    return units_at(0, 0, 0) + 3 * rows * blocks + 2 * (before * rows + m * some);
  }
  static constexpr int64_t of_block() { return LANES_OF_BLOCK + 5; }  // numbers of a row
};

static inline int64_t depth_of(int64_t n) { return gemm::even_depth(n, MOST_DEPTH, BLOCK); }

template <int BITS>
static int64_t arranged(int64_t n) {
  return (n + BLOCK - 1) / BLOCK * Arranged<BITS, float>::of_block();
}

template <int BITS>
static void arrange_tile(const GemmRows& q, int64_t i, float* out) {
  const Arranged<BITS, float> to(out, q);
  const int64_t tiles = (q.count + MOST - 1) / MOST, m = gemm::first_of(q.count, tiles, i);
  for (int64_t k = 0, deep = depth_of(q.n); k < q.n; k += deep) {
    const int64_t depth = least(deep, q.n - k), before = k / BLOCK, some = (depth + BLOCK - 1) / BLOCK;
    arrange<BITS>(q, m, gemm::share(q.count, tiles, i), k, depth,
                  {reinterpret_cast<int32_t*>(to.ints_at(m, before, some)), to.units_at(m, before, some),
                   to.sums_at(m, before, some), reinterpret_cast<int32_t*>(to.begin_at(m, before, some)),
                   reinterpret_cast<int32_t*>(to.halves_begin_at(m, before, some))});
  }
}

// As gemm::product.
template <int BITS>
static void product(const Weights& w, int64_t matrix, int64_t first, int64_t last, const GemmRows& q, const float* x,
                    float* scratch) {
  const gemm::StripDecoder& decoder = gemm::strip_decoder(w);
  const Form form(w, Width<BITS>::MOST_W);
  const Arranged<BITS, const float> from(x, q);
  float *scales = scratch + STRIP * MOST_DEPTH, *units = scales + gemm::SCALES_SCRATCH;
  float *minima = units + STRIP * 2 * BLOCKS, *sums = minima + STRIP * BLOCKS;
  int32_t* strip = reinterpret_cast<int32_t*>(sums + STRIP * ROWS);
  const bool moderate_x = form.multiple != 0 && w.scale == WM_SCALE_E8M0 && moderate(from.units_at(0, 0, 0), from.rows * from.blocks, 0);
  bool powers = false;
  gemm::products<MOST>(
      decoder, Part{w, matrix, 0, 0, 0, 0, scratch, scales, 0}, depth_of(w.n), first, last, q, sums,
      [&](const Part& p) {
        for (int half = 0; half < 2; ++half) make<BITS>(p, half, decoder, form, strip, units, minima);
        powers = moderate_x && moderate(units, form.groups(p.depth) * STRIP, 0x7FFFFF);
      },
      [&](const Part& p, int64_t m, int64_t height, float* to, bool add) {
        const int64_t before = p.k / BLOCK, some = (p.depth + BLOCK - 1) / BLOCK;
        const float* begin = form.group < BLOCK ? from.halves_begin_at(m, before, some) : from.begin_at(m, before, some);
        tile_of<BITS, MOST>(height, powers, form)(
            strip, units, reinterpret_cast<const int32_t*>(from.ints_at(m, before, some)),
            from.units_at(m, before, some), reinterpret_cast<const int32_t*>(begin), some, to, add);
        if (form.minima) gemm::tile_of<MOST>(height)(minima, from.sums_at(m, before, some), some, to, true);
      });
}

constexpr int64_t SCRATCH = STRIP * (MOST_DEPTH * 3 / 2 + 3 * BLOCKS + ROWS) + gemm::SCALES_SCRATCH;
template <int BITS>
constexpr GemmKernel KERNEL = {STRIP, MOST, ROWS, SCRATCH, arranged<BITS>, arrange_tile<BITS>, product<BITS>};
constexpr GemmKernel INT8 = KERNEL<8>, INT16 = KERNEL<16>;

}  // namespace gemm_int
