// Codes, scales and minima as the bytes of ggml's structs (ggml-common.h), and matrices as blocks of them: the same as
// `plugins/kernels/codecs/ggml_bytes`. Included once for each instruction set.
#include "superblocks_fit.h"

namespace superblocks {

// Codes of `count` elements as fields of BITS bits: of UNIT bytes all lowest fields first, then all their next ones.
template <int BITS, int UNIT>
static void laid(const uint8_t* codes, int count, int shift, uint8_t* out) {
  constexpr int PER = 8 / BITS, MASK = (1 << BITS) - 1;
  for (int at = 0; at < count; at += PER * UNIT, out += UNIT)
    for (int u = 0; u < UNIT; ++u) {
      int byte = 0;
      for (int i = 0; i < PER; ++i) byte |= (codes[at + i * UNIT + u] >> shift & MASK) << (BITS * i);
      out[u] = uint8_t(byte);
    }
}

static void put_half(uint16_t half, uint8_t* out) { std::memcpy(out, &half, 2); }

static void six_bit_scales(const uint8_t* s, const uint8_t* m, uint8_t* out) {
  for (int i = 0; i < 4; ++i) {
    out[i] = uint8_t(s[i] | (s[i + 4] & 0x30) << 2);
    out[4 + i] = uint8_t(m[i] | (m[i + 4] & 0x30) << 2);
    out[8 + i] = uint8_t((s[i + 4] & 0x0F) | (m[i + 4] & 0x0F) << 4);
  }
}

// `codes` and `scales` are no longer negative, but for the scales of Q6_K, which are bytes.
static void pack(WmElement kind, const uint8_t* codes, const uint8_t* s, const uint8_t* m, uint16_t factor,
                 uint16_t second, uint8_t* out) {
  switch (kind) {
    case WM_Q2_K:
      for (int i = 0; i < 16; ++i) out[i] = uint8_t(s[i] | m[i] << 4);
      laid<2, 32>(codes, 256, 0, out + 16);
      put_half(factor, out + 80), put_half(second, out + 82);
      return;
    case WM_Q3_K:
      laid<1, 32>(codes, 256, 2, out);
      laid<2, 32>(codes, 256, 0, out + 32);
      for (int i = 0; i < 8; ++i) out[96 + i] = uint8_t((s[i] & 0x0F) | (s[i + 8] & 0x0F) << 4);
      for (int i = 0; i < 4; ++i)
        out[104 + i] = uint8_t(s[i] >> 4 | s[i + 4] >> 4 << 2 | s[i + 8] >> 4 << 4 | s[i + 12] >> 4 << 6);
      put_half(factor, out + 108);
      return;
    case WM_Q4_K:
      put_half(factor, out), put_half(second, out + 2);
      six_bit_scales(s, m, out + 4);
      laid<4, 32>(codes, 256, 0, out + 16);
      return;
    case WM_Q5_K:
      put_half(factor, out), put_half(second, out + 2);
      six_bit_scales(s, m, out + 4);
      laid<1, 32>(codes, 256, 4, out + 16);
      laid<4, 32>(codes, 256, 0, out + 48);
      return;
    case WM_Q6_K:
      laid<4, 64>(codes, 256, 0, out);
      laid<2, 32>(codes, 256, 4, out + 128);
      for (int i = 0; i < 16; ++i) out[192 + i] = s[i];
      put_half(factor, out + 208);
      return;
    default: {
      put_half(factor, out);
      uint8_t* rest = out + 2;
      if (kind == WM_Q5_1) put_half(uint16_t(second ^ 0x8000), rest), rest += 2;
      if (kind != WM_IQ4_NL) {
        for (int i = 0; i < 4; ++i) {
          int byte = 0;
          for (int k = 0; k < 8; ++k) byte |= (codes[8 * i + k] >> 4 & 1) << k;
          rest[i] = uint8_t(byte);
        }
        rest += 4;
      }
      laid<4, 16>(codes, 32, 0, rest);
    }
  }
}

// What stands in the way of a value is said by its index.
template <typename T>
static bool read(const SuperblockCall& c, int64_t block, int64_t blocks, int64_t across, int size, float* rows, float* known) {
  bool finite = true;
  for (int64_t b = block; b < block + blocks; ++b, rows += size, known += size) {
    const int64_t row = b / across, column = b % across * size;
    const T* x = static_cast<const T*>(c.x) + row * c.row_stride + column;
    uint32_t most = 0;
    for (int i = 0; i < size; ++i) {
      rows[i] = widened(x[i]);
      uint32_t bits;
      std::memcpy(&bits, rows + i, 4);
      bits &= 0x7FFFFFFF;
      most = bits > most ? bits : most;
    }
    finite &= most < 0x7F800000;
    if (c.importance) std::memcpy(known, c.importance + column, size_t(size) * 4);
  }
  return finite;
}

template <class K>
static void encode(SuperblockCall& c, void* scratch) {
  Tile<K>& tile = *new (scratch) Tile<K>(c);
  const auto read_values = c.dtype == 0 ? read<Bf16> : c.dtype == 1 ? read<F16> : read<float>;
  const WmElement kind = WmElement(c.kind);
  const int size = K::SIZE, nbytes = struct_nbytes(kind);
  const int64_t across = c.n / size, blocks = c.rows * across;
  const int offset = K::BOOK ? 0 : -c.least, scale_offset = kind == WM_Q3_K ? 32 : 0;
  for (int64_t b = 0; b < blocks; b += K::BLOCKS) {
    const int64_t here = blocks - b < K::BLOCKS ? blocks - b : int64_t(K::BLOCKS);
    if (here < K::BLOCKS) std::memset(tile.rows, 0, sizeof tile.rows), std::memset(tile.weights, 0, sizeof tile.weights);
    if (!read_values(c, b, here, across, size, tile.rows[0], tile.weights[0])) {
      const float* values = tile.rows[0];  // of all blocks
      int64_t at = 0;
      while (std::isfinite(values[at])) ++at;
      c.not_finite = b * size + at;
      return;
    }
    tile.solve();
    for (int64_t k = 0; k < here; ++k) {
      const Found<K>& f = tile.found;
      if (is_past(f.factor[k]) && c.factor_past < 0) c.factor_past = (b + k) * size;
      if (K::MINIMA && is_past(f.second[k]) && c.second_past < 0) c.second_past = (b + k) * size;
      uint8_t codes[K::SIZE], scales[K::PER], minima[K::PER];
      const float* q = f.codes[k * K::PER];
      if constexpr (K::BOOK)
        for (int i = 0; i < size; ++i) codes[i] = uint8_t(c.codes[int(q[i]) + 128]);
      else
        for (int i = 0; i < size; ++i) codes[i] = uint8_t(int(q[i]) + offset);
      for (int i = 0; i < K::PER; ++i) {
        scales[i] = K::PER > 1 ? uint8_t(int(f.scales[k * K::PER + i]) + scale_offset) : uint8_t(0);
        minima[i] = K::PER > 1 ? uint8_t(int(f.minima[k * K::PER + i])) : uint8_t(0);
      }
      pack(kind, codes, scales, minima, f.factor[k], f.second[k], c.out + (b + k) * nbytes);
    }
  }
}

}  // namespace superblocks

static void make_superblocks(SuperblockCall& c, void* scratch) {
  using namespace superblocks;
  switch (WmElement(c.kind)) {
    case WM_Q2_K: return encode<Layout<16, 16, true>>(c, scratch);
    case WM_Q3_K: case WM_Q6_K: return encode<Layout<16, 16, false>>(c, scratch);
    case WM_Q4_K: case WM_Q5_K: return encode<Layout<32, 8, true>>(c, scratch);
    case WM_Q5_0: return encode<Layout<32, 1, false>>(c, scratch);
    case WM_Q5_1: return encode<Layout<32, 1, true>>(c, scratch);
    default: return encode<Layout<32, 1, false, true>>(c, scratch);
  }
}

constexpr size_t SUPERBLOCK_SCRATCH = sizeof(superblocks::Tile<superblocks::Layout<32, 8, true>>) + 64;
