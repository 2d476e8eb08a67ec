// Products of a few rows with structs of ggml by way of integers (gemv_fixed.h), for AVX-512 with VNNI: 64 codes are a
// register of bytes, four to a lane, and meet the digits of as many activations. Sums of a lane are exact until they are
// times what their four activations share and the factor of their group. Minima are taken off as in gemv_structs.h. Not of
// IQ4_NL, whose values are too large for sums of all digits to fit 32 bits.

template <WmElement E>
struct StructIntegers {
  static constexpr bool FOUR_BITS = false, NARROW = true;
  static constexpr int OWN = 4, GROUP = 64;
  static constexpr int UP = E == WM_Q6_K ? 32 : E == WM_Q5_0 ? 16 : E == WM_Q3_K ? 4 : 0;  // codes have no sign
  using Group = FixedGroup<1, true>;

  // Which 32 elements of its block are in a half of the i-th register: what lies together in a block is.
  static constexpr int run(int i, int half) {
    if (E == WM_Q2_K || E == WM_Q3_K) return i + 4 * half;
    if (E == WM_Q4_K || E == WM_Q5_K) return i / 2 * 4 + i % 2 + 2 * half;
    return 2 * i + half;
  }
  static constexpr int64_t first_of(int64_t g, int sixteen) {
    return g / 256 * 256 + run(int(g % 256 / GROUP), sixteen / 2) * 32 + sixteen % 2 * 16;
  }
};

// For each byte of a register, from which bit on it is taken, of the eight bytes that it is one of: `low` bits up, in the
// first half, and `high` in the other.
WM_INLINE __m512i from_bits(int low, int high) {
  const __m512i own = _mm512_set1_epi64(0x3830282018100800);
  return _mm512_add_epi8(own, _mm512_inserti64x4(_mm512_set1_epi8(char(low)), _mm256_set1_epi8(char(high)), 1));
}
WM_INLINE __m512i in_both_halves(const uint8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
WM_INLINE __m512i some_bits(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(char(mask))); }
// low | (v & mask)
WM_INLINE __m512i with_bits(__m512i low, __m512i v, int mask) {
  return _mm512_ternarylogic_epi32(low, v, _mm512_set1_epi8(char(mask)), 0xF8);
}

// The codes of the i-th register of a block b of 256, without a sign.
template <WmElement E>
WM_INLINE __m512i codes_of_64(const uint8_t* b, int i) {
  const auto taken = [](const uint8_t* p, int low, int high) __attribute__((always_inline)) {
    return _mm512_multishift_epi64_epi8(from_bits(low, high), in_both_halves(p));
  };
  if constexpr (E == WM_Q2_K) return some_bits(_mm512_srli_epi32(_mm512_loadu_si512(b + 16), unsigned(2 * i)), 3);
  if constexpr (E == WM_Q3_K) {
    const __m512i low = some_bits(_mm512_srli_epi32(_mm512_loadu_si512(b + 32), unsigned(2 * i)), 3);
    return with_bits(low, taken(b, i - 2, i + 2), 4);
  }
  if constexpr (E == WM_Q4_K || E == WM_Q5_K) {
    const __m512i raw = _mm512_loadu_si512(b + (E == WM_Q4_K ? 16 : 48) + i / 2 * 64);
    const __m512i low = some_bits(_mm512_srli_epi32(raw, unsigned(i % 2 * 4)), 15);
    if constexpr (E == WM_Q4_K) return low;
    const int run = StructIntegers<E>::run(i, 0);
    return with_bits(low, taken(b + 16, run - 4, run - 2), 16);
  }
  if constexpr (E == WM_Q6_K) {
    const __m512i raw = _mm512_loadu_si512(b + i / 2 * 64);
    const int at = i % 2 * 4;
    return with_bits(some_bits(_mm512_srli_epi32(raw, unsigned(at)), 15), taken(b + 128 + i / 2 * 32, at - 4, at - 2), 48);
  }
}

