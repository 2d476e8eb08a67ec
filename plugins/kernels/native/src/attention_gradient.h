// The gradients of attention for plain keys and values. Included once for each instruction set, after attention.h.
//
// Of every query its largest logit and the sum of weights are kept, and logits are computed again (arXiv 2205.14135,
// 3.1), for a block of rows at a time, in tiles of slots. Tiles that no row of the block sees are left out. One thread has
// all rows of a key head, so that sums are in one order whoever computes them.

namespace attention {

constexpr int SOME = 32;  // slots of a tile: what a window cuts off is not computed for long

struct Gradient {
  const Call& c;
  const float* d_out;   // [batch, queries, heads, value_dims]
  float *dq, *dk, *dv;  // like q, k, v
  float* d_sinks;       // [batch, heads]
};

static inline int64_t wide(int64_t dims) { return (dims + WIDE - 1) / WIDE * WIDE; }
static inline int64_t whole_tiles(const Call& c) { return (c.slots + SOME - 1) / SOME * SOME; }
static inline int64_t gradient_floats(const Call& c) {
  const int64_t d = wide(c.dims), e = wide(c.value_dims), slots = whole_tiles(c);
  return slots * (3 * d + 2 * e + 3 + ROWS * (c.softcap != 0 ? 3 : 2)) + ROWS * (2 * d + e + 2);
}

// Positions and segments that some rows want or a tile has.
struct Span {
  int32_t first = INT32_MAX, last = INT32_MIN, low = INT32_MAX, high = INT32_MIN;

