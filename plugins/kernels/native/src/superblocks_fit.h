// Scales, minima and codes of ggml's structs: what `plugins/kernels/codecs/superblocks` does, in the same order of
// operations. Included once for each instruction set, after superblocks.h and floats.h.
//
// GROUPS groups at a time stand upright: an element of each in the lanes of a vector, so that what is done for a group is
// done for LANES of them without a sum across lanes. Sums over a group are in NumPy's order: eight of them in turn, and
// then theirs in pairs.
#include "lanes.h"

namespace superblocks {

using decoding::Floats;
using decoding::Ints;
using decoding::LANES;
using gemm::load;
using gemm::store;

constexpr int GROUPS = 16, HALVES = GROUPS / LANES;

WM_INLINE Floats all(float v) { return v - Floats{}; }
#if WM_SIMD == 512
// Of a NaN in `v` and a number the NaN, of one in `v` alone.
WM_INLINE Floats no_less(Floats least, Floats v) { return (Floats)_mm512_max_ps((__m512)least, (__m512)v); }
WM_INLINE Floats no_more(Floats most, Floats v) { return (Floats)_mm512_min_ps((__m512)most, (__m512)v); }
WM_INLINE Floats whole(Floats v) { return (Floats)_mm512_roundscale_ps((__m512)v, 8); }
WM_INLINE Floats root(Floats v) { return (Floats)_mm512_sqrt_ps((__m512)v); }
WM_INLINE Floats gathered(const float* from, Ints at) { return (Floats)_mm512_i32gather_ps((__m512i)at, from, 4); }
#elif WM_SIMD == 256
WM_INLINE Floats no_less(Floats least, Floats v) { return (Floats)_mm256_max_ps((__m256)least, (__m256)v); }
WM_INLINE Floats no_more(Floats most, Floats v) { return (Floats)_mm256_min_ps((__m256)most, (__m256)v); }
WM_INLINE Floats whole(Floats v) { return (Floats)_mm256_round_ps((__m256)v, 8); }
WM_INLINE Floats root(Floats v) { return (Floats)_mm256_sqrt_ps((__m256)v); }
WM_INLINE Floats gathered(const float* from, Ints at) { return (Floats)_mm256_i32gather_ps(from, (__m256i)at, 4); }
#else
WM_INLINE Floats no_less(Floats least, Floats v) { return v < least ? least : v; }
WM_INLINE Floats no_more(Floats most, Floats v) { return v > most ? most : v; }
WM_INLINE Floats whole(Floats v) { return (v + 0x1.8p23f) - 0x1.8p23f; }  // of what is small
WM_INLINE Floats root(Floats v) {
  for (int l = 0; l < LANES; ++l) v[l] = std::sqrt(v[l]);
  return v;
}
WM_INLINE Floats gathered(const float* from, Ints at) {
  Floats found;
  for (int l = 0; l < LANES; ++l) found[l] = from[at[l]];
  return found;
}
#endif
WM_INLINE Floats magnitude(Floats v) { return (Floats)((Ints)v & 0x7FFFFFFF); }
// The whole number nearest to v, of two the even one, between the ends.
WM_INLINE Floats coded(Floats v, Floats least, Floats most) { return whole(no_more(most, no_less(least, v))); }
WM_INLINE Floats inverse_of(Floats v) {
  const Ints some = v != all(0);
  return some ? all(1) / (some ? v : all(1)) : all(0);
}

// float16 of a double, rounded once: NumPy goes by no float32 either.
static uint16_t half_of(double v) {
  uint64_t b;
  std::memcpy(&b, &v, 8);
  const uint16_t sign = uint16_t(b >> 48 & 0x8000);
  b &= ~(uint64_t(1) << 63);
  if (b > uint64_t(0x7FF) << 52) return uint16_t(sign | 0x7E00);
  const int exponent = int(b >> 52) - 1023;
  if (exponent > 15) return uint16_t(sign | 0x7C00);
  if (exponent < -25) return sign;
  const uint64_t digits = (b & ((uint64_t(1) << 52) - 1)) | uint64_t(1) << 52;
  const int drop = exponent < -14 ? 42 + (-14 - exponent) : 42;  // places that float16 has not
  uint64_t kept = digits >> drop;
  const uint64_t rest = digits & ((uint64_t(1) << drop) - 1), middle = uint64_t(1) << (drop - 1);
  kept += rest > middle || (rest == middle && (kept & 1));
  return uint16_t(sign | (exponent < -14 ? kept : kept + (uint64_t(exponent + 14) << 10)));  // a carry is right
}
static float float_of_half(uint16_t h) { return widened(F16{h}); }
static bool is_past(uint16_t h) { return (h & 0x7C00) == 0x7C00; }

struct Two {
  Floats a, b;
  friend WM_METHOD Two operator+(Two x, Two y) { return {x.a + y.a, x.b + y.b}; }
};
struct Three {
  Floats a, b, c;
  friend WM_METHOD Three operator+(Three x, Three y) { return {x.a + y.a, x.b + y.b, x.c + y.c}; }
};

// The sum of f(0) … f(G - 1), as NumPy adds them.
template <int G, class F>
WM_INLINE auto lane_sum(const F& f, int j) {
  auto r = f(j);
#pragma GCC unroll 4
  for (int i = 8; i < G; i += 8) r = r + f(i + j);
  return r;
}
template <int G, class F>
WM_INLINE auto four_lanes(const F& f, int j) {
  const auto a = lane_sum<G>(f, j) + lane_sum<G>(f, j + 1);
  return a + (lane_sum<G>(f, j + 2) + lane_sum<G>(f, j + 3));
}
template <int G, class F>
WM_INLINE auto summed(const F& f) {
  const auto a = four_lanes<G>(f, 0);
  return a + four_lanes<G>(f, 4);
}
// The same of numbers that lie in order, up to 128 of them, a multiple of 8.
template <typename T>
WM_INLINE T tree(const T* r) {
  return ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
}
static float row_sum(const float* x, int count) {
  float r[8];
  for (int j = 0; j < 8; ++j) r[j] = x[j];
  for (int i = 8; i < count; i += 8)
    for (int j = 0; j < 8; ++j) r[j] += x[i + j];
  return tree(r);
}

// Of a kind: elements of a group, groups of a block, whether groups have minima, and codes are of a table.
template <int G_, int PER_, bool MINIMA_, bool BOOK_ = false>
struct Layout {
  static constexpr int G = G_, PER = PER_, BLOCKS = GROUPS / PER, SIZE = G * PER;
  static constexpr bool MINIMA = MINIMA_, BOOK = BOOK_;
};

// What is found for the groups of a tile and its blocks.
template <class K>
struct Found {
  alignas(64) float codes[GROUPS][K::G], scales[GROUPS], minima[GROUPS];
  float loss[K::BLOCKS];
  uint16_t factor[K::BLOCKS], second[K::BLOCKS];

