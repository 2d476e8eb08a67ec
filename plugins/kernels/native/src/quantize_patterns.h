// Bfloat16 to E2M1 under powers of two, which is what is converted most. Patterns are ordered like magnitudes, dividing
// subtracts from the exponent, a code is the number of boundaries that are passed, and what it stands for is a bfloat16
// too: half the registers of float32, which only sums of errors need. It does not hold of scales so small that patterns
// are not linear under them. Included once for each instruction set, after extremes.h, block_scales.h, error_sums.h and
// turn.h.

struct Patterns {
  typedef Register<int16_t, WIDTH>::V V;
  typedef Register<int16_t, WIDTH>::InMemory InMemory;
  static constexpr int N = WIDTH / 2, GROUP = 32, LEAST_SCALE = 3;

  V past[7];  // what is larger has passed
  bool positive;

  explicit Patterns(const QuantizeCall& q) : positive(q.sign == WM_POSITIVE) {
    constexpr int16_t BOUNDARIES[] = {0x3E80, 0x3F40, 0x3FA0, 0x3FE0, 0x4020, 0x4060, 0x40A0};  // 1/4 3/4 5/4 7/4 5/2 7/2 5
    for (int k = 0; k < 7; ++k)
      past[k] = int16_t(BOUNDARIES[k] - (q.ties == WM_TIES_AWAY || (q.ties == WM_TIES_EVEN && k % 2 == 1))) - V{};
#if WM_SIMD == 512
    for (int i = 0; i < N; ++i) {
      const int16_t m = int16_t(FIRST + (i << STEP));
      codes_at[i] = codes_past[i] = 0;
      for (int k = 0; k < 7; ++k) codes_at[i] += m > past[k][0], codes_past[i] += m + 1 > past[k][0];
      values[i] = int16_t(i < 2 ? i * 0x3F00 : 0x3F00 + i * 64);
    }
#endif
  }

  // Whether they are for this call, where its blocks are whole groups.
  static bool fit(const QuantizeCall& q) {
    return q.family == WM_FLOAT && q.bits == 4 && q.scale == WM_SCALE_E8M0 && q.ties <= WM_TIES_AWAY &&
           q.sign != WM_MINUS && q.block_elems % GROUP == 0;
  }

  static V load(const Bf16* x) { return *reinterpret_cast<const InMemory*>(x); }

  static int16_t down(int32_t scale) { return int16_t((scale - 127) * 128); }

  // Codes of values under scales of these exponents.
  template <bool MEASURE>
  V operator()(V p, V down, Lanes& sums) const {
    const V magnitude = p & 0x7FFF;
    V stands_for;
    const V c = coded(magnitude, down, &stands_for);
    if (MEASURE) {
      const VI v = (VI)magnitude, d = (VI)stands_for;
      lost((VF)(v << 16), (VF)(d << 16), sums);
      lost((VF)(v & HIGH), (VF)(d & HIGH), sums);
    }
    V sign = (p >> 12) & 8;
    if (positive) sign &= c != 0;
    return c | sign;
  }

 private:
  static constexpr int32_t HIGH = int32_t(0xFFFF0000);

#if WM_SIMD == 512
  // All boundaries are whole steps from here, and from the last step on there is none: codes are looked up, of what is
  // at a step and of what is past it.
  static constexpr int16_t FIRST = 0x3E60, STEP = 5;
  V codes_at, codes_past, values;

  V coded(V magnitude, V down, V* stands_for) const {
    const __m512i m = _mm512_subs_epu16((__m512i)magnitude, (__m512i)(down + FIRST));
    const __m512i step = _mm512_min_epu16(_mm512_srli_epi16(m, STEP), _mm512_set1_epi16(N - 1));
    const __mmask32 at = _mm512_testn_epi16_mask(m, _mm512_set1_epi16((1 << STEP) - 1));
    const __m512i past = _mm512_permutexvar_epi16(step, (__m512i)codes_past);
    const __m512i c = _mm512_mask_permutexvar_epi16(past, at, step, (__m512i)codes_at);
    const __m512i value = _mm512_permutexvar_epi16(c, (__m512i)values);
    *stands_for = (V)_mm512_maskz_add_epi16(_mm512_test_epi16_mask(c, c), value, (__m512i)down);
    return (V)c;
  }
#else
  V coded(V magnitude, V down, V* stands_for) const {
    const V m = magnitude - down;
    V c{};
    for (int k = 0; k < 7; ++k) c -= m > past[k];
    // 0, 1/2, 1, and then two of a binade: patterns are 64 apart from 1 on.
    *stands_for = ((c << 6) + 0x3EC0 + ((m > past[1]) & 0x40) + down) & (m > past[0]);
    return c;
  }
#endif

