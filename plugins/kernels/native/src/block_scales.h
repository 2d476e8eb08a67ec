// What blocks share: from their extremes to scales, zero points and minima as stored, and to what codes are made with.
// Included once for each instruction set, after codes.h.

constexpr int32_t INFINITE = 0x7F800000;

// What the blocks of a region share, in arrays of `count` rounded up to a register.
struct Blocks {
  float *low, *high;  // extremes, or for WM_ENDS_AMAX the largest magnitude in `high`
  float *divisor, *total, *point, *minimum, *stored_minimum;
  int32_t *scale, *zero;  // as stored
  float* tried;           // the factor of a real scale, or the step from a power of two; null: the usual scale
  bool poisoned;

  Blocks from(int64_t k) const {
    return {low + k, high + k, divisor + k, total + k, point + k, minimum + k, stored_minimum + k, scale + k, zero + k,
            tried == nullptr ? tried : tried + k, poisoned};
  }
};

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
  if (b.tried != nullptr) {
    byte += __builtin_convertvector(load(b.tried + i), VI);
    byte = byte < 0 ? VI{} : byte;
    byte = byte > 254 ? full(254) : byte;
  }
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
  if (b.tried != nullptr) raw = raw * load(b.tried + i);
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
    VF high = load(b.high + i), low = q.ends == WM_ENDS_AMAX ? high : load(b.low + i);
    VF amax = (VF)((VI)magnitude(low) > (VI)magnitude(high) ? (VI)magnitude(low) : (VI)magnitude(high));
    const VI broken = (VI)amax >= INFINITE;
    low = (VF)((VI)low & ~broken), high = (VF)((VI)high & ~broken), amax = (VF)((VI)amax & ~broken);
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
