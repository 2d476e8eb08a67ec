// Attention of a block of query rows over slots of a KV cache, read as it is stored. Included once for each instruction
// set, after floats.h, weights.h and decode.h.
//
// Rows are the queries of all heads that share a key head. The softmax is the running one (Milakov and Gimelshein, arXiv
// 1805.02867): slots may come in parts, whose results are put together by their maxima and sums (`finish`). What a row
// does not see is never read where no row of the block sees it. A step of decoding has few rows (attention_few.h), a
// prompt many (attention_many.h).

#include "decode.h"

namespace attention {

using decoding::Floats;
using decoding::Ints;
using decoding::LANES;
#define WM_INLINE static inline __attribute__((always_inline))
#define WM_METHOD inline __attribute__((always_inline))

constexpr int SLOTS = 64;                                                // of a tile
constexpr int64_t ROWS = 64;                                             // of a block, at most
constexpr int FEW = 8;                                                   // rows that a step of decoding has of a head
constexpr int MOST = WM_SIMD == 512 ? 8 : WM_SIMD == 256 ? 5 : 2;        // rows whose sums fit registers
constexpr int WIDE = 2 * LANES;                                          // columns of an outer product

WM_INLINE Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
WM_INLINE void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }
WM_INLINE Floats everywhere(float v) { return v - Floats{}; }

#if WM_SIMD == 512
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
WM_INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
#elif WM_SIMD == 256
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
WM_INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
#else
WM_INLINE Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }
WM_INLINE Floats larger(Floats a, Floats b) {
  for (int l = 0; l < LANES; ++l) a[l] = a[l] > b[l] ? a[l] : b[l];
  return a;
}
#endif

#if WM_SIMD == 512
WM_INLINE float largest(Floats v) { return _mm512_reduce_max_ps((__m512)v); }
WM_INLINE float total(Floats v) { return _mm512_reduce_add_ps((__m512)v); }
#else
WM_INLINE float largest(Floats v) {
  float all[LANES];
  store(all, v);
  for (int n = LANES / 2; n; n /= 2)
    for (int l = 0; l < n; ++l) all[l] = all[l] > all[l + n] ? all[l] : all[l + n];
  return all[0];
}
WM_INLINE float total(Floats v) {
  float all[LANES];
  store(all, v);
  for (int n = LANES / 2; n; n /= 2)
    for (int l = 0; l < n; ++l) all[l] += all[l + n];
  return all[0];
}
#endif

// e^x of x in [-87, 88], to about an ulp; less counts as -87. Cephes' expf: x = n ln 2 + r, a polynomial of r.
WM_INLINE Floats exponential(Floats x) {
  constexpr float ROUND = 12582912.0f;  // 1.5 · 2^23: what is added to it is rounded to an integer
  x = larger(everywhere(-87.0f), x);  // of a NaN and a number, the second
  const Floats shifted = fused(x, everywhere(1.44269504088896341f), everywhere(ROUND));
  const Floats n = shifted - ROUND;
  Floats r = fused(n, everywhere(-0.693359375f), x);
  r = fused(n, everywhere(2.12194440e-4f), r);
  Floats y = everywhere(1.9875691500e-4f);
  y = fused(y, r, everywhere(1.3981999507e-3f));
  y = fused(y, r, everywhere(8.3334519073e-3f));
  y = fused(y, r, everywhere(4.1665795894e-2f));
  y = fused(y, r, everywhere(1.6666665459e-1f));
  y = fused(y, r, everywhere(5.0000001201e-1f));
  y = fused(y, r * r, r + 1.0f);
  Ints bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4B400000 + 127) << 23;  // 2^n; a product, so that NaN stays NaN
  Floats power;
  std::memcpy(&power, &bits, sizeof power);
  return y * power;
}
static inline float exponential(float x) {
  const Floats v = exponential(everywhere(x));
  return v[0];
}

// tanh, to an ulp of 1.
WM_INLINE Floats hyperbolic_tangent(Floats x) {
  x = larger(everywhere(-40.0f), x);
  x = -larger(everywhere(-40.0f), -x);
  return 1.0f - 2.0f / (exponential(x + x) + 1.0f);
}