  static VF and_square(VF sum, VF v) {
#if WM_SIMD == 512
    return (VF)_mm512_fmadd_ps((__m512)v, (__m512)v, (__m512)sum);
#else
    return sum + v * v;
#endif
  }

  static void lost(VF v, VF d, Lanes& sums) {
    const VF e = magnitude(v - d);
    sums.error = and_square(sums.error, e);
    sums.signal = and_square(sums.signal, v);
    sums.largest = most_of(e, sums.largest);
  }
};

// Codes of a strip of a row. lanes: sums of errors, or null. False where these are not the patterns for it.
template <typename T>
static bool code_by_patterns(const QuantizeCall&, const Blocks&, const T*, int64_t, int64_t, uint8_t*, Lanes*) {
  return false;
}
template <bool MEASURE>
static bool code_group_by_group(const QuantizeCall& q, const Blocks& b, const Bf16* x, int64_t first, int64_t count,
                                uint8_t* out, Lanes* lanes) {
  typedef Patterns P;
  const P coded(q);
  Lanes sums{};
  int64_t block = first / q.block_elems, left = (block + 1) * q.block_elems - first;
  for (int64_t i = 0; i < count; i += P::GROUP, left -= P::GROUP) {
    if (left == 0) ++block, left = q.block_elems;
    const int32_t scale = b.scale[block];
    if (scale < P::LEAST_SCALE) return false;
    const P::V down = P::down(scale) - P::V{};
    alignas(64) int16_t codes[P::GROUP];
    for (int k = 0; k < P::GROUP; k += P::N)
      *reinterpret_cast<P::InMemory*>(codes + k) = coded.operator()<MEASURE>(P::load(x + i + k), down, sums);
    const InMemory32* pair = reinterpret_cast<const InMemory32*>(codes);
    for (int k = 0; k < P::GROUP / 2; ++k) out[i / 2 + k] = uint8_t(pair[k] | (pair[k] >> 12));
  }
  if (MEASURE) *lanes = sums;
  return true;
}
static bool code_by_patterns(const QuantizeCall& q, const Blocks& b, const Bf16* x, int64_t first, int64_t count,
                             uint8_t* out, Lanes* lanes) {
  if (!Patterns::fit(q) || b.poisoned || first % Patterns::GROUP != 0 || count % Patterns::GROUP != 0) return false;
  return lanes != nullptr ? code_group_by_group<true>(q, b, x, first, count, out, lanes)
                          : code_group_by_group<false>(q, b, x, first, count, out, lanes);
}

// Blocks of UPRIGHT rows at once, of a matrix whose rows are neighbours in memory: a register has a column of as many
// rows, so that each of its lanes goes through a block from value to value. Nothing is turned but codes.
constexpr int64_t UPRIGHT = 64;

template <typename T>
static bool upright(const QuantizeCall&, const T*) {
  return false;
}
static bool upright(const QuantizeCall& q, const Bf16*) {
  return Patterns::fit(q) && q.row_stride == 1 && q.col_stride != 1 && q.rows >= UPRIGHT && q.block_rows == 1 &&
         q.options == 0 && q.shares == nullptr && q.low == nullptr && q.codes_stride % 2 == 0;
}

