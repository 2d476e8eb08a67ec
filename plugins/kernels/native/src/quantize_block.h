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

constexpr int32_t INFINITE = 0x7F800000;

struct alignas(64) Strip {
  float v[STRIP + SLACK], y[STRIP + SLACK];
  // Of each value what its block has, where blocks are no whole registers.
  float divisor[STRIP + SLACK], total[STRIP + SLACK], point[STRIP + SLACK], minimum[STRIP + SLACK],
      stored_minimum[STRIP + SLACK];
  uint8_t code[STRIP + SLACK];
};

// What the blocks of a region share, in arrays of `count` rounded up to a register.
struct Blocks {
  float *low, *high;  // extremes, or for WM_ENDS_AMAX the largest magnitude in `high`
  float *divisor, *total, *point, *minimum, *stored_minimum;
  int32_t *scale, *zero;  // as stored
  bool poisoned;

  Blocks from(int64_t k) const {
    return {low + k, high + k, divisor + k, total + k, point + k, minimum + k, stored_minimum + k, scale + k, zero + k,
            poisoned};
  }
};

struct Sums {
  double count = 0, largest = 0, error = 0, signal = 0;
};

// Storage types as integers in the order of their values (two's complement of what lies below -0), NaN at both ends.
template <typename T>
struct Pattern;
template <>
struct Pattern<Bf16> {
  typedef int16_t I;
  typedef uint16_t U __attribute__((may_alias));
};
template <>
struct Pattern<F16> {
  typedef int16_t I;
  typedef uint16_t U __attribute__((may_alias));
};
template <>
struct Pattern<float> {
  typedef int32_t I;
  typedef uint32_t U __attribute__((may_alias));
};

template <typename I, int BYTES>
struct Register;
#define WM_REGISTER(I, BYTES)                                                  \
  template <>                                                                  \
  struct Register<I, BYTES> {                                                  \
    typedef I V __attribute__((vector_size(BYTES)));                           \
    typedef I InMemory __attribute__((vector_size(BYTES), aligned(sizeof(I)), may_alias)); \
  };
WM_REGISTER(int16_t, 16)
WM_REGISTER(int32_t, 16)
#if WM_SIMD
WM_REGISTER(int16_t, WIDTH)
WM_REGISTER(int32_t, WIDTH)
#endif
#undef WM_REGISTER

template <typename I>
struct Ends {
  I low, high;
};

template <bool BOTH, typename I, int BYTES>
static inline void extend(const void* x, typename Register<I, BYTES>::V& low, typename Register<I, BYTES>::V& high) {
  typename Register<I, BYTES>::V k = *static_cast<const typename Register<I, BYTES>::InMemory*>(x);
  constexpr I most = I(~(I(1) << (8 * sizeof(I) - 1)));
  if (!BOTH) {
    k &= most;
  } else {
    k ^= (k >> (8 * int(sizeof(I)) - 1)) & most;
    low = k < low ? k : low;
  }
  high = k > high ? k : high;
}

// The greatest of a register of 16 bytes.
static inline int16_t greatest(Register<int16_t, 16>::V v) {
#if WM_SIMD
  const __m128i n = _mm_xor_si128((__m128i)v, _mm_set1_epi16(0x7FFF));  // in the opposite order, unsigned
  return int16_t(_mm_cvtsi128_si32(_mm_minpos_epu16(n)) ^ 0x7FFF);
#else
  int16_t m = v[0];
  for (int l = 1; l < 8; ++l) m = v[l] > m ? v[l] : m;
  return m;
#endif
}
static inline int32_t greatest(Register<int32_t, 16>::V v) {
  const int32_t a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}

// Of `count` neighbours; without BOTH their largest magnitude is `high`.
template <bool BOTH, typename T>
static inline Ends<typename Pattern<T>::I> ends_of(const T* x, int64_t count) {
  typedef typename Pattern<T>::I I;
  typedef typename Register<I, 16>::V Q;
  constexpr int NQ = 16 / int(sizeof(I));
  constexpr I most = I(~(I(1) << (8 * sizeof(I) - 1)));
  Q low = Q{} + most, high = ~low;
  int64_t i = 0;
#if WM_SIMD
  typedef typename Register<I, WIDTH>::V V;
  constexpr int N = WIDTH / int(sizeof(I));
  if (count >= N) {
    V lows = V{} + most, highs = ~lows;
    for (; i + N <= count; i += N) extend<BOTH, I, WIDTH>(x + i, lows, highs);
    Q low_parts[WIDTH / 16], high_parts[WIDTH / 16];
    std::memcpy(low_parts, &lows, WIDTH);
    std::memcpy(high_parts, &highs, WIDTH);
    for (int k = 0; k < WIDTH / 16; ++k) {
      low = low_parts[k] < low ? low_parts[k] : low;
      high = high_parts[k] > high ? high_parts[k] : high;
    }
  }
#endif
  for (; i + NQ <= count; i += NQ) extend<BOTH, I, 16>(x + i, low, high);
  I least = BOTH ? I(~greatest(~low)) : I(0), greatest_of = greatest(high);
  for (; i < count; ++i) {
    I k;
    std::memcpy(&k, x + i, sizeof k);
    k = BOTH ? I(k ^ ((k >> (8 * sizeof(I) - 1)) & most)) : I(k & most);
    least = k < least ? k : least;
    greatest_of = k > greatest_of ? k : greatest_of;
  }
  return {least, greatest_of};
}