  void take(const Found& other, int block) {
    for (int i = block * K::PER; i < (block + 1) * K::PER; ++i) {
      std::memcpy(codes[i], other.codes[i], sizeof codes[i]);
      scales[i] = other.scales[i], minima[i] = other.minima[i];
    }
    loss[block] = other.loss[block], factor[block] = other.factor[block], second[block] = other.second[block];
  }
};

template <class K>
struct Tile {
  static constexpr int G = K::G;
  typedef float Lying[GROUPS][G];
  typedef float Upright[HALVES][G][LANES];
  const SuperblockCall& call;
  alignas(64) Lying rows, weights;   // values as they lie; first importance, where that is known
  alignas(64) Upright g, w, q;
  alignas(64) float scale[GROUPS], low[GROUPS];
  Found<K> found, again;

  explicit Tile(const SuperblockCall& call) : call(call) {}

  __attribute__((noinline)) static void stand(const Lying& from, Upright& to) {
    for (int h = 0; h < HALVES; ++h)
      for (int e = 0; e < G; e += LANES) {
        Ints v[LANES];
        for (int l = 0; l < LANES; ++l) std::memcpy(&v[l], &from[h * LANES + l][e], sizeof v[l]);
        gemm::transpose(v);
        for (int l = 0; l < LANES; ++l) std::memcpy(to[h][e + l], &v[l], sizeof v[l]);
      }
  }
  __attribute__((noinline)) static void lie(const Upright& from, Lying& to) {
    for (int h = 0; h < HALVES; ++h)
      for (int e = 0; e < G; e += LANES) {
        Ints v[LANES];
        for (int l = 0; l < LANES; ++l) std::memcpy(&v[l], from[h][e + l], sizeof v[l]);
        gemm::transpose(v);
        for (int l = 0; l < LANES; ++l) std::memcpy(&to[h * LANES + l][e], &v[l], sizeof v[l]);
      }
  }

