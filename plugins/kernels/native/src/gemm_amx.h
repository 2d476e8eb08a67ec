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

// The same of E2M1 as they are made, where no scale is near an end of float32: their exponents are added. Whether none is.
static bool make_moderate(const Part& p, int half, int32_t* out) {
  using Squares = gemm::Squares<4>;
  constexpr int32_t LEAST = 8 << 23, MOST = 247 << 23;
  const int64_t columns = blocks_of(p.depth) * BLOCK;
  Ints wrong = {};
  for (int64_t b = 0; b * BLOCK < columns; ++b) {
    const Ints scale = (Ints)load(p.scales_of(half, p.k + b * BLOCK));
    wrong |= (scale < LEAST) | (scale > MOST);
  }
  if (_mm512_test_epi32_mask((__m512i)wrong, (__m512i)wrong)) return false;
  const Ints table = gemm_bf16::halves<WM_E2M1>();
  Squares squares(p, half);
  out += half * LANES;
  __m512i exponents = {};
  for (int64_t k = 0; k < columns; k += Squares::COLUMNS) {
    Ints lanes[LANES];
    squares.read(p.depth - k, lanes);
    const int64_t groups = least(Squares::GROUPS, (columns - k) / Squares::PER);
    for (int64_t g = 0; g < groups; ++g) {
      if (g % (BLOCK / Squares::PER) == 0) {
        const Ints one = ((Ints)load(p.scales_of(half, p.k + k + g * Squares::PER)) - (127 << 23)) >> 16;
        exponents = (__m512i)((one & 0xFFFF) | one << 16);
      }
#pragma GCC unroll 4
      for (int i = 0; i < Squares::PER / 2; ++i, out += STRIP) {
        const __m512i found = (__m512i)gemm_bf16::pair<WM_E2M1>(lanes + g, i, table);
        const __mmask32 some = _mm512_test_epi16_mask(found, _mm512_set1_epi16(0x7FFF));
        _mm512_storeu_si512(out, _mm512_mask_add_epi16(found, some, found, exponents));
      }
    }
  }
  return true;
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
WM_INLINE void keep(float* to, int64_t stride) {
  WM_TILE_STORE(0, to, stride * 4);
  WM_TILE_STORE(1, to + LANES, stride * 4);
  if (BOTH) {
    WM_TILE_STORE(2, to + 16 * stride, stride * 4);
    WM_TILE_STORE(3, to + 16 * stride + LANES, stride * 4);
  }
}

// What comes next into cache while the unit is at work: `lines` of it for each block.
struct Soon {
  const int32_t* at;
  int64_t lines;

  WM_METHOD void come() {
    for (int64_t i = 0; i < lines; ++i, at += 16) __builtin_prefetch(at, 0, 2);
  }
};

// Some blocks of a strip and of a tile of activations, and where their sums are and go, rows `stride` apart.
struct Work {
  const int32_t *w, *x;
  const float* units;  // [block][STRIP]
  int64_t blocks, height;
  float *sums, *to;  // sums [height][STRIP]
  int64_t stride;
  bool add;
  Soon soon;
};

template <int PARTS, bool BOTH>
static void tile(Work q) {
  if (q.add) {
    WM_TILE_LOAD(0, q.sums, STRIP * 4);
    WM_TILE_LOAD(1, q.sums + LANES, STRIP * 4);
    if (BOTH) {
      WM_TILE_LOAD(2, q.sums + 16 * STRIP, STRIP * 4);
      WM_TILE_LOAD(3, q.sums + 16 * STRIP + LANES, STRIP * 4);
    }
  } else {
    clear<BOTH>();
  }
  for (int64_t b = 0; b < q.blocks; ++b, q.w += PAIRS * STRIP, q.x += PARTS * q.height * PAIRS) {
    add_block<PARTS, BOTH>(q.w, q.x, q.height);
    q.soon.come();
  }
  keep<BOTH>(q.to, q.stride);
}

// The same where blocks have scales, which meet the sums of one while the unit makes the next.
template <int PARTS, bool BOTH>
static void scaled_tile(Work q) {
  alignas(64) float block[2][TALL * STRIP];
  const auto scale = [&](int64_t b) {
    const float *own = block[b % 2], *unit = q.units + b * STRIP;
    const Floats unit0 = load(unit), unit1 = load(unit + LANES);
    const bool last = b == q.blocks - 1, add = q.add || b > 0;
    float* to = last ? q.to : q.sums;
    for (int64_t r = 0; r < q.height; ++r, to += last ? q.stride : STRIP) {
      const float* sums = q.sums + r * STRIP;
      store(to, gemm::fused(load(own + r * STRIP), unit0, add ? load(sums) : Floats{}));
      store(to + LANES, gemm::fused(load(own + r * STRIP + LANES), unit1, add ? load(sums + LANES) : Floats{}));
    }
  };
  for (int64_t b = 0; b < q.blocks; ++b, q.w += PAIRS * STRIP, q.x += PARTS * q.height * PAIRS) {
    clear<BOTH>();
    add_block<PARTS, BOTH>(q.w, q.x, q.height);
    q.soon.come();
    if (b > 0) scale(b - 1);
    keep<BOTH>(block[b % 2], STRIP);
  }
  scale(q.blocks - 1);
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
      if (KIND != Kind::POWERS || w.element != WM_E2M1 || !make_moderate(part, half, strip)) {
        make(part, half, strip);
        if (KIND == Kind::POWERS) scale_half(part, half, strip);
      }
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
  // Of the tile that begins at row m, columns k ….
  const auto parts_of = [&](int64_t k, int64_t m) {
    return x + (k / BLOCK * q.count + m * blocks_of(least(deep, n - k))) * PARTS * PAIRS;
  };
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
        // Rows of the result that are neighbours have their last sums at once.
        const bool near = q.assignments[m + height - 1] - q.assignments[m] == height - 1;
        for (int64_t k = from; k < from + columns; k += deep) {
          const int64_t here = blocks_of(least(deep, n - k)), before = (k - from) / BLOCK;
          const bool last_part = k + deep >= from + columns;
          Work work{strips, parts_of(k, m), nullptr, here, height, sums, sums, STRIP, k > 0, {}};
          work.soon = {last_part ? parts_of(from, least(m + height, q.count - 1)) : parts_of(k + deep, m),
                       (height * PARTS * here / count + here - 1) / here};
          for (int64_t s = 0; s < count; ++s) {
            const bool at_once = near && last_part && rows - s * STRIP >= STRIP;
            work.w = strips + (s * blocks + before) * PAIRS * STRIP, work.units = units + (s * blocks + before) * STRIP;
            work.sums = sums + s * TALL * STRIP;
            work.to = at_once ? q.y_of(m) + row + s * STRIP : work.sums, work.stride = at_once ? q.y_stride : STRIP;
            if constexpr (KIND == Kind::SCALED) (height > 16 ? scaled_tile<PARTS, true> : scaled_tile<PARTS, false>)(work);
            else (height > 16 ? tile<PARTS, true> : tile<PARTS, false>)(work);
            work.soon.at += work.soon.lines * here * 16;
          }
        }
        for (int64_t r = 0; r < height; ++r) {
          float* y = q.y_of(m + r) + row;
          for (int64_t s = near ? rows / STRIP : 0; s < count; ++s)
            std::memcpy(y + s * STRIP, sums + (s * TALL + r) * STRIP, size_t(least(STRIP, rows - s * STRIP)) * 4);
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