template <typename T>
static inline int32_t key_of(T v) {
  typename Pattern<T>::I b;
  std::memcpy(&b, &v, sizeof b);
  return int32_t(b) ^ ((int32_t(b) >> 31) & int32_t(0x7FFFFFFFu >> (32 - 8 * sizeof b)));
}
template <typename T>
static inline float value_of(int32_t key) {
  const auto b = typename Pattern<T>::I(key ^ ((key >> 31) & int32_t(0x7FFFFFFFu >> (32 - 8 * sizeof(T)))));
  T v;
  std::memcpy(&v, &b, sizeof v);
  return widened(v);
}

template <typename T>
static inline void widen(const T* __restrict x, int64_t count, float* __restrict v) {
  for (int64_t i = 0; i < count; ++i) v[i] = widened(x[i]);
}

// Floats to float32 as a sign and a magnitude of fewer bits: to nearest even. Code and value.
static inline Rounded rounded(int32_t as, VF v) {
  if (as == WM_SCALE_F32) return {(VI)v, v};
  if (as == WM_SCALE_BF16) {
    const VI b = (VI)v, code = ((b + 0x7FFF + ((b >> 16) & 1)) >> 16) & 0xFFFF;
    return {code, (VF)(code << 16)};
  }
  const int mantissa = as == WM_SCALE_F16 ? 10 : 3, bits = as == WM_SCALE_F16 ? 16 : 8;
  const int32_t top = as == WM_SCALE_F16 ? 0x7BFF : 0x7E, past = as == WM_SCALE_F16 ? 0x7C00 : 0x7F;
  const VI sign = (VI)v & int32_t(0x80000000);
  Rounded r = spaced(least_of(magnitude(v), full(0x1p17f)), mantissa, as == WM_SCALE_F16 ? 15 : 7);
  const VI over = (VI)(r.code > top);
  r.code = over ? full(past) : r.code;
  r.value = (VF)(((over ? full(INFINITE) : (VI)r.value)) | sign);
  r.code |= (sign >> (32 - bits)) & (1 << (bits - 1));
  return r;
}

static inline int32_t nan_of(int32_t as) {
  return as == WM_SCALE_E8M0 ? 0xFF : as == WM_SCALE_E4M3 ? 0x7F : as == WM_SCALE_F16 ? 0x7E00 : as == WM_SCALE_BF16 ? 0x7FC0 : 0x7FC00000;
}

// OCP MX v1.0, section 6.3: divided by the largest power of two of the element, then clamped to what E8M0 can say.
static inline void share_power(const QuantizeCall& q, Blocks& b, int64_t i, VF amax, VI broken) {
  const VI p = (VI)amax;
  const VI subnormal = (VI)(p < 1 << 23);
  VI byte = (((p << (subnormal & 1)) + q.carry) >> 23) + subnormal - q.emax;
  byte = byte < 0 ? VI{} : byte;
  byte = byte > 254 ? full(254) : byte;
  const VI used = byte == 0 ? full(q.tiny) : byte, least = full(1 << 22);
  const VI total = byte == 0 ? least : byte << 23;
  store(b.scale + i, broken ? full(nan_of(WM_SCALE_E8M0)) : byte);
  store(b.total + i, (VF)(broken ? VI{} : total));
  const VI inverse = used == 254 ? least : (254 - used) << 23;
  store(b.divisor + i, (VF)(broken ? VI{} : inverse));
}

