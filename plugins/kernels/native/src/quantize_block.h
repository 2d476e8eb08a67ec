// quantize for every block format, strip by strip: extremes of blocks, what each block shares, codes, sums of errors.
//
// A region is the least piece of a matrix that holds its blocks whole: a strip of a row, or a band of rows, or the
// matrix; one that is no single tile is read twice. What happens on a strip is in quantize_strip.h.
//
// All arithmetic is float32, one rounding an operation, in the order of plugins/kernels/quantize/reference. Included
// once for each instruction set (each_isa.h).
#include "codes.h"
#include "extremes.h"
#include "block_scales.h"
#include "error_sums.h"
#include "turn.h"
#include "quantize_patterns.h"
#include "quantize_strip.h"
#include "quantize_search.h"

// One call: the matrix, region by region.
template <typename T>
struct Coder {
  QuantizeCall& q;
  const Region region;
  Blocks b;
  Searched searched;
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

  // Has a part of the tile after this one on its way with each row of this one: no processor foresees columns that lie
  // pages apart. Inlined by force: GCC drops calls of what does nothing but this.
  inline __attribute__((always_inline)) void fetch_after(int64_t r, int64_t rows, int64_t c, int64_t cols,
                                                         int64_t k) const {
    constexpr int64_t PART = TALL_STRIP / TALL_ROWS;
    c += cols;
    if (c >= q.n) c = 0, r += rows;
    if (r >= q.rows) return;
    const int64_t first = c + k * PART, end = first + PART < q.n ? first + PART : q.n;
    const int64_t last = (r + rows < q.rows ? r + rows : q.rows) - 1;
    for (int64_t i = first; i < end; ++i) __builtin_prefetch(at(r, i), 0, 2), __builtin_prefetch(at(last, i), 0, 2);
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
        for (int64_t k = 0; k < rows; ++k) {
          if (region.tall) fetch_after(r, rows, c, cols, k);
          of(x + k * stride, r + k, c - c0, cols);
        }
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
    if (q.ends == WM_ENDS_FIRST)
      for (int64_t i = 0; i < count; ++i) b.high[i] = b.high[i] < -b.low[i] ? b.low[i] : b.high[i];
    for (int64_t i = 0; i < count; ++i) {
      const float l = b.low[i], h = b.high[i];
      if (!(q.ends == WM_ENDS_FIRST ? h == -l : q.zero == WM_ZERO_MIN_F16 && l == 0)) continue;
      const int64_t r = r0 + i / across * band, end = r + band < q.rows ? r + band : q.rows;
      const float first = first_of(std::fabs(l), r, end, c0 + i % across * q.block_elems);
      (q.ends == WM_ENDS_FIRST ? b.high : b.low)[i] = first;
    }
  }

