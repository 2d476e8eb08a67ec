// Products of many rows with the matrix unit that some machines have (AMX-BF16): 16 rows by 16 by 32 columns of bfloat16
// at a time. Included once, after gemm_bf16.h.
//
// The products are exact. A float32 is the sum of three bfloat16, which take turns, so that float32 activations are
// multiplied exactly too; a bfloat16 is one. Weights are multiplied as what they are with their scales, where bfloat16
// holds that exactly: floats, and whatever has powers of two as its scales. Others are multiplied before their scales, which
// the sums of a block then meet. Sums are float32, rounded to nearest even; what is subnormal counts as 0, as in all
// threads of XLA: of activations under 2^-102 the parts that are, too. Beside an infinite weight float32 activations give
// NaN, whatever else there is.
//
// The unit has eight registers, tiles: four of sums, of 32 rows of activations by a strip of weights, two of activations
// and two of weights. What they hold of rows is told before (`Shape`), and they are given back, as threads that use them
// have more to save.

namespace gemm_amx {

using gemm::Floats;
using gemm::Ints;
using gemm::LANES;
using gemm::STRIP;
using gemm::Part;
using gemm::least;
using gemm::load;
using gemm::store;
using gemm_bf16::BLOCK;
using gemm_bf16::PAIRS;
using gemm_bf16::blocks_of;

constexpr int TALL = 32;               // rows of activations at a time
constexpr int64_t ROWS = 544;          // of activations at a time
constexpr int64_t GROUP_COLUMNS = 12288, MOST_STRIPS = 8;  // of strips together: 768 KiB

// Columns at a time, of activations that are so many parts: a tile of them and of a strip stay in the fastest cache.
template <int PARTS>
static inline int64_t depth_of(int64_t n) { return gemm::even_depth(n, PARTS == 1 ? 256 : 128, BLOCK); }

// ---- The unit ----

// By hand, as compilers take their own for calls that touch no memory.
#define WM_TILE_LOAD(t, p, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(int64_t(stride)) : "memory")
#define WM_TILE_STORE(t, p, stride) \
  asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"(int64_t(stride)) : "memory")
#define WM_TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define WM_TILE_DOT(sum, x, w) asm volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sum ::)

// Rows that tiles have, of 64 bytes: 0 and 1 are sums of the first 16 rows of activations, 2 and 3 of the others, 4 and 5
// these, 6 and 7 are weights.
struct alignas(64) Shape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_nbytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};

  explicit Shape(int64_t height) {
    const uint8_t first = uint8_t(least(16, height)), others = uint8_t(height > 16 ? height - 16 : 1);
    rows[0] = rows[1] = rows[4] = first, rows[2] = rows[3] = rows[5] = others, rows[6] = rows[7] = 16;
  }
  void tell() const { asm volatile("ldtilecfg (%0)" ::"r"(this) : "memory"); }
};
static inline void give_back() { asm volatile("tilerelease" ::); }

// Whether the machine has it and the system lets this process use it, which it wants to be asked.
static bool there() {
  static const bool found = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned BF16 = 1u << 22, TILES = 1u << 24;
    if (!__builtin_cpu_supports("avx512bf16")) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & BF16) == 0 || (d & TILES) == 0) return false;
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM of arch_prctl(2)
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  }();
  return found;
}

// ---- Activations: [block of columns][part of a number][row][pair] ----

// LANES float32 as bfloat16: their upper halves.
WM_INLINE void halve(Ints v, int32_t* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16((__m512i)(v >> 16)));
}

// LANES float32 as three parts whose sum they are, each `apart` after the one before. What is not finite is the first.
WM_INLINE void split(Ints v, int32_t* out, int64_t apart) {
  constexpr int32_t UPPER = int32_t(0xFFFF0000);
  const Ints magnitude = v & 0x7FFFFFFF, finite = magnitude < 0x7F800000, nan = magnitude > 0x7F800000;
  const Ints first = (v & UPPER) | (nan & 0x400000);
  const Floats left = (Floats)((Ints)((Floats)v - (Floats)first) & finite);
  const Ints second = (Ints)left & UPPER;
  halve(first, out);
  halve(second, out + apart);
  halve((Ints)(left - (Floats)second), out + 2 * apart);
}

template <int PARTS>
static int64_t arranged(int64_t n) { return blocks_of(n) * PARTS * PAIRS; }