static inline void share_real(const QuantizeCall& q, Blocks& b, int64_t i, VF low, VF high, VF amax, VI broken) {
  VF raw = amax;
  if (q.ends == WM_ENDS_FIRST) raw = high;
  if (q.zero == WM_ZERO_INT) low = least_of(low, VF{}), high = most_of(high, VF{});
  if (q.zero != WM_ZERO_NONE) raw = (high - low) + 0.0f;
  raw = raw / q.span;
  if (q.second == WM_SECOND_F32) raw = raw / q.second_value;
  if (q.second == WM_SECOND_INVERSE_F32) raw = raw * q.second_value;
  VF kept = raw;
  if (q.least_scale != 0) kept = most_of(kept, full(q.least_scale));
  if (q.scale == WM_SCALE_E4M3) kept = least_of(kept, full(448.0f));
  Rounded stored = rounded(q.scale, kept);
  if (q.zero_scale != 0) stored = rounded(q.scale, stored.value == 0 ? full(q.zero_scale) : stored.value);
  const VF value = stored.value;
  VF total = value;
  if (q.second == WM_SECOND_F32) total = value * q.second_value;
  if (q.second == WM_SECOND_INVERSE_F32) total = value / q.second_value;
  const VF used = q.unrounded ? raw : total;
  VF divisor;
  if (q.reciprocal) {
    VF above = full(1.0f);
    if (q.second == WM_SECOND_F32) above = full(1.0f / q.second_value);
    if (q.second == WM_SECOND_INVERSE_F32) above = full(q.second_value);
    divisor = used == 0 ? VF{} : above / (q.second == WM_SECOND_NONE ? used : value);
  } else {
    divisor = used == 0 ? (VF)full(INFINITE) : used;
  }
  store(b.scale + i, broken ? full(nan_of(q.scale)) : stored.code);
  store(b.total + i, (VF)(broken ? VI{} : (VI)total));
  store(b.divisor + i, (VF)(broken ? VI{} : (VI)divisor));
  if (q.zero == WM_ZERO_INT) {  // of signed codes, as compressed-tensors has them
    const float half = float(1 << (q.bits - 1));
    VF point = full(-half) - low / value;
    point = whole(least_of(most_of(point, full(-1024.0f)), full(1024.0f))) + half;
    point = least_of(most_of(point, VF{}), full(float(q.most)));
    point = value == 0 ? VF{} : point;
    if (q.middle) point = raw == 0 ? (low < 0 ? full(float(q.most)) : full(half)) : point;
    point = (VF)(broken ? VI{} : (VI)point);
    store(b.zero + i, __builtin_convertvector(point, VI));
    store(b.point + i, point - half);
  } else if (q.zero == WM_ZERO_MIN_F16) {
    const Rounded minimum = rounded(WM_SCALE_F16, low);
    store(b.zero + i, broken ? VI{} : minimum.code);
    store(b.stored_minimum + i, (VF)(broken ? VI{} : (VI)minimum.value));
    store(b.minimum + i, (VF)(broken ? VI{} : (VI)(q.unrounded ? low : minimum.value)));
  }
}

// What `count` blocks share, from their extremes.
static WmFound share(QuantizeCall& q, Blocks& b, int64_t count) {
  VI reach = {}, broke = {}, past = {};
  const int32_t top = q.scale == WM_SCALE_E4M3 ? 0x7F : q.scale == WM_SCALE_F16 ? 0x7C00 : q.scale == WM_SCALE_BF16 ? 0x7F80 : INFINITE;
  const int32_t bits = top < 0x80 ? 0x7F : top < 0x8000 ? 0x7FFF : 0x7FFFFFFF;
  for (int64_t i = count; i < count + LANES; ++i) b.low[i] = b.high[i] = 0;
  for (int64_t i = 0; i < count; i += LANES) {
    const VF high = load(b.high + i), low = q.ends == WM_ENDS_AMAX ? high : load(b.low + i);
    const VF amax = (VF)((VI)magnitude(low) > (VI)magnitude(high) ? (VI)magnitude(low) : (VI)magnitude(high));
    const VI broken = (VI)amax >= INFINITE;
    broke |= broken;
    q.scale == WM_SCALE_E8M0 ? share_power(q, b, i, amax, broken) : share_real(q, b, i, low, high, amax, broken);
    const VI total = (VI)magnitude(load(b.total + i));
    reach = total > reach ? total : reach;  // NaN is the largest of all
    if (q.scale == WM_SCALE_E8M0) continue;
    past |= ((load(b.scale + i) & bits) >= top) & ~broken;
    if (q.zero == WM_ZERO_MIN_F16) past |= ((load(b.zero + i) & 0x7FFF) >= 0x7C00) & ~broken;
  }
  b.poisoned = any(broke);
  if (b.poisoned && !q.poison) return WM_NOT_FINITE;
  if (any(reach > q.reach)) {
    for (int l = 0; l < LANES; ++l) q.reach = reach[l] > q.reach ? reach[l] : q.reach;
  }
  if (!any(past)) return WM_DONE;
  for (int64_t i = 0;; ++i) {
    const float low = q.ends == WM_ENDS_AMAX ? 0.0f : std::fabs(b.low[i]), high = std::fabs(b.high[i]);
    const bool scale = (b.scale[i] & bits) >= top;
    const bool zero = q.zero == WM_ZERO_MIN_F16 && (b.zero[i] & 0x7FFF) >= 0x7C00;
    if (!(scale || zero) || !(low <= 0x1.fffffep127f && high <= 0x1.fffffep127f)) continue;
    q.refused = low > high ? low : high;
    return scale ? WM_SCALE_PAST : WM_ZERO_PAST;
  }
}

