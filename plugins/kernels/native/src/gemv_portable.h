// Loaders of gemv.h for any machine: elements in their order, as many at a time as a table of all their codes stays in
// the nearest cache.
template <int BITS>
struct Codes16 : Floats {
  static constexpr bool PLAIN = false;
  static constexpr int GROUP = 16, VECS = GROUP / LANES, NBYTES = 2 * BITS, GRAIN = 16;
  static constexpr int TOGETHER = BITS == 2 ? 4 : BITS <= 4 ? 2 : 1;
  static constexpr int place(int k) { return k; }
  struct Codes {
    float value[GROUP];
  };
  float unit = 1;
  float table[1 << BITS * TOGETHER][TOGETHER];
  explicit Codes16(WmElement e) {
    for (int c = 0; c < 1 << BITS * TOGETHER; ++c)
      for (int i = 0; i < TOGETHER; ++i) table[c][i] = element_values(e)[c >> BITS * i & ((1 << BITS) - 1)];
  }
  WM_METHOD Codes load(const uint8_t* p) const {
    Codes c;
    constexpr int STEP = BITS * TOGETHER;
#pragma GCC unroll 16
    for (int i = 0; i < GROUP / TOGETHER; ++i) {
      uint32_t code = p[i * STEP / 8];
      if (STEP % 8) {
        if (i * STEP % 8 + STEP > 8) code |= uint32_t(p[i * STEP / 8 + 1]) << 8;
        code = code >> i * STEP % 8 & ((1u << STEP) - 1);
      }
      std::memcpy(c.value + i * TOGETHER, table[code], sizeof table[0]);
    }
    return c;
  }
  WM_METHOD V value(const Codes& c, int j) const { return gemv::load(c.value + j * LANES); }
};

template <int BITS>
using Few = Codes16<BITS>;
using Six = Codes16<6>;
using Int8 = Codes16<8>;
using Uint8 = Int8;
using E4m3 = Codes16<8>;
using E5m2 = E4m3;

template <typename T, WmScale KIND>
struct Plain : Floats {
  static constexpr bool PLAIN = true;
  static constexpr int GROUP = 32, VECS = GROUP / LANES, GRAIN = 32, NBYTES = GROUP * int(sizeof(T));
  static constexpr int place(int k) { return k; }
  using Codes = const uint8_t*;
  float unit = 1;
  explicit Plain(WmElement) {}
  WM_METHOD Codes load(const uint8_t* p) const { return p; }
  WM_METHOD V value(Codes p, int j) const {
    return scales_at<KIND, T>(p + j * LANES * int64_t(sizeof(T)));
  }
};

using PlainF32 = Plain<int32_t, WM_SCALE_F32>;
using PlainBf16 = Plain<uint16_t, WM_SCALE_BF16>;
using PlainF16 = Plain<uint16_t, WM_SCALE_F16>;

using Nf4 = Few<4>;