// Rows [r, r + UPRIGHT) of the block at column c. False, and nothing added to `sums`, where it has to be done otherwise.
template <typename T>
static bool code_upright(QuantizeCall&, Blocks&, const T*, int64_t, int64_t, Sums*) {
  return false;
}
template <bool MEASURE>
static bool code_block_upright(QuantizeCall& q, Blocks& b, const Bf16* x, int64_t r, int64_t c, Sums* sums) {
  typedef Patterns P;
  constexpr int PARTS = int(UPRIGHT) / P::N;
  constexpr int64_t AHEAD = 128;  // columns
  const int64_t width = q.block_elems, stride = q.col_stride;
  // Columns lie pages apart, which no processor foresees: those some blocks further, or of the next rows.
  const bool wraps = c + AHEAD >= q.n;
  const int64_t further = wraps ? r + UPRIGHT : r, first = wraps ? c + AHEAD - q.n : c + AHEAD;
  const int64_t fetched = further >= q.rows || first >= q.n ? 0 : width < q.n - first ? width : q.n - first;
  const Bf16* const from = static_cast<const Bf16*>(q.x) + further + first * stride;
  P::V largest[PARTS] = {};
  for (int64_t k = 0; k < width; ++k) {
    if (k < fetched) {
      __builtin_prefetch(from + k * stride, 0, 2);
      __builtin_prefetch(from + k * stride + UPRIGHT / 2, 0, 2);
      __builtin_prefetch(from + k * stride + UPRIGHT - 1, 0, 2);
    }
    for (int p = 0; p < PARTS; ++p) {
      const P::V m = P::load(x + k * stride + p * P::N) & 0x7FFF;
      largest[p] = m > largest[p] ? m : largest[p];
    }
  }
  alignas(64) int16_t by_row[UPRIGHT];
  std::memcpy(by_row, largest, sizeof by_row);
  int32_t* const high = reinterpret_cast<int32_t*>(b.high);
  for (int64_t i = 0; i < UPRIGHT; ++i) high[i] = int32_t(by_row[i]) << 16;
  if (share(q, b, UPRIGHT) != WM_DONE || b.poisoned) return false;
  int32_t least = P::LEAST_SCALE;
  for (int64_t i = 0; i < UPRIGHT; ++i) least = b.scale[i] < least ? b.scale[i] : least;
  if (least < P::LEAST_SCALE) return false;
  P::V down[PARTS];
  for (int64_t i = 0; i < UPRIGHT; ++i) by_row[i] = P::down(b.scale[i]);
  std::memcpy(down, by_row, sizeof by_row);
  const P coded(q);
  Sums own;
  for (int64_t k = 0; k < width; k += P::GROUP) {
    Lanes lanes{};
    alignas(64) uint16_t words[P::GROUP / 4][UPRIGHT];  // four columns' codes
    for (int64_t w = 0; w < P::GROUP / 4; ++w)
      for (int p = 0; p < PARTS; ++p) {
        const Bf16* const at = x + (k + 4 * w) * stride + p * P::N;
        P::V word{};
        for (int j = 0; j < 4; ++j) word |= coded.operator()<MEASURE>(P::load(at + j * stride), down[p], lanes) << (4 * j);
        std::memcpy(&words[w][p * P::N], &word, sizeof word);
      }
    uint8_t* const out = q.codes + r * q.codes_stride + (c + k) / 2;
    for (int64_t i = 0; i < UPRIGHT; i += 8)
      turn_piece(words[0] + i, UPRIGHT, reinterpret_cast<uint16_t*>(out + i * q.codes_stride), q.codes_stride / 2);
    if (MEASURE && !add_up(lanes, own)) return false;
  }
  if (MEASURE) {
    sums->count += double(UPRIGHT * width);
    sums->error += own.error, sums->signal += own.signal;
    sums->largest = own.largest > sums->largest ? own.largest : sums->largest;
  }
  const int64_t blocks = (q.n + width - 1) / width;
  uint8_t* const scales = static_cast<uint8_t*>(q.scales) + r * blocks + c / width;
  for (int64_t i = 0; i < UPRIGHT; ++i) scales[i * blocks] = uint8_t(b.scale[i]);
  return true;
}
static bool code_upright(QuantizeCall& q, Blocks& b, const Bf16* x, int64_t r, int64_t c, Sums* sums) {
  if (c + q.block_elems > q.n) return false;
  return sums != nullptr ? code_block_upright<true>(q, b, x, r, c, sums)
                         : code_block_upright<false>(q, b, x, r, c, sums);
}