  // How far errors matter, upright and lying.
  void weigh() {
    stand(rows, g);
    if (call.importance) {
      stand(weights, w);
      alignas(64) float spread[GROUPS];
      for (int b = 0; b < K::BLOCKS; ++b) {
        float squares[K::SIZE], sum = 0;
        const float* x = rows[b * K::PER];
        for (int i = 0; i < K::SIZE; ++i) squares[i] = x[i] * x[i];
        if (K::SIZE > 128) sum = row_sum(squares, 128) + row_sum(squares + K::SIZE / 2, K::SIZE / 2);
        else sum = row_sum(squares, K::SIZE);
        for (int i = 0; i < K::PER; ++i) spread[b * K::PER + i] = call.spread * (sum / float(K::SIZE));
      }
      for (int h = 0; h < HALVES; ++h)
        for (int e = 0; e < G; ++e) {
          const Floats x = load(g[h][e]);
          store(w[h][e], load(w[h][e]) * root(load(spread + h * LANES) + x * x) + all(1e-30f));
        }
    } else {
      for (int h = 0; h < HALVES; ++h) {
        const Floats mean = summed<G>([&](int e) { return load(g[h][e]) * load(g[h][e]); }) / all(float(G));
        const Floats size = root(mean);
        for (int e = 0; e < G; ++e) store(w[h][e], size + magnitude(load(g[h][e])) + all(1e-30f));
      }
    }
    lie(w, weights);
  }

  // The scale and the minimum (at most 0) of LANES groups.
  void affine(int h) {
    const float(*x)[LANES] = g[h];
    float(*codes)[LANES] = q[h];
    const float(*weight)[LANES] = w[h];
    Floats low = load(x[0]), high = low;
    for (int e = 1; e < G; ++e) low = no_more(load(x[e]), low), high = no_less(load(x[e]), high);
    low = no_more(all(0), low);
    const Floats span = high > low ? high - low : all(1);
    const Two whole_sums =
        summed<G>([&](int e) { const Floats v = load(weight[e]); return Two{v, v * load(x[e])}; });
    const Floats sw = whole_sums.a, sx = whole_sums.b, zero = all(0), most = all(float(call.most));
    Floats best_scale = zero, best_low = low, least = all(HUGE_VALF);
    for (int t = 0; t < call.tops + call.refits; ++t) {
      const bool fits = t >= call.tops;  // the codes of the best line so far
      const Ints some = best_scale > zero;
      const Floats inverse = !fits ? all(call.grid[t]) / span
                                   : some ? all(1) / (some ? best_scale : all(1)) : zero;
      const Floats start = fits ? best_low : low;
      const Three sums = summed<G>([&](int e) __attribute__((always_inline)) {
        const Floats v = load(x[e]), code = coded((v - start) * inverse, zero, most), wq = load(weight[e]) * code;
        store(codes[e], code);
        return Three{wq, wq * code, wq * v};
      });
      const Floats s1 = sums.a, s2 = sums.b, sxq = sums.c, det = sw * s2 - s1 * s1;
      const Ints line = det > zero;
      Floats scale = line ? (sw * sxq - sx * s1) / det : zero, at = line ? (s2 * sx - s1 * sxq) / det : zero;
      const Ints flat = (at > zero) | (det <= zero);  // a minimum above 0 cannot be written: the best line through 0
      scale = flat ? (s2 > zero ? sxq / s2 : zero) : scale;
      at = flat ? zero : at;
      const Floats loss = summed<G>([&](int e) __attribute__((always_inline)) {
        const Floats off = load(codes[e]) * scale + at - load(x[e]);
        return off * off * load(weight[e]);
      });
      const Ints better = (loss < least) & (scale >= zero);
      best_scale = better ? scale : best_scale, best_low = better ? at : best_low, least = better ? loss : least;
    }
    store(scale + h * LANES, best_scale + zero);
    store(low_of(h), best_low + zero);
  }

