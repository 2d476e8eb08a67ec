// Attention of many rows of a key head, as in a prompt. A lane has a row: keys meet the queries of all, turned once, as
// they lie, and a row's softmax goes from slot to slot in its lane. Both products are one outer product (`multiply`),
// whose sums stay in registers. Included by attention.h.

// What rows see, and what they have found so far; those past the end see nothing.
struct Lanes {
  alignas(64) int32_t first[ROWS], last[ROWS], segment[ROWS];
  alignas(64) float top[ROWS], sum[ROWS], kept[ROWS];

  Lanes(const Call& c, int64_t b, int64_t from, int64_t rows) {
    for (int64_t r = 0; r < ROWS; ++r) {
      const Sight sight = r < rows ? Sight::of(c, b, (from + r) / c.group()) : Sight{0, -1, 0};
      first[r] = sight.first, last[r] = sight.last, segment[r] = sight.segment;
      top[r] = -__builtin_inff(), sum[r] = 0;
    }
  }

  // Whether LANES rows from r on see all slots of a tile.
  bool see_all(int64_t r, const Tile& t) const {
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (int64_t i = r; i < r + LANES; ++i) {
      least = last[i] < least ? last[i] : least;
      most = first[i] > most ? first[i] : most;
    }
    return t.first >= 0 && t.first >= most && t.last <= least;
  }
};

WM_INLINE Ints bits_of_floats(Floats v) {
  Ints bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}

// Of LANES rows from r on: logits [slots][ROWS] of a tile become weights, in place. ALL: all rows see all slots, whose
// logits are but scaled.
template <bool ALL>
static void weigh_lanes(const Call& c, const Tile& t, int64_t slots, int64_t r, Lanes& rows, float* logits,
                        Coming& coming) {
  constexpr int32_t NONE = int32_t(0xFF800000);  // -infinity
  Ints first, last, segment;
  std::memcpy(&first, rows.first + r, sizeof first);
  std::memcpy(&last, rows.last + r, sizeof last);
  std::memcpy(&segment, rows.segment + r, sizeof segment);
  const auto hidden = [&](int64_t s) {
    Ints apart = {};
    if (c.segment) {
      apart = segment ^ t.segment[s];
      apart |= -apart;
    }
    return (t.slot[s] | (last - t.slot[s]) | (t.slot[s] - first) | apart) >> 31;
  };
  Floats top = everywhere(-__builtin_inff());
  Ints nan = {};  // negative where there is one
  for (int64_t s = 0; s < slots; ++s) {
    Floats x = load(logits + s * ROWS) * c.scale;
    if (!ALL) {
      if (c.k_scales) x = x * t.k_scales[s];
      if (c.softcap != 0) x = c.softcap * hyperbolic_tangent(x / c.softcap);
      x = without(x, hidden(s), NONE);
    }
    store(logits + s * ROWS, x);
    nan |= 0x7F800000 - (bits_of_floats(x) & 0x7FFFFFFF);
    top = larger(x, top);  // of a NaN and a number, the second
  }
  const Floats before = load(rows.top + r);
  const Floats now = larger(top, before) + without(Floats{}, nan >> 31, 0x7FC00000);  // NaN, once it is there
  const Ints apart = bits_of_floats(now) ^ NONE, nothing = ~((apart | -apart) >> 31);  // seen yet
  const Floats from = without(now, nothing, 0);
  Floats sum = {};
  for (int64_t s = 0; s < slots; ++s) {
    Floats w = without(exponential(load(logits + s * ROWS) - from), nothing, 0);
    if (!ALL) w = without(w, hidden(s), 0);
    sum += w;
    if (!ALL && c.v_scales) w = w * t.v_scales[s];
    store(logits + s * ROWS, w);
    coming.take(1);
  }
  const Floats kept = exponential(before - from);
  store(rows.kept + r, kept);
  store(rows.sum + r, load(rows.sum + r) * kept + sum);
  store(rows.top + r, now);
}

// LANES numbers at a time of `count` slots → [count][wide].
template <WmElement E>
static void unpack_rows(const uint8_t* from, int64_t slot_nbytes, const int32_t* index, int64_t count, int64_t dims,
                        int64_t wide, float* to) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = 0; d < wide; d += LANES)
      store(to + i * wide + d, d < dims ? decoding::some<E>(from + index[i] * slot_nbytes + d * bits_of(E) / 8, dims - d)
                                        : Floats{});
}

