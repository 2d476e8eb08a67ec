// Attention of a few rows of a key head, as in a step of decoding: keys and values meet them as they are read, and are not
// written anywhere before. Included by attention.h.

// What is added up in lanes, of keys[N] that registers hold at once: `folded` of N sums is one register, and `totals` of
// all that keys of LANES slots became, in their order, is what each of them sums up to.
#if WM_SIMD == 512
constexpr int keys_at_once(int rows) { return rows <= 4 ? 4 : 2; }

// What several products want; compilers would read it from memory for each.
WM_INLINE Floats in_register(Floats v) {
  asm("" : "+v"(v));
  return v;
}

WM_INLINE Floats in_pairs(Floats v, Floats w) {
  const __m512 x = (__m512)v, y = (__m512)w;
  return (Floats)_mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
}

WM_INLINE Floats in_fours(Floats v, Floats w) {
  const __m512 x = (__m512)v, y = (__m512)w;
  return (Floats)_mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xEE));
}

WM_INLINE Floats in_quarters(Floats v, Floats w) {
  const __m512 x = (__m512)v, y = (__m512)w;
  return (Floats)_mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
}

template <int N>
WM_INLINE Floats folded(const Floats v[N]) {
  if constexpr (N == 2) return in_pairs(v[0], v[1]);
  else return in_fours(in_pairs(v[0], v[1]), in_pairs(v[2], v[3]));
}

template <int N>
WM_INLINE Floats totals(const Floats v[LANES / N]) {
  if constexpr (N == 4) return in_quarters(in_quarters(v[0], v[1]), in_quarters(v[2], v[3]));
  else return in_quarters(in_quarters(in_fours(v[0], v[1]), in_fours(v[2], v[3])),
                          in_quarters(in_fours(v[4], v[5]), in_fours(v[6], v[7])));
}
#else
constexpr int keys_at_once(int) { return 1; }

WM_INLINE Floats in_register(Floats v) { return v; }

template <int N>
WM_INLINE Floats folded(const Floats v[N]) {
  return v[0];
}

template <int N>
WM_INLINE Floats totals(const Floats v[LANES]) {
  Floats turned[LANES];
  std::memcpy(turned, v, sizeof turned);
  transpose(turned);
  for (int n = LANES / 2; n; n /= 2)
    for (int i = 0; i < n; ++i) turned[i] += turned[i + n];
  return turned[0];
}
#endif

// Where keys and values of the slots of a tile lie, those of one head.
struct Held {
  const uint8_t *key[SLOTS], *value[SLOTS];

  Held(const Call& c, int64_t b, int64_t head, const int32_t* index, int64_t count) {
    const int64_t k = c.dims * bits_of(c.element) / 8, v = c.value_dims * bits_of(c.element) / 8;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (b * c.slots + index[i]) * c.key_heads + head;
      key[i] = c.k + at * k, value[i] = c.v + at * v;
    }
  }
};

// logits[R][SLOTS] of `count` slots, and of whatever there is in the rest of the last LANES. q: [R][q_stride], zeros past
// the dims.
template <WmElement E, int R>
static void meet_keys(const Call& c, const Held& held, int64_t count, const float* q, int64_t q_stride, float* logits,
                      Coming& coming) {
  constexpr int64_t BITS = bits_of(E);
  const int64_t whole = c.dims / LANES * LANES;
  constexpr int N = keys_at_once(R);
  for (int64_t i = 0; i < count; i += LANES) {
    alignas(64) Floats sums[R][LANES / N];
    for (int l = 0; l < LANES; l += N) {
      const uint8_t* key[N];
      for (int n = 0; n < N; ++n) key[n] = held.key[i + l + n < count ? i + l + n : count - 1];
      Floats sum[R][N] = {}, k[N];
      const auto add = [&](int64_t d) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Floats own = in_register(load(q + r * q_stride + d));
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) sum[r][n] = fused(k[n], own, sum[r][n]);
        }
      };
      for (int64_t d = 0; d < whole; d += LANES) {
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) k[n] = decoding::elements<E>(key[n] + d * BITS / 8);
        add(d);
      }
      if (whole < c.dims) {
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) k[n] = decoding::some<E>(key[n] + whole * BITS / 8, c.dims - whole);
        add(whole);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][l / N] = folded<N>(sum[r]);
      coming.take(N);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(logits + r * SLOTS + i, totals<N>(sums[r]));
  }
}