  float* low_of(int h) { return low + h * LANES; }

  // What the code nearest to v is worth.
  WM_METHOD Floats worth(Floats v, Floats least, Floats most) const {
    if constexpr (!K::BOOK) return coded(v, least, most);
    Floats twice = v < all(128) ? v : all(128);  // a NaN is past all of them
    twice = no_less(all(-128), twice);
    twice = twice + twice;
    const Ints cut = __builtin_convertvector(twice, Ints);
    const Ints up = cut - (twice > __builtin_convertvector(cut, Floats));
    return gathered(call.book, up + 256);
  }

  // The scale of LANES groups; the value of largest magnitude tends to the most negative code.
  void linear(int h) {
    const float(*x)[LANES] = g[h];
    const float(*weight)[LANES] = w[h];
    const Floats zero = all(0), one = all(1), lowest = all(float(call.least)), highest = all(float(call.most));
    Floats end = load(x[0]), size = magnitude(end);
    for (int e = 1; e < G; ++e) {
      const Floats v = load(x[e]), m = magnitude(v);
      const Ints larger = m > size;
      end = larger ? v : end, size = larger ? m : size;
    }
    const Floats safe = end == zero ? one : end;
    Floats best = zero, most = zero;
    for (int t = 0; t < call.tops + call.refits; ++t) {
      const Floats inverse = t < call.tops ? all(-call.grid[t]) / safe : inverse_of(best);
      const Two sums = summed<G>([&](int e) __attribute__((always_inline)) {
        const Floats v = load(x[e]), code = worth(v * inverse, lowest, highest), wq = load(weight[e]) * code;
        return Two{wq * code, wq * v};
      });
      const Floats scale = sums.a > zero ? sums.b / sums.a : zero, gain = scale * sums.b;
      const Ints better = gain > most;
      best = better ? scale : best, most = better ? gain : most;
    }
    store(scale + h * LANES, best);
  }

  // A block's number of each of its groups, for LANES groups.
  WM_METHOD Floats of_groups(int h, const uint16_t* halves) const {
    alignas(64) float found[LANES];
    for (int l = 0; l < LANES; ++l) found[l] = float_of_half(halves[(h * LANES + l) / K::PER]);
    return load(found);
  }

  // Scales as whole numbers under their factors.
  WM_METHOD Floats rounded(Floats v, Floats factor, Floats least, Floats most) const {
    const Ints some = factor != all(0);
    return coded(some ? v / (some ? factor : all(1)) : all(0), least, most);
  }