  void has(int32_t from, int32_t to, int32_t segment) {
    first = from < first ? from : first, last = to > last ? to : last;
    low = segment < low ? segment : low, high = segment > high ? segment : high;
  }
  bool meets(const Span& other) const {
    return first <= other.last && other.first <= last && low <= other.high && other.low <= high;
  }
};

// Slots of a key head → [slots][wide], and turned [wide][slots]; zeros where there are fewer.
template <WmElement E>
static void unpack(const uint8_t* from, int64_t slots, int64_t key_heads, int64_t head, int64_t dims, int64_t whole,
                   float* rows, float* turned) {
  constexpr int64_t BITS = bits_of(E);
  for (int64_t s = 0; s < whole; s += LANES)
    for (int64_t d = 0; d < wide(dims); d += LANES) {
      Floats square[LANES];
      for (int l = 0; l < LANES; ++l) {
        const uint8_t* at = from + (((s + l) * key_heads + head) * dims + d) * BITS / 8;
        square[l] = s + l < slots && d < dims ? decoding::some<E>(at, dims - d) : Floats{};
        if (rows) store(rows + (s + l) * wide(dims) + d, square[l]);
      }
      transpose(square);
      for (int l = 0; l < LANES; ++l) store(turned + (d + l) * whole + s, square[l]);
    }
}

// Of one row and a tile: `p`, products with keys, become weights, `part` of e^(logit - top); `slope` is what logits grow by
// with products, where there is a cap. Returns Σ weight · dp.
static float weigh_again(const Call& c, Sight sight, const int32_t* slot, const int32_t* segment, float top, float part,
                         float* p, const float* dp, float* slope) {
  Floats share = {};
  for (int j = 0; j < SOME; j += LANES) {
    Floats x = load(p + j) * c.scale;
    if (c.softcap != 0) {
      const Floats bent = hyperbolic_tangent(x / c.softcap);
      x = c.softcap * bent;
      store(slope + j, c.scale * (1.0f - bent * bent));
    }
    const Ints hidden = sight.hidden(slot + j, segment ? segment + j : nullptr);
    const Floats w = without(exponential(x - top) * part, hidden, 0);
    store(p + j, w);
    share += w * load(dp + j);
  }
  return total(share);
}

// All of key head `head` of one of the batch.
static void gradient(const Gradient& g, int64_t b, int64_t head, float* scratch) {
  const Call& c = g.c;
  const int64_t group = c.group(), rows = c.queries * group, slots = whole_tiles(c), d = wide(c.dims);
  const int64_t e = wide(c.value_dims);
  float *keys = scratch, *turned_keys = keys + slots * d, *turned_values = turned_keys + slots * d;
  float *dk = turned_values + slots * e, *dv = dk + slots * d;
  int32_t *slot = reinterpret_cast<int32_t*>(dv + slots * e), *segment = slot + slots;
  int32_t* seen = segment + slots;  // tiles that some row of a block sees
  float *q = reinterpret_cast<float*>(seen + slots), *d_out = q + ROWS * d, *dq = d_out + ROWS * e;
  float *ones = dq + ROWS * d, *share = ones + ROWS, *p = share + ROWS, *dp = p + ROWS * slots, *slope = dp + ROWS * slots;
  const int64_t bytes = b * c.slots * c.key_heads * bits_of(c.element) / 8;
  const auto fill = c.element == WM_F32 ? unpack<WM_F32> : unpack<WM_BF16>;
  fill(c.k + bytes * c.dims, c.slots, c.key_heads, head, c.dims, slots, keys, turned_keys);
  fill(c.v + bytes * c.value_dims, c.slots, c.key_heads, head, c.value_dims, slots, nullptr, turned_values);
  std::memset(dk, 0, size_t(slots * (d + e)) * 4);
  for (int64_t s = 0; s < slots; ++s) {
    slot[s] = s < c.slots ? c.slot[b * c.slots + s] : -1;
    segment[s] = c.segment && s < c.slots ? c.segment[b * c.slots + s] : 0;
  }
  for (int64_t r = 0; r < ROWS; ++r) ones[r] = 1;
  for (int64_t h = head * group; h < (head + 1) * group; ++h) g.d_sinks[b * c.heads + h] = 0;

  for (int64_t first = 0; first < rows; first += ROWS) {
    const int64_t count = rows - first < ROWS ? rows - first : ROWS;
    Span wanted;
    std::memset(q, 0, size_t(ROWS * (2 * d + e)) * 4);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t query = (first + r) / group, h = head * group + (first + r) % group;
      const int64_t at = (b * c.queries + query) * c.heads + h;
      std::memcpy(q + r * d, c.q + at * c.dims, size_t(c.dims) * 4);
      std::memcpy(d_out + r * e, g.d_out + at * c.value_dims, size_t(c.value_dims) * 4);
      share[r] = 0;
      const Sight sight = Sight::of(c, b, query);
      if (sight.last >= 0) wanted.has(sight.first < 0 ? 0 : sight.first, sight.last, sight.segment);
    }
    int64_t tiles = 0;
    for (int64_t s = 0; s < slots; s += SOME) {
      Span there;
      for (int64_t i = s; i < s + SOME; ++i)
        if (slot[i] >= 0) there.has(slot[i], slot[i], segment[i]);
      if (!there.meets(wanted)) continue;
      float *own = p + tiles * ROWS * SOME, *cotangents = dp + tiles * ROWS * SOME;
      multiply_all(q, d, turned_keys + s, slots, count, c.dims, SOME, nullptr, own, SOME);
      multiply_all(d_out, e, turned_values + s, slots, count, c.value_dims, SOME, nullptr, cotangents, SOME);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t query = (first + r) / group, h = head * group + (first + r) % group;
        const int64_t at = (b * c.queries + query) * c.heads + h;
        share[r] += weigh_again(c, Sight::of(c, b, query), slot + s, c.segment ? segment + s : nullptr, c.top[at],
                                c.whole[at] == 0 ? 0 : 1 / c.whole[at], own + r * SOME, cotangents + r * SOME,
                                slope + (tiles * ROWS + r) * SOME);
      }
      seen[tiles++] = int32_t(s);
    }
    for (int64_t r = 0; r < count && c.sinks; ++r) {
      const int64_t h = head * group + (first + r) % group, at = (b * c.queries + (first + r) / group) * c.heads + h;
      if (c.whole[at] != 0)
        g.d_sinks[b * c.heads + h] -= exponential(c.sinks[h] - c.top[at]) / c.whole[at] * share[r];
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t s = seen[t];
      float *own = p + t * ROWS * SOME, *change = dp + t * ROWS * SOME;
      for (int64_t i = 0; i < count * SOME; i += LANES) {  // what logits are to change by, and then products
        const Floats grows = c.softcap != 0 ? load(slope + t * ROWS * SOME + i) : everywhere(c.scale);
        store(change + i, load(own + i) * (load(change + i) - share[i / SOME]) * grows);
      }
      multiply_all(change, SOME, keys + s * d, d, count, SOME, d, ones, dq, d);
      multiply_all<true>(change, SOME, q, d, SOME, count, d, ones, dk + s * d, d);
      multiply_all<true>(own, SOME, d_out, e, SOME, count, e, ones, dv + s * e, e);
    }
    for (int64_t r = 0; r < count; ++r) {
      const int64_t query = (first + r) / group, h = head * group + (first + r) % group;
      std::memcpy(g.dq + ((b * c.queries + query) * c.heads + h) * c.dims, dq + r * d, size_t(c.dims) * 4);
    }
  }
  for (int64_t s = 0; s < c.slots; ++s) {
    const int64_t at = (b * c.slots + s) * c.key_heads + head;
    std::memcpy(g.dk + at * c.dims, dk + s * d, size_t(c.dims) * 4);
    std::memcpy(g.dv + at * c.value_dims, dv + s * e, size_t(c.value_dims) * 4);
  }
}

}  // namespace attention
