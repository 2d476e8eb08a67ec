// Heads turned by the angles of their positions, in float32 or bfloat16. Included once for each instruction set, after
// floats.h and narrowed.h. Loops are written so that compilers make vectors of them.

namespace rope {

typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));
constexpr int WIDE = 8;  // angles at a time

// Cosine and sine of WIDE angles, nearly the nearest float32: by quarter turns, of which there may be 2²⁰ before the
// remainder loses bits, and with the polynomials of FreeBSD's k_cosf.c and k_sinf.c.
static inline void turns(const float* angle, float* cos, float* sin) {
  constexpr double MAGIC = 0x1.8p52;  // what is added to it is rounded to an integer
  Doubles a;
  for (int l = 0; l < WIDE; ++l) a[l] = double(angle[l]);
  const Doubles shifted = a * 0.63661977236758134308 + MAGIC, n = shifted - MAGIC;
  const Doubles r = (a - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;  // π/2: 33 bits, and the rest
  const Doubles z = r * r;
  Doubles s = 2.7183114939898219064e-6 * z - 1.98393348360966317347e-4;
  s = (s * z + 8.3333293858894631756e-3) * z - 0.166666666416265235595;
  s = s * z * r + r;
  Doubles c = 2.43904487962774090654e-5 * z - 1.38867637746099294692e-3;
  c = (c * z + 4.16666233237390631894e-2) * z - 0.499999997251031003120;
  c = c * z + 1.0;
  Longs quarter, cosine, sine;
  std::memcpy(&quarter, &shifted, sizeof quarter);
  std::memcpy(&cosine, &c, sizeof cosine);
  std::memcpy(&sine, &s, sizeof sine);
  const Longs odd = -(quarter & 1), other = (cosine ^ sine) & odd;
  cosine = (cosine ^ other) ^ (((quarter + 1) & 2) << 62);
  sine = (sine ^ other) ^ ((quarter & 2) << 62);
  Doubles found[2];
  std::memcpy(&found[0], &cosine, sizeof cosine);
  std::memcpy(&found[1], &sine, sizeof sine);
  for (int l = 0; l < WIDE; ++l) cos[l] = float(found[0][l]), sin[l] = float(found[1][l]);
}

struct Call {
  int64_t rows, heads, dims, half;
  const int32_t* at;      // [rows]
  const float* inv_freq;  // [half]
  float concentration;
  bool interleaved;

  int64_t wide() const { return (half + WIDE - 1) / WIDE * WIDE; }
};

// Rows first … last of x [rows, heads, dims]; `angles` has room for 3 · wide.
template <typename E>
static void turn(const Call& c, const E* x, E* y, int64_t first, int64_t last, float* angles) {
  float *cos = angles + c.wide(), *sin = cos + c.wide();
  for (int64_t i = 0; i < c.wide(); ++i) angles[i] = 0;
  for (int64_t row = first; row < last; ++row) {
    for (int64_t i = 0; i < c.half; ++i) angles[i] = float(c.at[row]) * c.inv_freq[i];
    for (int64_t i = 0; i < c.half; i += WIDE) turns(angles + i, cos + i, sin + i);
    for (int64_t i = 0; i < c.half; ++i) cos[i] *= c.concentration, sin[i] *= c.concentration;
    for (int64_t h = 0; h < c.heads; ++h) {
      const E* from = x + (row * c.heads + h) * c.dims;
      E* to = y + (row * c.heads + h) * c.dims;
      if (c.interleaved)
        for (int64_t i = 0; i < c.half; ++i) {
          const float a = widened(from[2 * i]), b = widened(from[2 * i + 1]);
          narrowed(a * cos[i] - b * sin[i], to + 2 * i);
          narrowed(b * cos[i] + a * sin[i], to + 2 * i + 1);
        }
      else
        for (int64_t i = 0; i < c.half; ++i) {
          const float a = widened(from[i]), b = widened(from[c.half + i]);
          narrowed(a * cos[i] - b * sin[i], to + i);
          narrowed(b * cos[i] + a * sin[i], to + c.half + i);
        }
      std::memcpy(to + 2 * c.half, from + 2 * c.half, size_t(c.dims - 2 * c.half) * sizeof(E));
    }
  }
}

}  // namespace rope