// found[R][wide_values] = found · kept[R] + weights [R][SLOTS] · values.
template <WmElement E, int R>
static void meet_values(const Call& c, const Held& held, int64_t count, const float* weights, const float* kept,
                        float* found, Coming& coming) {
  constexpr int64_t BITS = bits_of(E);
  const int64_t wide = c.wide_values();
  for (int64_t j = 0; j < wide; j += WIDE) {
    const int64_t left = c.value_dims - j;
    float* const own = found + j;
    Floats sum[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2; ++h) sum[r][h] = load(own + r * wide + h * LANES) * kept[r];
    const auto add = [&](int64_t i, Floats v0, Floats v1) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Floats w = everywhere(weights[r * SLOTS + i]);
        sum[r][0] = fused(w, v0, sum[r][0]);
        sum[r][1] = fused(w, v1, sum[r][1]);
      }
    };
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* v = held.value[i] + j * BITS / 8;
      if (left >= WIDE) add(i, decoding::elements<E>(v), decoding::elements<E>(v + LANES * BITS / 8));
      else if (left <= LANES) add(i, decoding::some<E>(v, left), Floats{});
      else add(i, decoding::elements<E>(v), decoding::some<E>(v + LANES * BITS / 8, left - LANES));
      if (j == 0) coming.take(1);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2; ++h) store(own + r * wide + h * LANES, sum[r][h]);
  }
}

// Of R rows and one tile.
template <WmElement E, int R, typename Weigh>
static void few(const Call& c, const Held& held, int64_t count, const float* q, int64_t q_stride, float* logits,
                float* kept, float* found, Coming& coming, const Weigh& weigh) {
  meet_keys<E, R>(c, held, count, q, q_stride, logits, coming);
  for (int64_t r = 0; r < R; ++r) kept[r] = weigh(r);
  meet_values<E, R>(c, held, count, logits, kept, found, coming);
}

template <WmElement E, int R = 1, typename... Args>
static void few_of(int64_t rows, Args&&... args) {
  if constexpr (R < FEW)
    if (rows > R) return few_of<E, R + 1>(rows, args...);
  few<E, R>(args...);
}

template <typename... Args>
static void few_any(WmElement e, int64_t rows, Args&&... args) {
  switch (e) {
    case WM_F32: return few_of<WM_F32>(rows, args...);
    case WM_BF16: return few_of<WM_BF16>(rows, args...);
    case WM_E4M3: return few_of<WM_E4M3>(rows, args...);
    default: return few_of<WM_INT8>(rows, args...);
  }
}

static inline int64_t few_floats(const Call& c, int64_t heads) {
  return c.most_rows() * (heads * c.wide_dims() + SLOTS + LANES);
}

// `attend` for few rows.
static void attend_few(const Call& c, int64_t b, const Some& now, const Some& next, int64_t first, int64_t rows,
                       float* found, int64_t apart, float* scratch) {
  const int64_t group = c.group(), wide = c.wide_values(), most = c.most_rows(), stride = c.wide_dims();
  float *q = scratch, *logits = q + now.heads * rows * stride, *kept = logits + most * SLOTS;
  Tile t;
  for (int64_t i = 0; i < now.heads * rows; ++i) {
    const int64_t r = i % rows, query = (first + r) / group, h = (now.head + i / rows) * group + (first + r) % group;
    float *own = found + i / rows * apart, *sum = own + most * wide, *top = sum + most;
    std::memcpy(q + i * stride, c.q + ((b * c.queries + query) * c.heads + h) * c.dims, size_t(c.dims) * 4);
    std::memset(q + i * stride + c.dims, 0, size_t(stride - c.dims) * 4);
    std::memset(own + r * wide, 0, size_t(wide) * 4);
    sum[r] = 0;
    top[r] = -__builtin_inff();
  }
  for (int64_t i = 0; i < now.count; i += SLOTS) {
    const int64_t left = now.count - i, here = left < SLOTS ? left : SLOTS, columns = (here + LANES - 1) / LANES * LANES;
    const Some then = left > SLOTS ? Some{now.head, now.heads, now.index + i + SLOTS, left - SLOTS} : next;
    Coming coming(c, b, then, now.heads * 2 * here);
    for (int64_t h = 0; h < now.heads; ++h) {
      const int64_t head = now.head + h;
      float *own = found + h * apart, *sum = own + most * wide, *top = sum + most;
      if (h == 0 || c.k_scales || c.v_scales) describe(c, b, head, now.index + i, here, columns, t);  // else all alike
      const Held held(c, b, head, now.index + i, here);
      few_any(c.element, rows, c, held, here, q + h * rows * stride, stride, logits, kept, own, coming, [&](int64_t r) {
        return weigh(c, t, columns, Sight::of(c, b, (first + r) / group), logits + r * SLOTS, top + r, sum + r);
      });
    }
  }
}
