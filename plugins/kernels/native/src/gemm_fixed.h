// Products of many rows of activations with weights of four bits by way of integers, for AVX-512 with VNNI, as exact as
// by float32: codes become bytes a register of 64 at a time, and an instruction sums 64 products of a digit of activations.
// Included after gemm_int.h.
//
// It is what gemv_fixed.h does, but the 32 activations of a block share a power of two, the least in which sums of all
// digits fit 32 bits: each is off by 2^-22 of the largest of them at most, and bfloat16 ones within 2^-14 of it are exact.
// An integer is three digits of base 256, from -128 to 127. Units of weights are their scales.

namespace gemm_fixed {

using gemm::Floats;
using gemm::Ints;
using gemm::LANES;
using gemm::STRIP;
using gemm::Part;
using gemm::least;
using gemm::load;
using gemm_int::BLOCK;
using gemm_int::MOST;
using gemm_int::ROWS;

constexpr int DIGITS = 3, QUADS = BLOCK / 4, OF_BLOCK = DIGITS * QUADS;  // lanes

// What 1 is in the integers that elements are, and the largest of these.
template <WmElement E>
struct Codes {
  static constexpr int MULTIPLE = E == WM_E2M1 ? 2 : 1, MOST = E == WM_E2M1 ? 12 : 8;
};

template <WmElement E>
static bool takes(const Weights& w) {
  return w.element == E && w.zero == WM_ZERO_NONE && (w.block_elems % BLOCK == 0 || w.block_elems >= w.n);
}

// ---- Activations: [block][digit][four columns][m], the highest digit first; units, and what sums are given, [block][m] ----

// Whether float32 would do no better: all are finite, none outweighs the others, and the largest is far from the ends of
// float32, so that sums are before they are scaled.
static bool fits(const void* x, bool bf16, int64_t n) {
  constexpr float LEAST = 0x1p-80f, MOST_X = 0x1p100f;
  Floats largest = {}, all = {};
  for (int64_t k = 0; k < n; k += LANES) {
    const Floats size = (Floats)(gemm::columns(x, bf16, k, n - k) & 0x7FFFFFFF);
    largest = (Floats)_mm512_max_ps((__m512)size, (__m512)largest);  // NaN is in the sum alone
    all += size;
  }
  const float most = _mm512_reduce_max_ps((__m512)largest), sum = _mm512_reduce_add_ps((__m512)all);
  return 2 * most <= sum && (most == 0 || most >= LEAST) && most <= MOST_X && sum < __builtin_inff();
}

// Rows first … first + m of q, columns k … k + depth.
template <WmElement E>
static void arrange(const GemmRows& q, int64_t first, int64_t m, int64_t k, int64_t depth, int32_t* out, float* units,
                    int32_t* begin) {
  // The power of two: past what the largest is in digits, the next; not so small that its inverse were infinite.
  constexpr int BITS = 8 * DIGITS - 1, LARGEST = 127 << 16 | 127 << 8 | 127;
  constexpr int FITS = int((int64_t(1) << 31) / (BLOCK * Codes<E>::MOST)) - 1;
  constexpr float ROOM = float(1 << BITS) / float(FITS < LARGEST ? FITS : LARGEST);
  for (int64_t i = 0; i < m; ++i) {
    const void* x = q.x_of(first + i);
    for (int64_t b = 0; b * BLOCK < depth; ++b) {
      Floats part[2];
      Ints largest = {};
      for (int h = 0; h < 2; ++h) {
        const int64_t at = b * BLOCK + h * LANES;
        const Ints v = depth > at ? gemm::columns(x, q.bf16, k + at, depth - at) : Ints{};
        part[h] = (Floats)v, largest = gemm_int::larger(largest, v & 0x7FFFFFFF);
      }
      const Ints top = gemm_int::everywhere(gemm_int::most(largest));
      const Ints power = gemm_int::larger((Ints)((Floats)top * ROOM) & 0x7F800000, gemm_int::everywhere((BITS + 1) << 23));
      const Floats inverse = (Floats)(((253 + BITS) << 23) - power);
      Ints whole[2], total = {};
      for (int h = 0; h < 2; ++h) total += whole[h] = gemm_int::rounded(part[h] * inverse);
      int32_t lanes[QUADS];
      for (int digit = 0; digit < DIGITS; ++digit) {
        for (int h = 0; h < 2; ++h)  // bytes, of which those under it that are 128 or more are one of it, and less
          gemm_int::narrow<true>(((whole[h] + 0x8080) ^ 0x8080) >> (8 * (DIGITS - 1 - digit)), lanes + h * QUADS / 2);
        for (int t = 0; t < QUADS; ++t) out[((b * DIGITS + digit) * QUADS + t) * m + i] = lanes[t];
      }
      // 0 in any unit, of which 1 is a moderate one; all else times MULTIPLE.
      const Ints unit = power - ((BITS - 1 + Codes<E>::MULTIPLE - 1) << 23);
      units[b * m + i] = top[0] == 0 ? 1 : ((Floats)unit)[0];
      begin[b * m + i] = int32_t(-128u * uint32_t(_mm512_reduce_add_epi32((__m512i)total)));
    }
  }
}

template <WmElement E>
static void arrange_tile(const GemmRows& q, int64_t i, float* out) {
  gemm_int::arrange_all<OF_BLOCK>(q, i, out, arrange<E>);
}

// ---- Products ----

// As gemm_int::tile, which says what POWERS are; a digit after the other, or sums found no registers.
template <int M, bool POWERS>
static void tile(const int32_t* w, const float* w_units, const int32_t* x, const float* x_units, const int32_t* add_to,
                 int64_t blocks, float* sums, bool add) {
  Floats sum[M][2];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = Floats{};
  for (int64_t b = 0; b < blocks; ++b, w += QUADS * STRIP, w_units += STRIP, x_units += M, add_to += M) {
    Ints whole[M][2] = {};
    for (int digit = 0; digit < DIGITS; ++digit) {
      if (digit > 0)
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) whole[m][0] <<= 8, whole[m][1] <<= 8;
#pragma GCC unroll 8
      for (int t = 0; t < QUADS; ++t, x += M) {
        const Ints w0 = gemm_int::load_ints(w + t * STRIP), w1 = gemm_int::load_ints(w + t * STRIP + LANES);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const Ints v = gemm_int::everywhere(x[m]);
          whole[m][0] = gemm_int::dot<true, false>(whole[m][0], w0, v);
          whole[m][1] = gemm_int::dot<true, false>(whole[m][1], w1, v);
        }
      }
    }
    const gemm_int::Units<POWERS> units(w_units);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Floats x_unit = gemm::everywhere(x_units[m]);
      for (int h = 0; h < 2; ++h) {
        const Floats v = decoding::to_float(whole[m][h] + add_to[m]);
        // Two units may be next to nothing together, where one of them times what is summed is not.
        sum[m][h] = POWERS ? gemm::fused(v, units.times(x_unit, h), sum[m][h]) : gemm::fused(v * x_unit, units.held[h], sum[m][h]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) gemm::put(sum[m], sums + m * STRIP, add);
}

template <int M>
static inline gemm_int::Tile tile_of(int64_t rows, bool powers) {
  if constexpr (M > 1)
    if (rows < M) return tile_of<M - 1>(rows, powers);
  return powers ? tile<M, true> : tile<M, false>;
}

template <WmElement E>
static void product(const Weights& w, int64_t matrix, int64_t first, int64_t last, const GemmRows& q, const float* x,
                    float* scratch) {
  gemm_int::products<OF_BLOCK>(
      w, matrix, first, last, q, x, scratch, true,
      [](const Part& p, int half, int32_t* strip, float* units) {
        for (int64_t b = 0; b * BLOCK < p.depth; ++b)
          gemm::store(units + b * STRIP + half * LANES, load(p.scales_of(half, p.k + b * BLOCK)));
        gemm_int::four_bits<8, E, Codes<E>::MULTIPLE>(p, half, strip);
      },
      [](int64_t rows, bool powers) { return tile_of<MOST>(rows, powers); });
}

template <WmElement E>
constexpr GemmKernel KERNEL = {STRIP, MOST, ROWS, gemm_int::SCRATCH, gemm_int::arranged<OF_BLOCK>, arrange_tile<E>,
                               product<E>, fits};

// What multiplies all of these weights; null where there is none.
static const GemmKernel* kernel(const std::vector<Stack>& stacks) {
  const auto all = [&](bool (*takes)(const Weights&)) {
    return std::all_of(stacks.begin(), stacks.end(), [&](const Stack& s) { return takes(s.w); });
  };
  return all(takes<WM_E2M1>) ? &KERNEL<WM_E2M1> : all(takes<WM_INT4>) ? &KERNEL<WM_INT4> : nullptr;
}

}  // namespace gemm_fixed