// What is attended to; keys and values are [batch, slots, key_heads, dims], plain or with a scale for each head of a slot.
struct Call {
  int64_t batch, queries, heads, key_heads, dims, value_dims, slots;
  WmElement element;
  const float* q;  // [batch, queries, heads, dims]
  const uint8_t *k, *v;
  const float *k_scales, *v_scales;  // [batch, slots, key_heads], or null
  const int32_t *at, *slot;          // [batch, queries], [batch, slots]
  const int32_t* segment;            // [batch, queries], of slots too, which are as many; or null
  const float* sinks;                // [heads], or null
  float scale, softcap;              // a cap of 0 is none
  int64_t window;                    // 0: none
  bool causal;
  float* out;            // [batch, queries, heads, value_dims]
  float *top, *whole;    // [batch, queries, heads]: the largest logit, and Σ e^(logit - largest); sinks are logits too

  bool plain() const { return softcap == 0 && k_scales == nullptr && v_scales == nullptr && segment == nullptr; }
  int64_t group() const { return heads / key_heads; }
  int64_t wide_dims() const { return (dims + LANES - 1) / LANES * LANES; }
  int64_t wide_values() const { return (value_dims + WIDE - 1) / WIDE * WIDE; }
  int64_t most_rows() const { return queries * group() < ROWS ? queries * group() : ROWS; }
};

// What rows have found in some slots: sums weighted by e^(logit - largest), [rows][wide_values]; the sum of weights; the
// largest logit. In that order in `found`, rows apart by `most_rows`.
static inline int64_t found_floats(const Call& c) { return c.most_rows() * (c.wide_values() + 2); }

// y [M, WIDE] = y · kept + a [M, depth] · b [depth, WIDE]. TURNED: a is [depth, M].
template <int M, bool TURNED>
static void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth, const float* kept,
                     float* y, int64_t y_stride) {
  Floats sum[M][2];
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 2; ++j) sum[m][j] = kept ? load(y + m * y_stride + j * LANES) * kept[m] : Floats{};
  for (int64_t k = 0; k < depth; ++k, b += b_stride) {
    const Floats b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Floats v = everywhere(a[TURNED ? k * a_stride + m : m * a_stride + k]);
      sum[m][0] = fused(v, b0, sum[m][0]);
      sum[m][1] = fused(v, b1, sum[m][1]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 2; ++j) store(y + m * y_stride + j * LANES, sum[m][j]);
}

using Multiply = void (*)(const float*, int64_t, const float*, int64_t, int64_t, const float*, float*, int64_t);

template <int M, bool TURNED>
static inline Multiply multiply_of(int64_t rows) {
  if constexpr (M == 1) return multiply<1, TURNED>;
  else return rows >= M ? multiply<M, TURNED> : multiply_of<M - 1, TURNED>(rows);
}

// The same of any rows, and of columns that are a multiple of WIDE.
template <bool TURNED = false>
static void multiply_all(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows, int64_t depth,
                         int64_t columns, const float* kept, float* y, int64_t y_stride) {
  for (int64_t r = 0; r < rows; r += MOST) {
    const Multiply some = multiply_of<MOST, TURNED>(rows - r);
    for (int64_t j = 0; j < columns; j += WIDE)
      some(a + r * (TURNED ? 1 : a_stride), a_stride, b + j, b_stride, depth, kept ? kept + r : nullptr, y + r * y_stride + j, y_stride);
  }
}

