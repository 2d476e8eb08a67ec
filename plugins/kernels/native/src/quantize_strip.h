// Codes and sums of errors of a strip, a part of a row. It becomes float32 once and everything happens on it in L1
// cache, in short passes that know nothing of each other: a format is a choice of passes and of numbers, not code of its
// own. Of the storage type only the widening knows. Included once for each instruction set, after codes.h, extremes.h,
// block_scales.h and quantize_patterns.h.

struct alignas(64) Strip {
  float v[STRIP + SLACK], y[STRIP + SLACK];
  // Of each value what its block has, where blocks are no whole registers.
  float divisor[STRIP + SLACK], total[STRIP + SLACK], point[STRIP + SLACK], minimum[STRIP + SLACK],
      stored_minimum[STRIP + SLACK];
  uint8_t code[STRIP + SLACK];
  bool spread;  // whether that is of the strip which is worked on
};

template <typename T>
static inline void widen(const T* __restrict x, int64_t count, float* __restrict v) {
  for (int64_t i = 0; i < count; ++i) v[i] = widened(x[i]);
}

// Columns [first, first + count) of a band, of blocks `width` wide: what their block has, for each.
static void spread(const float* shared, int64_t width, int64_t first, int64_t count, float* out) {
  int64_t block = first / width, left = (block + 1) * width - first;
  for (int64_t i = 0; i < count; i += left, left = width, ++block) {
    const VF v = full(shared[block]);
    const int64_t end = i + left < count ? i + left : count;
    for (int64_t k = i; k < end; k += LANES) store(out + k, v);  // the next block goes over what is too much
  }
}

// What blocks share, for a register of their values: of blocks of 2^shift values, and of any that were spread.
struct OfBlock {
  int64_t first;
  int shift;
  VF operator()(const float* shared, int64_t i) const { return full(shared[(first + i) >> shift]); }
};
struct OfEach {
  VF operator()(const float* shared, int64_t i) const { return load(shared + i); }
};

// Codes of a strip into s.code. PLAIN: no zero points, minima or -0 of its own. lanes: sums of errors, or null; y: for
// what codes stand for, or null.
template <bool MULTIPLY, bool PLAIN, bool MEASURE, typename E, typename Of>
static inline void code_as(const QuantizeCall& q, const Blocks& b, Strip& s, const Of of, int64_t count, Lanes* lanes,
                           float* y) {
  const E element(q);
  const bool minimum = !PLAIN && q.zero == WM_ZERO_MIN_F16, pointed = !PLAIN && q.zero == WM_ZERO_INT;
  const bool minus = !PLAIN && q.sign == WM_MINUS, inverse = MULTIPLY && q.reciprocal != 0;
  const bool power = q.scale == WM_SCALE_E8M0;
  const float half = float(1 << (q.bits - 1));
  Lanes sums{};
  for (int64_t i = 0; i < count; i += LANES) {
    VF v = load(s.v + i), u = v, point{};
    VI zero{};
    if (minimum) u = u - of(b.minimum, i);
    u = MULTIPLY ? u * of(b.divisor, i) : u / of(b.divisor, i);
    if (inverse) u = (VF)((VI)u & (VI)(u == u));  // 0 · inf, of a scale near nothing
    if (minus) zero = (VI)((power ? v : u) == 0);  // divided by a power of two nothing becomes 0, but for float32
    if (pointed) point = of(b.point, i);
    VI code;
    VF d = element(u, zero, point, &code);
    store_bytes(s.code + i, code);
    if (!MEASURE) continue;
    if (pointed) d = (d - half) - point;
    d = d * of(b.total, i);
    if (minimum) d = d + of(b.stored_minimum, i);
    if (!PLAIN && y != nullptr) store(y + i, d);
    VF e = magnitude(v - d);
    if (i + LANES > count) {
      VI there;
      for (int l = 0; l < LANES; ++l) there[l] = -(i + l < count);
      e = (VF)((VI)e & there), v = (VF)((VI)v & there);
    }
    sums.error += e * e;
    sums.signal += v * v;
    sums.largest = most_of(e, sums.largest);
  }
  if (MEASURE) *lanes = sums;
}

// log2 of the blocks' width where registers do not cross their borders, 63 where a row is one; else -1.
static inline int shift_of(const QuantizeCall& q) {
  const int64_t width = q.block_elems;
  if (width >= q.n) return 63;
  return width % LANES == 0 && (width & (width - 1)) == 0 ? __builtin_ctzll(uint64_t(width)) : -1;
}