static void narrow(const int32_t* __restrict from, int64_t count, uint8_t* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = uint8_t(from[i]);
}
static void narrow(const int32_t* __restrict from, int64_t count, uint16_t* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = uint16_t(from[i]);
}

static inline void keep(const QuantizeCall& q, const Blocks& b, int64_t count, int64_t at) {
  if (q.scale == WM_SCALE_F32) {
    std::memcpy(static_cast<float*>(q.scales) + at, b.scale, size_t(count) * 4);
  } else if (q.scale == WM_SCALE_E8M0 || q.scale == WM_SCALE_E4M3) {
    narrow(b.scale, count, static_cast<uint8_t*>(q.scales) + at);
  } else {
    narrow(b.scale, count, static_cast<uint16_t*>(q.scales) + at);
  }
  if (q.zero == WM_ZERO_INT) narrow(b.zero, count, static_cast<uint8_t*>(q.zeros) + at);
  if (q.zero == WM_ZERO_MIN_F16) narrow(b.zero, count, static_cast<uint16_t*>(q.zeros) + at);
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

// One strip of one row, in columns [first, first + count) of its band.
template <typename T>
static void strip(const QuantizeCall& q, const Blocks& b, Strip& s, const T* x, int64_t first, int64_t count,
                  bool same, uint8_t* out, Sums* sums) {
  const int64_t width = q.block_elems;
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

// [cols][rows] with rows as neighbours → [rows][TALL_STRIP]; pieces of 16 bytes at a time.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define WM_SHUFFLES 1
#endif
#endif
static inline void turn_piece(const uint16_t* x, int64_t stride, uint16_t* out) {
#if WM_SHUFFLES
  typedef uint16_t V __attribute__((vector_size(16)));
  typedef uint16_t InMemory __attribute__((vector_size(16), aligned(2), may_alias));
  V a[8], b[8];
  for (int k = 0; k < 8; ++k) a[k] = *reinterpret_cast<const InMemory*>(x + k * stride);
  for (int step = 0; step < 3; ++step) {
    for (int k = 0; k < 4; ++k) {
      b[2 * k] = __builtin_shufflevector(a[k], a[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * k + 1] = __builtin_shufflevector(a[k], a[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int k = 0; k < 8; ++k) a[k] = b[k];
  }
  for (int k = 0; k < 8; ++k) *reinterpret_cast<InMemory*>(out + k * TALL_STRIP) = a[k];
#else
  for (int k = 0; k < 8; ++k)
    for (int r = 0; r < 8; ++r) out[r * TALL_STRIP + k] = x[k * stride + r];
#endif
}
static inline void turn_piece(const uint32_t* x, int64_t stride, uint32_t* out) {
#if WM_SHUFFLES
  typedef uint32_t V __attribute__((vector_size(16)));
  typedef uint32_t InMemory __attribute__((vector_size(16), aligned(4), may_alias));
  V a[4], b[4];
  for (int k = 0; k < 4; ++k) a[k] = *reinterpret_cast<const InMemory*>(x + k * stride);
  for (int step = 0; step < 2; ++step) {
    for (int k = 0; k < 2; ++k) {
      b[2 * k] = __builtin_shufflevector(a[k], a[k + 2], 0, 4, 1, 5);
      b[2 * k + 1] = __builtin_shufflevector(a[k], a[k + 2], 2, 6, 3, 7);
    }
    for (int k = 0; k < 4; ++k) a[k] = b[k];
  }
  for (int k = 0; k < 4; ++k) *reinterpret_cast<InMemory*>(out + k * TALL_STRIP) = a[k];
#else
  for (int k = 0; k < 4; ++k)
    for (int r = 0; r < 4; ++r) out[r * TALL_STRIP + k] = x[k * stride + r];
#endif
}

template <typename U>
static void turn(const U* x, int64_t stride, int64_t rows, int64_t cols, U* out) {
  constexpr int N = 16 / int(sizeof(U));
  for (int64_t c = 0; c < cols; c += N) {
    int64_t r = 0;
    if (c + N <= cols)
      for (; r + N <= rows; r += N) turn_piece(x + r + c * stride, stride, out + r * TALL_STRIP + c);
    for (; r < rows; ++r)
      for (int64_t k = c; k < cols && k < c + N; ++k) out[r * TALL_STRIP + k] = x[r + k * stride];
  }
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