#if WM_SIMD == 512
WM_INLINE void transpose(Floats v[LANES]) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps((__m512)v[i], (__m512)v[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps((__m512)v[i], (__m512)v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm512_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm512_shuffle_ps(a[i + j], a[i + j + 2], 0xEE);
    }
  for (int i = 0; i < 4; ++i)
    for (int h = 0; h < 2; ++h) {
      a[8 * h + i] = _mm512_shuffle_f32x4(b[8 * h + i], b[8 * h + i + 4], 0x88);
      a[8 * h + i + 4] = _mm512_shuffle_f32x4(b[8 * h + i], b[8 * h + i + 4], 0xDD);
    }
  for (int i = 0; i < 8; ++i) {
    v[i] = (Floats)_mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
    v[i + 8] = (Floats)_mm512_shuffle_f32x4(a[i], a[i + 8], 0xDD);
  }
}
#elif WM_SIMD == 256
WM_INLINE void transpose(Floats v[LANES]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps((__m256)v[i], (__m256)v[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps((__m256)v[i], (__m256)v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xEE);
    }
  for (int i = 0; i < 4; ++i) {
    v[i] = (Floats)_mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    v[i + 4] = (Floats)_mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}
#else
WM_INLINE void transpose(Floats v[LANES]) {
  Floats found[LANES];
  for (int i = 0; i < LANES; ++i)
    for (int j = 0; j < LANES; ++j) found[i][j] = v[j][i];
  std::memcpy(v, found, sizeof found);
}
#endif

// What slots of a tile of one key head are: positions, the first and the last of them, segments and scales; -1 where there
// are fewer slots.
struct Tile {
  alignas(64) int32_t slot[SLOTS], segment[SLOTS];
  alignas(64) float k_scales[SLOTS], v_scales[SLOTS];
  int32_t first, last;
};

// Slots that a thread goes through for some key heads; `index` says which.
struct Some {
  int64_t head, heads;
  const int32_t* index;
  int64_t count;
};

// Keys and values of slots that are read next come into the second cache, a few at each step of what is computed before:
// all heads of a slot, which lie together. What finds out by itself what is read next does not, as heads are read apart.
class Coming {
  static constexpr int BITS = 20;  // of a slot's parts
  const uint8_t *const k, *const v;
  const int64_t first, k_slot, v_slot, k_nbytes, v_nbytes;  // of the batch; from slot to slot; of the heads in one
  const int32_t* next;
  const int32_t* const last;
  const int64_t each;
  int64_t due = 0;

  static int64_t nbytes(const Call& c, int64_t elements) { return elements * bits_of(c.element) / 8; }
  // Not a function that compilers may call: to them it would do nothing.
  WM_METHOD static void lines(const uint8_t* p, int64_t nbytes) {
    for (int64_t byte = 0; byte < nbytes; byte += 64) __builtin_prefetch(p + byte, 0, 2);
  }

 public:
  // SLOTS of them at most; steps: that `take` is called for.
  Coming(const Call& c, int64_t b, const Some& some, int64_t steps)
      : k(c.k + nbytes(c, some.head * c.dims)), v(c.v + nbytes(c, some.head * c.value_dims)), first(b * c.slots),
        k_slot(nbytes(c, c.key_heads * c.dims)), v_slot(nbytes(c, c.key_heads * c.value_dims)),
        k_nbytes(nbytes(c, some.heads * c.dims)), v_nbytes(nbytes(c, some.heads * c.value_dims)), next(some.index),
        last(next + (some.count < SLOTS ? some.count : SLOTS)), each(((last - next) << BITS) / steps + 1) {}
  WM_METHOD void take(int64_t steps) {
    for (due += each * steps; due >> BITS && next != last; due -= 1 << BITS, ++next) {
      lines(k + (first + *next) * k_slot, k_nbytes);
      lines(v + (first + *next) * v_slot, v_nbytes);
    }
  }
};

// What a query sees: slots of positions first … last, of its segment where there are segments.
struct Sight {
  int32_t first, last, segment;

  static Sight of(const Call& c, int64_t b, int64_t query) {
    const int32_t at = c.at[b * c.queries + query];
    return {c.window ? int32_t(at - c.window + 1) : 0, c.causal ? at : INT32_MAX - 1,
            c.segment ? c.segment[b * c.queries + query] : 0};
  }

  // Whether it sees all slots of positions in a range, where there are no segments; -1 is none.
  WM_METHOD bool all(int32_t least, int32_t most) const { return least >= 0 && least >= first && most <= last; }

  // All bits of the lanes whose slots it does not see. No comparison: see decode.h.
  WM_METHOD Ints hidden(const int32_t* slots, const int32_t* segments) const {
    Ints slot, apart = {};
    std::memcpy(&slot, slots, sizeof slot);
    if (segments) {
      std::memcpy(&apart, segments, sizeof apart);
      apart ^= segment;
      apart |= -apart;
    }
    return (slot | (last - slot) | (slot - first) | apart) >> 31;
  }
};

WM_INLINE Floats without(Floats x, Ints hidden, int32_t instead) {
  Ints bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits & ~hidden) | (hidden & instead);
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Which slots a tile has, of `wide` that are room for them.
static void describe(const Call& c, int64_t b, int64_t head, const int32_t* index, int64_t count, int64_t wide, Tile& t) {
  const int64_t first = b * c.slots;
  t.first = INT32_MAX, t.last = -1;
  const auto at = [&](int64_t i) { return (first + index[i]) * c.key_heads + head; };
  for (int64_t i = 0; i < wide; ++i) {
    const int32_t slot = t.slot[i] = i < count ? c.slot[first + index[i]] : -1;
    t.first = slot < t.first ? slot : t.first, t.last = slot > t.last ? slot : t.last;
    if (c.segment) t.segment[i] = i < count ? c.segment[first + index[i]] : 0;
    if (c.k_scales) t.k_scales[i] = i < count ? c.k_scales[at(i)] : 0.0f;
    if (c.v_scales) t.v_scales[i] = i < count ? c.v_scales[at(i)] : 0.0f;
  }
}

#include "attention_weigh.h"
#include "attention_few.h"

#include "attention_many.h"

// Floats that `attend` works in, for so many heads at once.
static inline int64_t scratch_floats(const Call& c, int64_t heads) {
  return c.most_rows() <= FEW ? few_floats(c, heads) : many_floats(c) > few_floats(c, 1) ? many_floats(c) : few_floats(c, 1);
}

// Rows [first, first + rows) of some key heads, over some slots: row r is query r / group of head r % group. What those of
// a head find lies `apart` behind that of the head before. `next`: what the same thread is likely to do then; `foreseen`:
// this was that.
static void attend(const Call& c, int64_t b, const Some& now, const Some& next, bool foreseen, int64_t first,
                   int64_t rows, float* found, int64_t apart, float* scratch) {
  if (!foreseen) Coming(c, b, now, 1).take(1);
  if (rows <= FEW) return attend_few(c, b, now, next, first, rows, found, apart, scratch);
  for (int64_t h = 0; h < now.heads; ++h)
    attend_many(c, b, Some{now.head + h, 1, now.index, now.count}, next, first, rows, found + h * apart, scratch);
}

// The results of rows from what they found in `parts` parts of the slots, in order.
static void finish(const Call& c, int64_t b, int64_t head, int64_t first, int64_t rows, const float* found,
                   int64_t parts) {
  const int64_t group = c.group(), wide = c.wide_values(), most = c.most_rows(), apart = found_floats(c);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t query = (first + r) / group, h = head * group + (first + r) % group;
    const float *sum = found + most * wide + r, *top = sum + most;
    float* out = c.out + ((b * c.queries + query) * c.heads + h) * c.value_dims;
    const float none = -__builtin_inff();
    float largest = c.sinks ? c.sinks[h] : none;
    for (int64_t p = 0; p < parts; ++p) largest = top[p * apart] <= largest ? largest : top[p * apart];
    float whole = c.sinks && largest != none ? exponential(c.sinks[h] - largest) : 0;
    for (int64_t d = 0; d < c.value_dims; ++d) out[d] = 0;
    for (int64_t p = 0; p < parts; ++p) {
      if (top[p * apart] == none) continue;
      const float share = exponential(top[p * apart] - largest);
      whole += share * sum[p * apart];
      for (int64_t d = 0; d < c.value_dims; ++d) out[d] += share * found[p * apart + r * wide + d];
    }
    if (whole != 0)
      for (int64_t d = 0; d < c.value_dims; ++d) out[d] /= whole;
    c.top[(b * c.queries + query) * c.heads + h] = largest;
    c.whole[(b * c.queries + query) * c.heads + h] = whole;
  }
}

}  // namespace attention