// Those of two blocks of 32: halves of bytes, the lower ones first, and a fifth bit each.
template <WmElement E>
WM_INLINE __m512i codes_of_two(const uint8_t* b, const uint8_t* c) {
  constexpr int FIFTH = E == WM_Q5_1 ? 4 : 2;
  const auto four = [](const uint8_t* p) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  const __m512i raw = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(four(b + FIFTH + 4)), 0xFF00, four(c + FIFTH + 4));
  alignas(64) static constexpr uint64_t FROM[8] = {  // whole bytes of the lower half of a half, and then four bits up
      0x3830282018100800, 0x3830282018100800, 0x3C342C241C140C04, 0x3C342C241C140C04,
      0x3830282018100800, 0x3830282018100800, 0x3C342C241C140C04, 0x3C342C241C140C04};
  const __m512i low = some_bits(_mm512_multishift_epi64_epi8(_mm512_load_si512(FROM), raw), 15);
  const uint64_t fifth = structs::joined(structs::number<uint32_t>(b + FIFTH), structs::number<uint32_t>(c + FIFTH));
  return _mm512_mask_add_epi8(low, fifth, low, _mm512_set1_epi8(16));
}

// Which factor of its block each lane of the i-th register is of.
template <WmElement E>
struct FactorOf {
  int32_t lane[4][LANES];
  constexpr FactorOf() : lane() {
    constexpr int GROUP = structs::GROUP<E>;
    for (int i = 0; i < 4; ++i)
      for (int l = 0; l < LANES; ++l)
        lane[i][l] = (StructIntegers<E>::run(i, l / 8) * 32 + l % 8 * 4) / GROUP;
  }
};

// What each lane's products sum up to, times what its activations share.
WM_INLINE V of_lanes(__m512i codes, const FixedGroup<1, true>& q, bool moved) {
  const __m512i all = of_all_digits(moved ? q.moved[0] : _mm512_setzero_si512(),
                                    [&](__m512i sum, int digit) __attribute__((always_inline)) {
                                      return _mm512_dpbusd_epi32(sum, codes, q.digits[digit][0]);
                                    });
  return (V)_mm512_mul_ps(_mm512_cvtepi32_ps(all), q.unit);
}

// y[m][row …] of rows whose blocks are of 256.
template <WmElement E, int M>
static void rows_of_256(const Gemv& q, int64_t matrix, int64_t row, int64_t count, const Arranged* xs, float* const* y) {
  using L = StructIntegers<E>;
  constexpr int GROUPS = structs::GROUPS<E>, NBYTES = struct_nbytes(E);
  alignas(64) static constexpr FactorOf<E> WHICH;
  const Weights& w = q.w;
  const int64_t blocks = w.n / 256;
  const uint8_t* p = w.codes + (matrix * w.rows + row) * w.row_nbytes();
  for (int64_t r = row; r < row + count; ++r) {
    V sum[M] = {};
    __m256 taken[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) taken[m] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b, p += NBYTES) {
      alignas(64) float factor[GROUPS], less[GROUPS];
      for (int at = 0; at < NBYTES; at += 64) ask_for(p + q.ahead.bytes + at, p + q.ahead.near + at, q.ahead);
      structs::factors_of<E>(p, factor, less);
      __m512 factors = _mm512_castps256_ps512(_mm256_load_ps(factor));
      if constexpr (GROUPS == 16) factors = _mm512_insertf32x8(factors, _mm256_load_ps(factor + 8), 1);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i codes = in_register(codes_of_64<E>(p, i));
        const V scale = (V)_mm512_permutexvar_ps(_mm512_load_si512(WHICH.lane[i]), factors);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const typename L::Group& x = static_cast<const typename L::Group*>(xs[m].x)[4 * b + i];
          sum[m] = fused(of_lanes(codes, x, L::UP != 0), scale, sum[m]);
        }
      }
      if constexpr (structs::MINIMA<E>)
        for (int m = 0; m < M; ++m)
          for (int i = 0; i < GROUPS; i += 8)
            taken[m] = _mm256_fmadd_ps(_mm256_load_ps(less + i), _mm256_loadu_ps(xs[m].sums + b * GROUPS + i), taken[m]);
    }
    if constexpr (structs::MINIMA<E>)
      for (int m = 0; m < M; ++m) sum[m] -= (V)_mm512_zextps256_ps512(taken[m]);
    put_totals<M>(sum, y, r);
  }
}