  // The best whole numbers near scale and low under the factors of `f`, codes taken anew for each; and the losses.
  void under(Found<K>& f) {
    const Floats zero = all(0), least = all(float(call.least)), most = all(float(call.most));
    const Floats least_scale = all(float(call.least_scale)), most_scale = all(float(call.most_scale));
    alignas(64) float losses[GROUPS];
    for (int h = 0; h < HALVES; ++h) {
      const float(*x)[LANES] = g[h];
      const float(*weight)[LANES] = w[h];
      const Floats factor = of_groups(h, f.factor), second = K::MINIMA ? of_groups(h, f.second) : zero;
      const Floats s0 = rounded(load(scale + h * LANES), factor, least_scale, most_scale);
      const Floats m0 = K::MINIMA ? rounded(-load(low_of(h)), second, least_scale, most_scale) : zero;
      Floats best_s = s0, best_m = m0, best = all(HUGE_VALF);
      for (int t = 0; t < (K::MINIMA ? 9 : 3); ++t) {
        // 0, 0 first, and then the neighbours in order.
        const int place = t == 0 ? 4 : t <= 4 ? t - 1 : t;
        const int i = K::MINIMA ? place / 3 - 1 : t == 0 ? 0 : 2 * t - 3, j = K::MINIMA ? place % 3 - 1 : 0;
        const Floats s = no_more(most_scale, no_less(least_scale, s0 + float(i)));
        const Floats m = K::MINIMA ? no_more(most_scale, no_less(least_scale, m0 + float(j))) : zero;
        const Floats unit = factor * s, less = second * m, inverse = inverse_of(unit);
        const Floats loss = summed<G>([&](int e) __attribute__((always_inline)) {
          const Floats v = load(x[e]);
          const Floats code = coded((K::MINIMA ? v + less : v) * inverse, least, most);
          const Floats off = (K::MINIMA ? code * unit - less : code * unit) - v;
          return load(weight[e]) * off * off;
        });
        const Ints better = loss < best;
        best_s = better ? s : best_s, best_m = better ? m : best_m, best = better ? loss : best;
      }
      const Floats unit = factor * best_s, less = second * best_m, inverse = inverse_of(unit);
      const Ints any = best < all(HUGE_VALF);
      for (int e = 0; e < G; ++e) {
        const Floats v = load(x[e]);
        const Floats code = coded((K::MINIMA ? v + less : v) * inverse, least, most);
        store(q[h][e], any ? code : zero);
      }
      store(f.scales + h * LANES, best_s);
      store(f.minima + h * LANES, best_m);
      store(losses + h * LANES, best);
    }
    lie(q, f.codes);
    for (int b = 0; b < K::BLOCKS; ++b) f.loss[b] = row_sum(losses + b * K::PER, K::PER);
  }

  // The factors that fit the whole numbers and codes of `found` best, for `again`; whether any is another.
  bool fit() {
    constexpr int TERMS = K::MINIMA ? 5 : 2;
    bool moved = false;
    for (int b = 0; b < K::BLOCKS; ++b) {
      double total[TERMS] = {};
      for (int part = 0; part < 2; ++part) {  // 128 elements each
        alignas(64) double r[TERMS][8] = {};
        for (int i = 0; i < K::PER / 2; ++i) {
          const int at = b * K::PER + part * K::PER / 2 + i;
          const float s = found.scales[at], y = found.minima[at];
          for (int e = 0; e < G; e += 8)
            for (int j = 0; j < 8; ++j) {
              const float v = rows[at][e + j], weight = weights[at][e + j], x = found.codes[at][e + j] * s;
              const float wx = weight * x;
              r[0][j] += double(wx * x);
              r[1][j] += double(wx * v);
              if constexpr (K::MINIMA) {
                const float wy = weight * y;
                r[2][j] += double(wx * y);
                r[3][j] += double(wy * y);
                r[4][j] += double(wy * v);
              }
            }
        }
        for (int k = 0; k < TERMS; ++k) total[k] += tree(r[k]);
      }
      const double xx = total[0], xg = total[1], own = float_of_half(found.factor[b]);
      again.factor[b] = found.factor[b], again.second[b] = found.second[b];
      if constexpr (!K::MINIMA) {
        again.factor[b] = half_of(xx > 0 ? xg / xx : own);
      } else {
        const double xy = total[2], yy = total[3], yg = total[4], det = xx * yy - xy * xy;
        const bool fits = det > 1e-6 * xx * yy;
        const double factor = fits ? (xg * yy - xy * yg) / det : own;
        const double second = fits ? (xg * xy - xx * yg) / det : double(float_of_half(found.second[b]));
        if (factor > 0 && second >= 0) again.factor[b] = half_of(factor), again.second[b] = half_of(second);
      }
      moved |= again.factor[b] != found.factor[b] || again.second[b] != found.second[b];
    }
    return moved;
  }

