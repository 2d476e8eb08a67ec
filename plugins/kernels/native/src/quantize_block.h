// quantize for every block format, strip by strip: extremes of blocks, what each block shares, codes, sums of errors.
//
// A strip is a part of a row. It becomes float32 once and everything happens on it in L1 cache, in short passes that
// know nothing of each other: a format is a choice of passes and of numbers, not code of its own. Of the storage type
// only the extremes and the widening know. A region is the least piece that holds its blocks whole: a strip of a row,
// or a band of rows, or the matrix; one that is no single tile is read twice.
//
// All arithmetic is float32, one rounding an operation, in the order of plugins/kernels/quantize/reference. Included
// once for each instruction set (each_isa.h).
#include "codes.h"
#include "extremes.h"
#include "block_scales.h"
#include "turn.h"

struct alignas(64) Strip {
  float v[STRIP + SLACK], y[STRIP + SLACK];
  // Of each value what its block has, where blocks are no whole registers.
  float divisor[STRIP + SLACK], total[STRIP + SLACK], point[STRIP + SLACK], minimum[STRIP + SLACK],
      stored_minimum[STRIP + SLACK];
  uint8_t code[STRIP + SLACK];
};

struct Sums {
  double count = 0, largest = 0, error = 0, signal = 0;
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

struct Lanes {
  VF error, signal, largest;
};

// What blocks share, for a register of their values: of blocks of 2^shift values, and of any that were spread.
struct OfBlock {
  int64_t first;
  int shift;
  VF operator()(const float* shared, int64_t i) const { return full(shared[(first + i) >> shift]); }
};
struct OfEach {
  VF operator()(const float* shared, int64_t i) const { return load(shared + i); }
};

// Codes of a strip into s.code. lanes: sums of errors, or null; y: for what codes stand for, or null.
template <bool MULTIPLY, typename E, typename Of>
static inline void code_as(const QuantizeCall& q, const Blocks& b, Strip& s, const Of of, int64_t count, Lanes* lanes,
                           float* y) {
  const E element(q);
  const bool minimum = q.zero == WM_ZERO_MIN_F16, pointed = q.zero == WM_ZERO_INT, power = q.scale == WM_SCALE_E8M0;
  const bool minus = q.sign == WM_MINUS, inverse = q.reciprocal != 0;
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
    if (lanes == nullptr) continue;
    if (pointed) d = (d - half) - point;
    d = d * of(b.total, i);
    if (minimum) d = d + of(b.stored_minimum, i);
    if (y != nullptr) store(y + i, d);
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
  if (lanes != nullptr) *lanes = sums;
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
  if (shift >= 0) return code_as<MULTIPLY, E>(q, b, s, OfBlock{first, shift}, count, lanes, y);
  Blocks each = b;
  each.divisor = s.divisor, each.total = s.total, each.point = s.point, each.minimum = s.minimum,
  each.stored_minimum = s.stored_minimum;
  code_as<MULTIPLY, E>(q, each, s, OfEach{}, count, lanes, y);
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

// Squares are summed in float32 over a strip, and strips in float64. False where that will not do: values near the ends
// of float32's range, or nothing but zeros.
static bool add_up(const Lanes& lanes, Sums& sums) {
  double signal = 0, error = 0;
  float worst = 0;
  for (int l = 0; l < LANES; ++l) {
    signal += lanes.signal[l];
    error += lanes.error[l];
    worst = lanes.largest[l] > worst ? lanes.largest[l] : worst;
  }
  if (!(signal > 0x1p-80 && signal < 0x1p90 && error < 0x1p90 && (worst == 0 ? error == 0 : worst > 0x1p-40f)))
    return false;
  sums.error += error;
  sums.signal += signal;
  if (worst > sums.largest) sums.largest = worst;
  return true;
}

// The same, all in float64; NaN stays.
static void add_up_carefully(const Strip& s, int64_t count, Sums& sums) {
  for (int64_t i = 0; i < count; ++i) {
    const double e = std::fabs(double(s.v[i] - s.y[i])), v = s.v[i];
    sums.error += e * e;
    sums.signal += v * v;
    if (e > sums.largest || e != e) sums.largest = e;
  }
}

// Bfloat16 to E2M1 under powers of two: patterns are ordered like magnitudes, dividing subtracts from the exponent, and a
// code is the number of boundaries that are passed. Half the registers of float32, for what is converted most. False
// where this does not hold: other types and rules, and scales so small that patterns are not linear under them.
template <typename T>
static bool code_by_patterns(const QuantizeCall&, const Blocks&, const T*, int64_t, int64_t, uint8_t*) {
  return false;
}
static bool code_by_patterns(const QuantizeCall& q, const Blocks& b, const Bf16* x, int64_t first, int64_t count,
                             uint8_t* out) {
  const bool e2m1 = q.family == WM_FLOAT && q.bits == 4 && q.scale == WM_SCALE_E8M0;
  if (!e2m1 || q.ties > WM_TIES_AWAY || q.sign == WM_MINUS || b.poisoned) return false;
  if (q.block_elems % 32 != 0 || first % 32 != 0 || count % 32 != 0) return false;
  typedef Register<int16_t, WIDTH> R;
  constexpr int N = WIDTH / 2;
  constexpr int16_t BOUNDARIES[] = {0x3E80, 0x3F40, 0x3FA0, 0x3FE0, 0x4020, 0x4060, 0x40A0};  // 1/4 3/4 5/4 7/4 5/2 7/2 5
  R::V past[7];  // what is larger has passed
  for (int k = 0; k < 7; ++k)
    past[k] = int16_t(BOUNDARIES[k] - (q.ties == WM_TIES_AWAY || (q.ties == WM_TIES_EVEN && k % 2 == 1))) - R::V{};
  for (int64_t i = 0; i < count; i += 32) {
    const int byte = b.scale[(first + i) / q.block_elems];
    if (byte < 3) return false;
    const int16_t down = int16_t((byte - 127) * 128);
    alignas(64) int16_t codes[32];
    for (int k = 0; k < 32; k += N) {
      const R::V p = *reinterpret_cast<const R::InMemory*>(x + i + k), m = (p & 0x7FFF) - down;
      R::V c{};
      for (int t = 0; t < 7; ++t) c -= m > past[t];
      R::V sign = (p >> 12) & 8;
      if (q.sign == WM_POSITIVE) sign &= c != 0;
      *reinterpret_cast<R::InMemory*>(codes + k) = c | sign;
    }
    const InMemory32* pair = reinterpret_cast<const InMemory32*>(codes);
    for (int k = 0; k < 16; ++k) out[i / 2 + k] = uint8_t(pair[k] | (pair[k] >> 12));
  }
  return true;
}

// One strip of one row, in columns [first, first + count) of its band.
template <typename T>
static void strip(const QuantizeCall& q, const Blocks& b, Strip& s, const T* x, int64_t first, int64_t count,
                  bool same, uint8_t* out, Sums* sums) {
  const int64_t width = q.block_elems;
  if (sums == nullptr && code_by_patterns(q, b, x, first, count, out)) return;
  widen(x, count, s.v);
  if (!same && shift_of(q) < 0) {
    spread(b.divisor, width, first, count, s.divisor);
    spread(b.total, width, first, count, s.total);
    if (q.zero == WM_ZERO_INT) spread(b.point, width, first, count, s.point);
    if (q.zero == WM_ZERO_MIN_F16) {
      spread(b.minimum, width, first, count, s.minimum);
      spread(b.stored_minimum, width, first, count, s.stored_minimum);
    }
  }
  int64_t without = 0;  // values of poisoned blocks: codes 0, and nothing is lost
  const auto poisoned = [&](int64_t i) { return b.scale[(first + i) / width] == nan_of(q.scale); };
  for (int64_t i = 0; b.poisoned && i < count; ++i)
    if (poisoned(i)) s.v[i] = 0, ++without;
  Lanes lanes{};
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

// One call: the matrix, region by region.
template <typename T>
struct Coder {
  QuantizeCall& q;
  const Region region;
  Blocks b;
  Strip& s;
  T* tile;  // [TALL_ROWS][TALL_STRIP], or one strip
  Sums* sums;

  const T* at(int64_t r, int64_t c) const { return static_cast<const T*>(q.x) + r * q.row_stride + c * q.col_stride; }

  // Rows [r, r + rows) of columns [c, c + cols), the elements of a row side by side.
  const T* loaded(int64_t r, int64_t rows, int64_t c, int64_t cols, int64_t* stride) {
    *stride = q.row_stride;
    if (q.col_stride == 1) return at(r, c);
    typedef typename Pattern<T>::U U;
    *stride = TALL_STRIP;
    if (region.tall) {
      turn(reinterpret_cast<const U*>(at(r, c)), q.col_stride, rows, cols, reinterpret_cast<U*>(tile));
    } else {
      const T* x = at(r, c);
      for (int64_t k = 0; k < cols; ++k) tile[k] = x[k * q.col_stride];
    }
    return tile;
  }

  // Extends the extremes of the blocks of a band, as keys, by columns [first, first + count) of one of its rows.
  // WIDE: the blocks' width where the compiler is to know it, else 0.
  template <bool BOTH, int WIDE>
  void extend(const T* x, int64_t first, int64_t count, int32_t* low, int32_t* high) {
    const int64_t width = WIDE ? WIDE : q.block_elems;
    if (width == 1) {
      for (int64_t i = 0; i < count; ++i) {
        const int32_t k = BOTH ? key_of(x[i]) : key_of(x[i]) ^ (key_of(x[i]) >> 31);
        if (BOTH) low[first + i] = k < low[first + i] ? k : low[first + i];
        high[first + i] = k > high[first + i] ? k : high[first + i];
      }
      return;
    }
    int64_t block = first / width, left = (block + 1) * width - first;
    if (WIDE && left == WIDE) {
      for (; count >= WIDE; count -= WIDE, x += WIDE, ++block) {
        const auto e = ends_of<BOTH>(x, WIDE);
        high[block] = e.high > high[block] ? e.high : high[block];
        if (BOTH) low[block] = e.low < low[block] ? e.low : low[block];
      }
    }
    for (int64_t i = 0; i < count; i += left, left = width, ++block) {
      const auto e = ends_of<BOTH>(x + i, left < count - i ? left : count - i);
      high[block] = e.high > high[block] ? e.high : high[block];
      if (BOTH) low[block] = e.low < low[block] ? e.low : low[block];
    }
  }

  // The first value of a block with this magnitude.
  float first_of(float magnitude, int64_t r, int64_t r_end, int64_t c) const {
    const int64_t c_end = c + q.block_elems < q.n ? c + q.block_elems : q.n;
    for (; r < r_end; ++r)
      for (int64_t k = c; k < c_end; ++k)
        if (std::fabs(widened(*at(r, k))) == magnitude) return widened(*at(r, k));
    return magnitude;
  }

  template <typename F>
  void each_strip(int64_t r0, int64_t r1, int64_t c0, int64_t c1, const F& of) {
    const int64_t height = region.tall ? TALL_ROWS : 1, wide = region.tall ? TALL_STRIP : STRIP;
    const bool stays = q.col_stride != 1 && r1 - r0 <= height && c1 - c0 <= wide && resident == tile;
    for (int64_t r = r0; r < r1; r += height) {
      const int64_t rows = height < r1 - r ? height : r1 - r;
      for (int64_t c = c0; c < c1; c += wide) {
        const int64_t cols = wide < c1 - c ? wide : c1 - c;
        int64_t stride = TALL_STRIP;
        const T* x = stays ? tile : loaded(r, rows, c, cols, &stride);
        resident = x;
        for (int64_t k = 0; k < rows; ++k) of(x + k * stride, r + k, c - c0, cols);
      }
    }
  }
  const T* resident = nullptr;

  // The extremes of the blocks of a region: b.low and b.high.
  void find_ends(int64_t r0, int64_t r1, int64_t c0, int64_t c1, int64_t count, int64_t across) {
    const int64_t band = q.block_rows;
    const bool both = q.ends != WM_ENDS_AMAX;
    if (q.low != nullptr) {
      for (int64_t i = 0; i < count; ++i) {
        const float low = q.low[r0 / band + i], high = q.high[r0 / band + i];
        b.low[i] = low;
        const int32_t below = key_of(std::fabs(low)), above = key_of(std::fabs(high));
        b.high[i] = both ? high : value_of<float>(below > above ? below : above);
      }
      return;
    }
    int32_t* low = reinterpret_cast<int32_t*>(b.low);
    int32_t* high = reinterpret_cast<int32_t*>(b.high);
    for (int64_t i = 0; i < count; ++i) low[i] = INT32_MAX, high[i] = both ? INT32_MIN : 0;
    each_strip(r0, r1, c0, c1, [&](const T* x, int64_t r, int64_t first, int64_t cols) {
      const int64_t at = (r - r0) / band * across;
      const int64_t width = q.block_elems;
      const auto with = width == 32   ? (both ? &Coder::extend<true, 32> : &Coder::extend<false, 32>)
                         : width == 16 ? (both ? &Coder::extend<true, 16> : &Coder::extend<false, 16>)
                                       : (both ? &Coder::extend<true, 0> : &Coder::extend<false, 0>);
      (this->*with)(x, first, cols, low + at, high + at);
    });
    for (int64_t i = 0; i < count; ++i) b.high[i] = value_of<T>(high[i]);
    if (!both) return;
    for (int64_t i = 0; i < count; ++i) b.low[i] = value_of<T>(low[i]);
    for (int64_t i = 0; i < count; ++i) {
      const float l = b.low[i], h = b.high[i];
      if (q.ends == WM_ENDS_FIRST && h < -l) b.high[i] = l;
      if (!(q.ends == WM_ENDS_FIRST ? h == -l : q.zero == WM_ZERO_MIN_F16 && l == 0)) continue;
      const int64_t r = r0 + i / across * band, end = r + band < q.rows ? r + band : q.rows;
      const float first = first_of(std::fabs(l), r, end, c0 + i % across * q.block_elems);
      (q.ends == WM_ENDS_FIRST ? b.high : b.low)[i] = first;
    }
  }

  WmFound one(int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const int64_t band = q.block_rows, width = q.block_elems;
    const int64_t across = (c1 - c0 + width - 1) / width, down = (r1 - r0 + band - 1) / band;
    const int64_t row_of_scales = (q.n + width - 1) / width;
    resident = nullptr;
    find_ends(r0, r1, c0, c1, down * across, across);
    if (const WmFound found = share(q, b, down * across)) return found;
    for (int64_t d = 0; d < down; ++d)
      keep(q, b.from(d * across), across, (r0 / band + d) * row_of_scales + c0 / width);
    int64_t last_band = -1, last_first = -1, last_count = -1;
    each_strip(r0, r1, c0, c1, [&](const T* x, int64_t r, int64_t first, int64_t cols) {
      const int64_t d = (r - r0) / band;
      const bool same = d == last_band && first == last_first && cols == last_count;
      last_band = d, last_first = first, last_count = cols;
      strip(q, b.from(d * across), s, x, first, cols, same, q.codes + r * q.codes_stride + (c0 + first) * q.bits / 8,
            sums);
    });
    return WM_DONE;
  }

  WmFound all() {
    for (int64_t r = 0; r < q.rows; r += region.rows)
      for (int64_t c = 0; c < q.n; c += region.cols)
        if (const WmFound found = one(r, r + region.rows < q.rows ? r + region.rows : q.rows, c,
                                      c + region.cols < q.n ? c + region.cols : q.n))
          return found;
    return WM_DONE;
  }
};

template <typename T>
static WmFound quantize_as(QuantizeCall& q, const Region& region, char* scratch, Sums* sums) {
  Strip& s = *reinterpret_cast<Strip*>(scratch);
  scratch += sizeof(Strip);
  T* tile = reinterpret_cast<T*>(scratch);
  scratch += TALL_ROWS * TALL_STRIP * 4;
  float* shared[BLOCK_ARRAYS];
  for (float*& array : shared) array = reinterpret_cast<float*>(scratch), scratch += (region.blocks + SLACK) * 4;
  const Blocks b{shared[0], shared[1], shared[2], shared[3], shared[4], shared[5], shared[6],
                 reinterpret_cast<int32_t*>(shared[7]), reinterpret_cast<int32_t*>(shared[8]), false};
  Coder<T> coder{q, region, b, s, tile, sums};
  return coder.all();
}

static WmFound quantize(QuantizeCall& q, const Region& region, char* scratch) {
  Sums sums;
  Sums* to = q.stats != nullptr ? &sums : nullptr;
  const WmFound found = q.dtype == 0   ? quantize_as<Bf16>(q, region, scratch, to)
                        : q.dtype == 1 ? quantize_as<F16>(q, region, scratch, to)
                                       : quantize_as<float>(q, region, scratch, to);
  if (to == nullptr) return found;
  q.stats[0] += sums.count;
  if (sums.largest > q.stats[1] || sums.largest != sums.largest) q.stats[1] = sums.largest;
  q.stats[2] += sums.error;
  q.stats[3] += sums.signal;
  return found;
}

// (low, high) of a whole matrix, NaN where there is one.
template <typename T>
static void extremes_as(const QuantizeCall& q, const Region& region, char* scratch, float* low, float* high) {
  Coder<T> coder{const_cast<QuantizeCall&>(q), region, Blocks{}, *reinterpret_cast<Strip*>(scratch),
                 reinterpret_cast<T*>(scratch + sizeof(Strip)), nullptr};
  int32_t l = INT32_MAX, h = INT32_MIN;
  coder.each_strip(0, q.rows, 0, q.n, [&](const T* x, int64_t, int64_t, int64_t count) {
    const Ends<typename Pattern<T>::I> e = ends_of<true>(x, count);
    l = e.low < l ? e.low : l;
    h = e.high > h ? e.high : h;
  });
  *low = value_of<T>(l), *high = value_of<T>(h);
}

static void extremes(const QuantizeCall& q, const Region& region, char* scratch, float* low, float* high) {
  q.dtype == 0   ? extremes_as<Bf16>(q, region, scratch, low, high)
  : q.dtype == 1 ? extremes_as<F16>(q, region, scratch, low, high)
                 : extremes_as<float>(q, region, scratch, low, high);
}