// The same of blocks of 32, two in a register; the last one of an odd number of them alone.
template <WmElement E, int M>
static void rows_of_32(const Gemv& q, int64_t matrix, int64_t row, int64_t count, const Arranged* xs, float* const* y) {
  using L = StructIntegers<E>;
  constexpr int NBYTES = struct_nbytes(E);
  const Weights& w = q.w;
  const int64_t blocks = w.n / 32;
  const __m512i halves = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(1), 1);
  const uint8_t* p = w.codes + (matrix * w.rows + row) * w.row_nbytes();
  for (int64_t r = row; r < row + count; ++r) {
    V sum[M] = {};
    const auto two = [&](const uint8_t* b, const uint8_t* c, __mmask16 there, int64_t i) __attribute__((always_inline)) {
      ask_for(b + q.ahead.bytes, b + q.ahead.near, q.ahead);
      const auto both = [&](int at) __attribute__((always_inline)) {  // float16 of each, in its half of the lanes
        const uint32_t stored = uint32_t(structs::number<uint16_t>(b + at) | structs::number<uint16_t>(c + at) << 16);
        const __m512 floats = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(int(stored))));
        return _mm512_maskz_permutexvar_ps(there, halves, floats);
      };
      const __m512i codes = in_register(codes_of_two<E>(b, c));
      const V scale = (V)both(0);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const typename L::Group& x = static_cast<const typename L::Group*>(xs[m].x)[i];
        sum[m] = fused(of_lanes(codes, x, L::UP != 0), scale, sum[m]);
        if constexpr (structs::MINIMA<E>) {  // once for each block, in the first lane of its half
          const float* of = xs[m].sums + 2 * i;
          const __m512 sums = _mm512_mask_broadcastss_ps(_mm512_set1_ps(*of), 0xFF00, _mm_load_ss(of + (b != c)));
          sum[m] = (V)_mm512_mask3_fmadd_ps(both(2), sums, (__m512)sum[m], 0x0101);
        }
      }
    };
    int64_t i = 0;
    for (; 2 * i + 1 < blocks; ++i, p += 2 * NBYTES) two(p, p + NBYTES, 0xFFFF, i);
    if (blocks % 2) two(p, p, 0x00FF, i), p += NBYTES;
    put_totals<M>(sum, y, r);
  }
}

template <WmElement E>
static bool arrange_struct_fixed(const void* x, bool from_bf16, int64_t n, void* out, float* sums) {
  sums_of_groups<E>(x, from_bf16, n, sums);
  return arrange_fixed<StructIntegers<E>>(x, from_bf16, n, out, nullptr);
}

template <WmElement E>
static void struct_product_fixed(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x,
                                 float* const* y, float*) {
  const auto rows = [&](auto some, const Arranged* xs, float* const* to) {
    constexpr int M = decltype(some)::value;
    if constexpr (struct_elems(E) == 32) rows_of_32<E, M>(q, matrix, row, count, xs, to);
    else rows_of_256<E, M>(q, matrix, row, count, xs, to);
  };
  by_rows(m, x, y, rows);
}

template <WmElement E>
constexpr GemvKernel fixed_struct_kernel_of() {
  constexpr int ARRANGED = STRUCT_GROUP / 64 * int(sizeof(typename StructIntegers<E>::Group) / 4);
  static_assert(ARRANGED >= STRUCT_GROUP, "float32 may be arranged there instead");
  return {LANES, STRUCT_GROUP, ARRANGED, 32, nullptr, set_of(Scaled::ROW), 4, arrange_struct_fixed<E>, struct_product_fixed<E>};
}

static const GemvKernel* struct_kernel(WmElement e) {
  static constexpr GemvKernel ALL[] = {fixed_struct_kernel_of<WM_Q2_K>(), fixed_struct_kernel_of<WM_Q3_K>(),
                                       fixed_struct_kernel_of<WM_Q4_K>(), fixed_struct_kernel_of<WM_Q5_K>(),
                                       fixed_struct_kernel_of<WM_Q6_K>(), fixed_struct_kernel_of<WM_Q5_0>(),
                                       fixed_struct_kernel_of<WM_Q5_1>()};
  return e == WM_IQ4_NL ? nullptr : ALL + (e - WM_Q2_K);
}