template <int PARTS>
static void arrange_tile(const GemmRows& q, int64_t i, float* to) {
  const int64_t tiles = (q.count + TALL - 1) / TALL, first = gemm::first_of(q.count, tiles, i);
  const int64_t height = gemm::share(q.count, tiles, i), deep = depth_of<PARTS>(q.n);
  for (int64_t k = 0; k < q.n; k += deep) {
    const int64_t blocks = blocks_of(least(deep, q.n - k));
    int32_t* part = reinterpret_cast<int32_t*>(to) + (k / BLOCK * q.count + first * blocks) * PARTS * PAIRS;
    for (int64_t r = 0; r < height; ++r) {
      const void* x = q.x_of(first + r);
      int32_t* out = part + r * PAIRS;
      for (int64_t b = 0; b < blocks; ++b, out += PARTS * height * PAIRS) {
        const int64_t at = k + b * BLOCK, left = q.n - at;
        if constexpr (PARTS == 1) {
          for (int h = 0; h < 2; ++h) {
            const Ints v = left > h * LANES ? gemm::columns(x, true, at + h * LANES, left - h * LANES) : Ints{};
            halve(v, out + h * PAIRS / 2);
          }
        } else {
          for (int h = 0; h < 2; ++h) {
            const Ints v = left > h * LANES ? gemm::columns(x, false, at + h * LANES, left - h * LANES) : Ints{};
            split(v, out + h * PAIRS / 2, height * PAIRS);
          }
        }
      }
    }
  }
}

// ---- Weights: pairs of columns [pair][STRIP], with their scales where these are powers of two ----

enum class Kind { PLAIN, POWERS, SCALED };

static bool takes(const Weights& w, Kind kind, bool halves) {
  if (kind == Kind::PLAIN) return w.element == WM_BF16;
  if (w.element == WM_E5M2 && !halves) return false;  // it has infinities
  if (!gemm_bf16::takes(w, true)) return false;
  return kind == Kind::SCALED || (w.scale == WM_SCALE_E8M0 && w.second == WM_SECOND_NONE);
}

// Pairs of half a strip by their scales, in place.
static void scale_half(const Part& p, int half, int32_t* out) {
  out += half * LANES;
  for (int64_t b = 0; b < blocks_of(p.depth); ++b) {
    const Floats factor = load(p.scales_of(half, p.k + b * BLOCK));
    for (int i = 0; i < PAIRS; ++i, out += STRIP) {
      const Ints pair = gemm_bf16::load_pairs(out);
      const Ints low = (Ints)((Floats)(pair << 16) * factor), high = (Ints)((Floats)(pair & int32_t(0xFFFF0000)) * factor);
      const Ints found = ((low >> 16) & 0xFFFF) | (high & int32_t(0xFFFF0000));
      std::memcpy(out, &found, sizeof found);
    }
  }
}

// ---- Products ----

// Adds the products of a block: x [part][height][PAIRS], w [PAIRS][STRIP].
template <int PARTS, bool BOTH>
WM_INLINE void add_block(const int32_t* w, const int32_t* x, int64_t height) {
  WM_TILE_LOAD(6, w, STRIP * 4);
  WM_TILE_LOAD(7, w + LANES, STRIP * 4);
  for (int part = PARTS - 1; part >= 0; --part) {  // the smallest first
    const int32_t* own = x + part * height * PAIRS;
    WM_TILE_LOAD(4, own, PAIRS * 4);
    WM_TILE_DOT(0, 4, 6);
    WM_TILE_DOT(1, 4, 7);
    if (BOTH) {
      WM_TILE_LOAD(5, own + 16 * PAIRS, PAIRS * 4);
      WM_TILE_DOT(2, 5, 6);
      WM_TILE_DOT(3, 5, 7);
    }
  }
}

template <bool BOTH>
WM_INLINE void clear() {
  WM_TILE_ZERO(0);
  WM_TILE_ZERO(1);
  if (BOTH) {
    WM_TILE_ZERO(2);
    WM_TILE_ZERO(3);
  }
}

template <bool BOTH>
WM_INLINE void keep(float* sums) {
  WM_TILE_STORE(0, sums, STRIP * 4);
  WM_TILE_STORE(1, sums + LANES, STRIP * 4);
  if (BOTH) {
    WM_TILE_STORE(2, sums + 16 * STRIP, STRIP * 4);
    WM_TILE_STORE(3, sums + 16 * STRIP + LANES, STRIP * 4);
  }
}

