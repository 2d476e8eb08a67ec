// A float32 as what is stored. Included once for each instruction set, after floats.h.
static inline void narrowed(float v, float* out) { *out = v; }
static inline void narrowed(float v, Bf16* out) {  // to nearest even; NaN stays one
  uint32_t b;
  std::memcpy(&b, &v, 4);
  const uint32_t near = (b + 0x7FFF + ((b >> 16) & 1)) >> 16;
  out->bits = uint16_t((b & 0x7FFFFFFF) > 0x7F800000 ? b >> 16 | 0x40 : near);
}