// Keys or values of a head in some slots, as float32: where they lie, if that will do, or in `to`.
struct Numbers {
  const float* at;
  int64_t stride;

  // wide: numbers that are read of each, a multiple of LANES.
  static Numbers of(const Call& c, const uint8_t* all, int64_t b, int64_t head, int64_t dims, int64_t wide, bool exact,
                    const int32_t* index, int64_t count, float* to) {
    const int64_t nbits = bits_of(c.element), slot_nbytes = c.key_heads * dims * nbits / 8;
    const uint8_t* const from = all + (b * c.slots * c.key_heads + head) * dims * nbits / 8;
    if (c.element == WM_F32 && exact && index[count - 1] - index[0] == count - 1)
      return {reinterpret_cast<const float*>(from + index[0] * slot_nbytes), c.key_heads * dims};
    const auto unpack = c.element == WM_F32    ? unpack_rows<WM_F32>
                        : c.element == WM_BF16 ? unpack_rows<WM_BF16>
                        : c.element == WM_E4M3 ? unpack_rows<WM_E4M3>
                                               : unpack_rows<WM_INT8>;
    unpack(from, slot_nbytes, index, count, dims, wide, to);
    return {to, wide};
  }
};

static inline int64_t many_floats(const Call& c) {
  return (c.wide_dims() + SLOTS) * ROWS + SLOTS * (c.wide_dims() + c.wide_values());
}

// `attend` for many rows and one head.
static void attend_many(const Call& c, int64_t b, const Some& now, const Some& next, int64_t first, int64_t rows,
                        float* found, float* scratch) {
  const int64_t group = c.group(), wide = c.wide_values(), most = c.most_rows(), columns = (rows + WIDE - 1) / WIDE * WIDE;
  float *queries = scratch, *logits = queries + c.wide_dims() * ROWS, *keys = logits + SLOTS * ROWS;
  float* const values = keys + SLOTS * c.wide_dims();
  Lanes lanes(c, b, first, rows);
  Tile t;
  std::memset(found, 0, size_t(rows * wide) * 4);
  for (int64_t r = 0; r < columns; r += LANES)
    for (int64_t d = 0; d < c.dims; d += LANES) {
      Floats square[LANES];
      for (int64_t l = 0; l < LANES; ++l) {
        const int64_t query = (first + r + l) / group, h = now.head * group + (first + r + l) % group;
        const float* const q = c.q + ((b * c.queries + query) * c.heads + h) * c.dims + d;
        square[l] = Floats{};
        if (r + l < rows) std::memcpy(&square[l], q, size_t(c.dims - d < LANES ? c.dims - d : LANES) * 4);
      }
      transpose(square);
      for (int64_t l = 0; l < LANES; ++l) store(queries + (d + l) * ROWS + r, square[l]);
    }
  const bool plain = c.plain();
  for (int64_t i = 0; i < now.count; i += SLOTS) {
    const int32_t* const index = now.index + i;
    const int64_t left = now.count - i, here = left < SLOTS ? left : SLOTS;
    Coming coming(c, b, left > SLOTS ? Some{now.head, 1, index + SLOTS, left - SLOTS} : next, here * (columns / LANES));
    describe(c, b, now.head, index, here, here, t);
    const Numbers k = Numbers::of(c, c.k, b, now.head, c.dims, c.wide_dims(), true, index, here, keys);
    multiply_all(k.at, k.stride, queries, ROWS, here, c.dims, columns, nullptr, logits, ROWS);
    for (int64_t r = 0; r < columns; r += LANES)
      (plain && lanes.see_all(r, t) ? weigh_lanes<true> : weigh_lanes<false>)(c, t, here, r, lanes, logits + r, coming);
    const Numbers v = Numbers::of(c, c.v, b, now.head, c.value_dims, wide, c.value_dims == wide, index, here, values);
    multiply_all<true>(logits, ROWS, v.at, v.stride, rows, here, wide, lanes.kept, found, wide);
  }
  std::memcpy(found + most * wide, lanes.sum, size_t(rows) * 4);
  std::memcpy(found + most * wide + most, lanes.top, size_t(rows) * 4);
}