// sums [height][STRIP] = (or +=) x · w of some blocks.
template <int PARTS, bool BOTH>
static void tile(const int32_t* w, const int32_t* x, int64_t blocks, int64_t height, float* sums, bool add) {
  if (add) {
    WM_TILE_LOAD(0, sums, STRIP * 4);
    WM_TILE_LOAD(1, sums + LANES, STRIP * 4);
    if (BOTH) {
      WM_TILE_LOAD(2, sums + 16 * STRIP, STRIP * 4);
      WM_TILE_LOAD(3, sums + 16 * STRIP + LANES, STRIP * 4);
    }
  } else {
    clear<BOTH>();
  }
  for (int64_t b = 0; b < blocks; ++b, w += PAIRS * STRIP, x += PARTS * height * PAIRS)
    add_block<PARTS, BOTH>(w, x, height);
  keep<BOTH>(sums);
}

// The same of blocks whose scales are `units` [block][STRIP]; these meet the sums of one while the unit makes the next.
template <int PARTS, bool BOTH>
static void scaled_tile(const int32_t* w, const float* units, const int32_t* x, int64_t blocks, int64_t height,
                        float* sums, bool add) {
  alignas(64) float block[2][TALL * STRIP];
  const auto scale = [&](const float* own, const float* unit, bool added) {
    const Floats unit0 = load(unit), unit1 = load(unit + LANES);
    for (int64_t r = 0; r < height; ++r) {
      const Floats zero = {};
      float *to = sums + r * STRIP, *to1 = to + LANES;
      store(to, gemm::fused(load(own + r * STRIP), unit0, added ? load(to) : zero));
      store(to1, gemm::fused(load(own + r * STRIP + LANES), unit1, added ? load(to1) : zero));
    }
  };
  for (int64_t b = 0; b < blocks; ++b, w += PAIRS * STRIP, x += PARTS * height * PAIRS) {
    clear<BOTH>();
    add_block<PARTS, BOTH>(w, x, height);
    if (b > 0) scale(block[(b - 1) % 2], units + (b - 1) * STRIP, add || b > 1);
    keep<BOTH>(block[b % 2]);
  }
  scale(block[(blocks - 1) % 2], units + (blocks - 1) * STRIP, add || blocks > 1);
}

// Strips that meet activations together, and `columns` of them at a time: their pairs stay in the second cache, and a
// tile's activations in the first one while it goes from strip to strip.
struct Group {
  int64_t columns, strips;
  template <int PARTS>
  static Group of(int64_t n) {
    const int64_t deep = depth_of<PARTS>(n), columns = least((n + deep - 1) / deep, GROUP_COLUMNS / deep) * deep;
    return {columns, least(MOST_STRIPS, GROUP_COLUMNS / columns)};
  }
};

// Strips of weights in order: pairs of all columns of one, then of the next; and so their scales.
template <Kind KIND, int PARTS>
static void make_strip(const Weights& w, Part part, int64_t columns, int32_t* strip, float* units) {
  const gemm::StripDecoder& decoder = gemm::strip_decoder(w);
  const gemm_bf16::MakeHalf make = gemm_bf16::maker(w.element);
  const int64_t deep = depth_of<PARTS>(w.n), end = part.k + columns, scales = gemm::columns_of_scales(w, deep);
  for (int64_t k = part.k, known = k; k < end; k += deep) {
    if (KIND != Kind::PLAIN && k >= known) {
      part.k = k, part.depth = least(scales, end - k), known = k + scales;
      decoder.find_scales(part);
    }
    part.k = k, part.depth = least(deep, end - k);
    for (int half = 0; half < 2; ++half) {
      make(part, half, strip);
      if (KIND == Kind::POWERS) scale_half(part, half, strip);
      for (int64_t b = 0; KIND == Kind::SCALED && b < blocks_of(part.depth); ++b)
        store(units + b * STRIP + half * LANES, load(part.scales_of(half, k + b * BLOCK)));
    }
    strip += blocks_of(part.depth) * PAIRS * STRIP, units += blocks_of(part.depth) * STRIP;
  }
}

