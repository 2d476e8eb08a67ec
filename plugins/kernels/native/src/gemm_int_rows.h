// Activations of gemm_int.h: blocks of float32 or bfloat16 as integers in a unit of their own, in order for its tiles.
// Included there, once for each instruction set.

// LANES columns of activations as lanes of a strip have them.
template <bool QUADS>
WM_INLINE void narrow(Ints v, int32_t* lanes) {
#if WM_SIMD == 512
  if (QUADS) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), _mm_shuffle_epi8(_mm512_cvtepi32_epi8((__m512i)v), order));
  } else {
    const __m128i one = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    const __m256i halves = _mm512_cvtepi32_epi16((__m512i)v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), _mm256_shuffle_epi8(halves, _mm256_broadcastsi128_si256(one)));
  }
#elif WM_SIMD == 256
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  if (QUADS) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(lanes), _mm_shuffle_epi8(_mm_packs_epi16(halves, halves), order));
  } else {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), halves);
  }
#else
  typedef int16_t Halves __attribute__((vector_size(2 * LANES)));
  const Halves half = __builtin_convertvector(v, Halves);
  std::memcpy(lanes, &half, sizeof half);
#endif
}

#if WM_SIMD == 512
WM_INLINE int32_t sum_of(Ints v) { return _mm512_reduce_add_epi32((__m512i)v); }
#else
WM_INLINE int32_t sum_of(Ints v) {
  int32_t found = v[0];
  for (int l = 1; l < LANES; ++l) found += v[l];
  return found;
}
#endif

// What sums of half a block begin with, whose weights are never small.
template <bool QUADS>
WM_INLINE int32_t half_begin_of(Ints total) {
  return QUADS && WM_SIMD == 512 ? -128 * sum_of(total) : 0;
}

// What sums of a block begin with, whose lanes those are and whose integers are `total` together: see gemm_int.h.
template <bool QUADS>
WM_INLINE int32_t begin_of([[maybe_unused]] const int32_t* lanes, [[maybe_unused]] Ints total) {
  if (!QUADS) return 0;
#if WM_SIMD == 512
  return half_begin_of<true>(total);
#elif WM_SIMD == 256
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(SMALL), bytes);
  __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0x4E));
  sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0xB1));
  return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), sum));
#else
  return 0;
#endif
}

// Where activations in order go: integers [block][lane of BLOCK / PER][m]; and [block][m] of units, of what sums of blocks
// begin with, and of the sums of what the integers stand for; [half of a block][m] of what sums of such begin with.
struct InOrder {
  int32_t* ints;
  float *units, *sums;
  int32_t *begin, *halves_begin;
};

// Rows first … first + m of q, columns k … k + depth.
template <int BITS>
static void arrange(const GemmRows& q, int64_t first, int64_t m, int64_t k, int64_t depth, const InOrder& to) {
  using W = Width<BITS>;
  for (int64_t i = 0; i < m; ++i) {
    const void* x = q.x_of(first + i);
    for (int64_t b = 0; b * BLOCK < depth; ++b) {
      Ints part[BLOCK / LANES], largest = {};
      for (int c = 0; c < BLOCK; c += LANES) {
        part[c / LANES] = depth - b * BLOCK > c ? gemm::columns(x, q.bf16, k + b * BLOCK + c, depth - b * BLOCK - c) : Ints{};
        largest = larger(largest, part[c / LANES] & 0x7FFFFFFF);
      }
      Floats unit, inverse;
      Ints total[2] = {};  // of either half
      const Ints top = everywhere(most(largest)), finite = top < 0x7F800000;
      unit_of(top, W::MOST_X, &unit, &inverse);
      int32_t lanes[BLOCK / W::PER];
      for (int c = 0; c < BLOCK; c += LANES) {
        const Ints v = rounded((Floats)part[c / LANES] * inverse) & finite;  // else the unit is NaN, and they are anything
        narrow<W::QUADS>(v, lanes + c / W::PER);
        total[c * 2 / BLOCK] += v;
      }
      for (int t = 0; t < BLOCK / W::PER; ++t) to.ints[(b * (BLOCK / W::PER) + t) * m + i] = lanes[t];
      const bool nothing = unit[0] == 0 && inverse[0] == 0;  // all are 0: in any unit, and 1 is a moderate one
      to.units[b * m + i] = nothing ? 1 : unit[0];
      to.begin[b * m + i] = begin_of<W::QUADS>(lanes, total[0] + total[1]);
      for (int h = 0; h < 2; ++h) to.halves_begin[(2 * b + h) * m + i] = half_begin_of<W::QUADS>(total[h]);
      to.sums[b * m + i] = float(sum_of(total[0] + total[1])) * unit[0];
    }
  }
}