  // What the blocks of a region share under option `o`, and what they lose then.
  WmFound lost(int64_t o, int64_t r0, int64_t r1, int64_t c0, int64_t c1, int64_t count, int64_t across, double* sums) {
    for (int64_t i = 0; i < count + LANES; ++i) b.tried[i] = q.tried[o], sums[i] = 0;  // of whole registers
    const WmFound found = share(q, b, count);
    if (found == WM_NOT_FINITE) return found;
    each_strip(r0, r1, c0, c1, [&](const T* x, int64_t r, int64_t first, int64_t cols) {
      const int64_t at = (r - r0) / q.block_rows * across;
      lose(q, b.from(at), s, x, first, cols, q.importance == nullptr ? nullptr : q.importance + c0 + first, sums + at);
    });
    for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] == sums[i] ? sums[i] : std::numeric_limits<double>::infinity();
    return WM_DONE;
  }

  // What the blocks of a region share under the option that loses least, the earlier of equals.
  WmFound search(int64_t r0, int64_t r1, int64_t c0, int64_t c1, int64_t count, int64_t across) {
    const int32_t reach = q.reach;
    const Searched& of = searched;
    if (const WmFound found = lost(0, r0, r1, c0, c1, count, across, of.least)) return found;
    for (int64_t i = 0; i < count; ++i) of.chosen[i] = q.tried[0];
    for (int64_t o = 1; o < q.options; ++o) {
      lost(o, r0, r1, c0, c1, count, across, of.sum);
      for (int64_t i = 0; i < count; ++i) {
        const bool better = of.sum[i] < of.least[i];
        of.least[i] = better ? of.sum[i] : of.least[i];
        of.chosen[i] = better ? q.tried[o] : of.chosen[i];
      }
    }
    for (int64_t i = 0; i < count; ++i) b.tried[i] = of.chosen[i];
    q.reach = reach;  // what was tried and not taken is not stored
    return share(q, b, count);
  }

  // What `count` blocks of row r, from the block `first` on, share: to q.shares. A row of scales has `blocks`.
  void share_out(int64_t r, int64_t first, int64_t blocks, int64_t count) {
    const float* shared[SHARES] = {b.divisor, b.total, b.point, b.minimum, b.stored_minimum};
    const bool used[SHARES] = {true, true, q.zero == WM_ZERO_INT, q.zero == WM_ZERO_MIN_F16, q.zero == WM_ZERO_MIN_F16};
    for (int k = 0; k < SHARES; ++k)
      for (int64_t i = 0; used[k] && i < count; ++i) q.shares[(k * blocks + first + i) * q.rows + r] = shared[k][i];
  }

  WmFound one(int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const int64_t band = q.block_rows, width = q.block_elems;
    const int64_t across = (c1 - c0 + width - 1) / width, down = (r1 - r0 + band - 1) / band;
    const int64_t row_of_scales = (q.n + width - 1) / width;
    resident = nullptr;
    find_ends(r0, r1, c0, c1, down * across, across);
    const int64_t count = down * across;
    if (const WmFound found = q.options == 0 ? share(q, b, count) : search(r0, r1, c0, c1, count, across)) return found;
    if (q.shares != nullptr) share_out(r0, c0 / width, row_of_scales, across);
    for (int64_t d = 0; d < down; ++d)
      keep(q, b.from(d * across), across, (r0 / band + d) * row_of_scales + c0 / width);
    if (q.shares != nullptr) return WM_DONE;
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

  // Rows [r0, r1), region by region of columns [c0, c1).
  WmFound some(int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    for (int64_t r = r0; r < r1; r += region.rows)
      for (int64_t c = c0; c < c1; c += region.cols)
        if (const WmFound found = one(r, r + region.rows < r1 ? r + region.rows : r1, c,
                                      c + region.cols < c1 ? c + region.cols : c1))
          return found;
    return WM_DONE;
  }

  WmFound all() {
    int64_t r = 0;
    if (upright(q, at(0, 0))) {
      for (; r + UPRIGHT <= q.rows; r += UPRIGHT)
        for (int64_t c = 0; c < q.n; c += q.block_elems) {
          if (code_upright(q, b, at(r, c), r, c, sums)) continue;
          const int64_t end = c + q.block_elems < q.n ? c + q.block_elems : q.n;
          if (const WmFound found = some(r, r + UPRIGHT, c, end)) return found;
        }
    }
    return some(r, q.rows, 0, q.n);
  }
};

template <typename T>
static WmFound quantize_as(QuantizeCall& q, const Region& region, char* scratch, Sums* sums) {
  Strip& s = *reinterpret_cast<Strip*>(scratch);
  scratch += sizeof(Strip);
  T* tile = reinterpret_cast<T*>(scratch);
  scratch += TALL_ROWS * TALL_STRIP * 4;
  const int64_t each = array_bytes(region);
  const auto array = [&](int k) { return reinterpret_cast<float*>(scratch + k * each); };
  const bool searches = q.options != 0;
  const Blocks b{array(0), array(1), array(2), array(3), array(4), array(5), array(6),
                 reinterpret_cast<int32_t*>(array(7)), reinterpret_cast<int32_t*>(array(8)),
                 searches ? array(BLOCK_ARRAYS) : nullptr, false};
  Searched searched{};
  if (searches)
    searched = {array(BLOCK_ARRAYS + 1), reinterpret_cast<double*>(array(BLOCK_ARRAYS + 2)),
                reinterpret_cast<double*>(array(BLOCK_ARRAYS + 4))};
  Coder<T> coder{q, region, b, searched, s, tile, sums};
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
  Coder<T> coder{const_cast<QuantizeCall&>(q), region, Blocks{}, Searched{}, *reinterpret_cast<Strip*>(scratch),
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