// As gemm::product.
template <Kind KIND, int PARTS>
static void product(const Weights& w, int64_t matrix, int64_t first, int64_t last, const GemmRows& q,
                    const float* ordered, float* scratch) {
  const int64_t n = w.n, deep = depth_of<PARTS>(n), tiles = (q.count + TALL - 1) / TALL;
  const Group group = Group::of<PARTS>(n);
  int32_t* strips = reinterpret_cast<int32_t*>(scratch);
  float *units = scratch + GROUP_COLUMNS * STRIP / 2, *scales = units + GROUP_COLUMNS / BLOCK * STRIP;
  float* sums = scales + gemm::SCALES_SCRATCH;
  const int32_t* x = reinterpret_cast<const int32_t*>(ordered);
  int64_t told = 0;  // rows that tiles have
  for (int64_t row = first; row < last; row += group.strips * STRIP)
    for (int64_t from = 0; from < n; from += group.columns) {
      const int64_t columns = least(group.columns, n - from), blocks = blocks_of(columns);
      const int64_t rows = least(last - row, group.strips * STRIP), count = (rows + STRIP - 1) / STRIP;
      for (int64_t s = 0; s < count; ++s) {
        const Part part{w, matrix, row + s * STRIP, least(STRIP, rows - s * STRIP), from, 0, nullptr, scales, 0};
        make_strip<KIND, PARTS>(w, part, columns, strips + s * blocks * PAIRS * STRIP, units + s * blocks * STRIP);
      }
      for (int64_t i = 0, m = 0, height; i < tiles; ++i, m += height) {
        height = gemm::share(q.count, tiles, i);
        if (height != told) Shape(told = height).tell();
        for (int64_t r = 0; r < height; ++r) {
          const float* y = q.y_of(m + r) + row;
          for (int64_t s = 0; s < count; ++s) {
            gemm::will_write(const_cast<float*>(y) + s * STRIP);
            if (from > 0) std::memcpy(sums + (s * TALL + r) * STRIP, y + s * STRIP, size_t(least(STRIP, rows - s * STRIP)) * 4);
          }
        }
        for (int64_t k = from; k < from + columns; k += deep) {
          const int64_t here = blocks_of(least(deep, n - k)), before = (k - from) / BLOCK;
          const int32_t* own = x + (k / BLOCK * q.count + m * here) * PARTS * PAIRS;
          for (int64_t s = 0; s < count; ++s) {
            const int32_t* pairs = strips + (s * blocks + before) * PAIRS * STRIP;
            float* to = sums + s * TALL * STRIP;
            if constexpr (KIND == Kind::SCALED)
              (height > 16 ? scaled_tile<PARTS, true> : scaled_tile<PARTS, false>)(
                  pairs, units + (s * blocks + before) * STRIP, own, here, height, to, k > 0);
            else
              (height > 16 ? tile<PARTS, true> : tile<PARTS, false>)(pairs, own, here, height, to, k > 0);
          }
        }
        for (int64_t r = 0; r < height; ++r) {
          float* y = q.y_of(m + r) + row;
          for (int64_t s = 0; s < count; ++s, y += STRIP)
            if (rows - s * STRIP >= STRIP) std::memcpy(y, sums + (s * TALL + r) * STRIP, STRIP * 4);
            else std::memcpy(y, sums + (s * TALL + r) * STRIP, size_t(rows - s * STRIP) * 4);
        }
      }
    }
  give_back();
}

constexpr int64_t SCRATCH = GROUP_COLUMNS * (STRIP / 2 + STRIP / BLOCK) + gemm::SCALES_SCRATCH + MOST_STRIPS * TALL * STRIP;
template <Kind KIND, int PARTS>
constexpr GemmKernel KERNEL = {STRIP, TALL, ROWS, SCRATCH, arranged<PARTS>, arrange_tile<PARTS>, product<KIND, PARTS>};

template <int PARTS>
static const GemmKernel* kernel(const std::vector<Stack>& stacks) {
  const auto all = [&](Kind kind) {
    const auto one = [&](const Stack& s) { return takes(s.w, kind, PARTS == 1); };
    return std::all_of(stacks.begin(), stacks.end(), one);
  };
  if (all(Kind::PLAIN)) return &KERNEL<Kind::PLAIN, PARTS>;
  if (all(Kind::POWERS)) return &KERNEL<Kind::POWERS, PARTS>;
  return all(Kind::SCALED) ? &KERNEL<Kind::SCALED, PARTS> : nullptr;
}

// For all of these weights; null where there is none.
static const GemmKernel* kernel(const std::vector<Stack>& stacks, bool halves) {
  if (!there()) return nullptr;
  return halves ? kernel<1>(stacks) : kernel<3>(stacks);
}

#undef WM_TILE_LOAD
#undef WM_TILE_STORE
#undef WM_TILE_ZERO
#undef WM_TILE_DOT

}  // namespace gemm_amx