  // Whole numbers under the factors that hold the largest scales; then under those that fit these best.
  void settle() {
    for (int b = 0; b < K::BLOCKS; ++b) {
      const float* s = scale + b * K::PER;
      float end = s[0], largest = -low[b * K::PER];
      for (int i = 1; i < K::PER; ++i) {
        if (K::MINIMA ? s[i] > end : std::fabs(s[i]) > std::fabs(end)) end = s[i];
        if (K::MINIMA && -low[b * K::PER + i] > largest) largest = -low[b * K::PER + i];
      }
      found.factor[b] = half_of(end / float(K::MINIMA ? call.most_scale : call.least_scale));
      found.second[b] = K::MINIMA ? half_of(largest / float(call.most_scale)) : 0;
    }
    under(found);
    for (int k = 0; k < call.settled && fit(); ++k) {
      under(again);
      for (int b = 0; b < K::BLOCKS; ++b)
        if (again.loss[b] < found.loss[b]) found.take(again, b);
    }
    unshrink();
  }

  // Factors that have as much of the values as there is of them.
  void unshrink() {
    for (int b = 0; b < K::BLOCKS; ++b) {
      const float factor = float_of_half(found.factor[b]), second = K::MINIMA ? float_of_half(found.second[b]) : 0;
      double of = 0, has = 0;
      for (int part = 0; part < 2; ++part) {  // 128 elements each, as in `fit`
        alignas(64) double r[2][8] = {};
        for (int i = 0; i < K::PER / 2; ++i) {
          const int at = b * K::PER + part * K::PER / 2 + i;
          const float unit = factor * found.scales[at], less = K::MINIMA ? second * found.minima[at] : 0;
          for (int e = 0; e < G; e += 8)
            for (int j = 0; j < 8; ++j) {
              const float v = rows[at][e + j], wv = weights[at][e + j] * v;
              r[0][j] += double(wv * v);
              r[1][j] += double(wv * (found.codes[at][e + j] * unit - less));
            }
        }
        of += tree(r[0]), has += tree(r[1]);
      }
      if (!(of < call.most_grown * has)) continue;
      found.factor[b] = half_of(double(factor) * (of / has));
      if constexpr (K::MINIMA) found.second[b] = half_of(double(second) * (of / has));
    }
  }

  // Blocks with scales of their own: the same codes again, of the rounded scale and minimum.
  void alone() {
    for (int b = 0; b < GROUPS; ++b) {
      found.factor[b] = half_of(scale[b]);
      found.second[b] = K::MINIMA ? half_of(-low[b]) : 0;
    }
    for (int h = 0; h < HALVES; ++h) {
      const Floats inverse = inverse_of(of_groups(h, found.factor)), less = of_groups(h, found.second);
      for (int e = 0; e < G; ++e)
        store(q[h][e], worth((load(g[h][e]) + less) * inverse, all(float(call.least)), all(float(call.most))));
    }
    lie(q, found.codes);
  }

  void solve() {
    weigh();
    for (int h = 0; h < HALVES; ++h) {
      if constexpr (K::MINIMA) affine(h);
      else linear(h);
    }
    if constexpr (K::PER > 1) settle();
    else alone();
  }
};

}  // namespace superblocks