// The same of columns [first, first + count) of a band.
template <bool MULTIPLY, typename E>
static void code_strip(const QuantizeCall& q, const Blocks& b, Strip& s, int64_t first, int64_t count, Lanes* lanes,
                       float* y) {
  const int shift = shift_of(q);
  if (shift >= 0) {
    const OfBlock of{first, shift};
    const bool plain = q.zero == WM_ZERO_NONE && q.sign != WM_MINUS && y == nullptr;
    if (plain && lanes == nullptr) return code_as<MULTIPLY, true, false, E>(q, b, s, of, count, lanes, y);
    if (plain) return code_as<MULTIPLY, true, true, E>(q, b, s, of, count, lanes, y);
    if (lanes == nullptr) return code_as<MULTIPLY, false, false, E>(q, b, s, of, count, lanes, y);
    return code_as<MULTIPLY, false, true, E>(q, b, s, of, count, lanes, y);
  }
  Blocks each = b;
  each.divisor = s.divisor, each.total = s.total, each.point = s.point, each.minimum = s.minimum,
  each.stored_minimum = s.stored_minimum;
  if (lanes == nullptr) return code_as<MULTIPLY, false, false, E>(q, each, s, OfEach{}, count, lanes, y);
  code_as<MULTIPLY, false, true, E>(q, each, s, OfEach{}, count, lanes, y);
}

static void code_any(const QuantizeCall& q, const Blocks& b, Strip& s, int64_t first, int64_t count, Lanes* lanes,
                     float* y) {
  const bool multiply = q.scale == WM_SCALE_E8M0 || q.reciprocal, even = q.ties == WM_TIES_EVEN;
  auto* const with = q.family == WM_TABLE ? (multiply ? code_strip<true, Table> : code_strip<false, Table>)
                     : q.family == WM_FLOAT
                         ? (even ? (multiply ? code_strip<true, Floats<true>> : code_strip<false, Floats<true>>)
                                 : (multiply ? code_strip<true, Floats<false>> : code_strip<false, Floats<false>>))
                         : (even ? (multiply ? code_strip<true, Integers<true>> : code_strip<false, Integers<true>>)
                                 : (multiply ? code_strip<true, Integers<false>> : code_strip<false, Integers<false>>));
  with(q, b, s, first, count, lanes, y);
}

// Sums of errors of a strip, all in float64; NaN stays.
static void add_up_carefully(const Strip& s, int64_t count, Sums& sums) {
  for (int64_t i = 0; i < count; ++i) {
    const double e = std::fabs(double(s.v[i] - s.y[i])), v = s.v[i];
    sums.error += e * e;
    sums.signal += v * v;
    if (e > sums.largest || e != e) sums.largest = e;
  }
}

// Has for each of a strip's values what its block has, where `code_any` needs that.
static void spread_all(const QuantizeCall& q, const Blocks& b, Strip& s, int64_t first, int64_t count) {
  const int64_t width = q.block_elems;
  if (shift_of(q) >= 0) return;
  spread(b.divisor, width, first, count, s.divisor);
  spread(b.total, width, first, count, s.total);
  if (q.zero == WM_ZERO_INT) spread(b.point, width, first, count, s.point);
  if (q.zero == WM_ZERO_MIN_F16) {
    spread(b.minimum, width, first, count, s.minimum);
    spread(b.stored_minimum, width, first, count, s.stored_minimum);
  }
}

// One strip of one row, in columns [first, first + count) of its band.
template <typename T>
static void strip(const QuantizeCall& q, const Blocks& b, Strip& s, const T* x, int64_t first, int64_t count,
                  bool same, uint8_t* out, Sums* sums) {
  const int64_t width = q.block_elems;
  Lanes lanes{};
  if (!same) s.spread = false;
  if (code_by_patterns(q, b, x, first, count, out, sums != nullptr ? &lanes : nullptr) &&
      (sums == nullptr || add_up(lanes, *sums))) {
    if (sums != nullptr) sums->count += double(count);
    return;
  }
  widen(x, count, s.v);
  if (!s.spread) spread_all(q, b, s, first, count), s.spread = true;
  int64_t without = 0;  // values of poisoned blocks: codes 0, and nothing is lost
  const auto poisoned = [&](int64_t i) { return b.scale[(first + i) / width] == nan_of(q.scale); };
  for (int64_t i = 0; b.poisoned && i < count; ++i)
    if (poisoned(i)) s.v[i] = 0, ++without;
  code_any(q, b, s, first, count, sums != nullptr ? &lanes : nullptr, nullptr);
  if (sums != nullptr) {
    sums->count += double(count - without);
    if (!add_up(lanes, *sums)) {
      code_any(q, b, s, first, count, &lanes, s.y);
      add_up_carefully(s, count, *sums);
    }
  }
  for (int64_t i = 0; without != 0 && i < count; ++i)
    if (poisoned(i)) s.code[i] = 0;
  pack(s.code, count, q.bits, out);
}
