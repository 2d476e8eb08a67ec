// Columns that make good what earlier ones lost, some rows at a time, whose errors stay in L1 cache. Included once for
// each instruction set, after quantize_strip.h.
//
// In float64, a product and then a difference rounded, of earlier columns first: in the order of
// plugins/kernels/gptq/reference.

typedef double VD __attribute__((vector_size(WIDTH)));
typedef double InMemoryD __attribute__((vector_size(WIDTH), aligned(8), may_alias));
constexpr int IN_VD = WIDTH / 8, VDS = TILE_ROWS / IN_VD;

struct alignas(64) Tile {
  Strip s;
  double w[TILE_ROWS];
};

// w[0 … TILE_ROWS) less `count` errors, [count, TILE_ROWS], each times its factor.
static inline void less(double* w, const double* factors, const double* errors, int64_t count) {
  VD acc[VDS];
  for (int i = 0; i < VDS; ++i) acc[i] = *reinterpret_cast<const InMemoryD*>(w + i * IN_VD);
  for (int64_t j = 0; j < count; ++j, errors += TILE_ROWS) {
    const VD f = factors[j] - VD{};
    for (int i = 0; i < VDS; ++i) acc[i] = acc[i] - f * *reinterpret_cast<const InMemoryD*>(errors + i * IN_VD);
  }
  for (int i = 0; i < VDS; ++i) *reinterpret_cast<InMemoryD*>(w + i * IN_VD) = acc[i];
}

// factors: `upper` with rows and columns exchanged. errors: [count, TILE_ROWS], to work with.
static void columns(const QuantizeCall& q, const ColumnsCall& c, const double* factors, double* errors, Tile& t) {
  QuantizeCall each = q;  // as if every value had a block of its own
  each.block_elems = 1, each.n = TILE_ROWS;
  Strip& s = t.s;
  const Blocks none{};
  for (int64_t r = 0; r < c.rows; r += TILE_ROWS) {
    const size_t rows = size_t(c.rows - r < TILE_ROWS ? c.rows - r : TILE_ROWS);
    for (int64_t k = 0; k < c.count; ++k) {
      std::memcpy(t.w, c.w + k * c.rows + r, rows * sizeof(double));
      less(t.w, factors + k * c.count, errors, k);
      const float* shared = c.shares + c.columns[k] / q.block_elems * c.rows + r;
      float* const spread_to[SHARES] = {s.divisor, s.total, s.point, s.minimum, s.stored_minimum};
      const bool used[SHARES] = {true, true, q.zero == WM_ZERO_INT, q.zero == WM_ZERO_MIN_F16,
                                 q.zero == WM_ZERO_MIN_F16};
      for (int i = 0; i < SHARES; ++i)
        if (used[i]) std::memcpy(spread_to[i], shared + i * c.blocks * c.rows, rows * sizeof(float));
      for (int i = 0; i < TILE_ROWS; ++i) s.v[i] = float(t.w[i]);
      Lanes lanes;
      code_any(each, none, s, 0, TILE_ROWS, &lanes, s.y);
      std::memcpy(c.codes + c.columns[k] * c.rows + r, s.code, rows);
      const double diagonal = factors[k * c.count + k];
      double* error = errors + k * TILE_ROWS;
      for (int i = 0; i < TILE_ROWS; ++i) error[i] = (t.w[i] - double(s.y[i])) / diagonal;
      std::memcpy(c.errors + k * c.rows + r, error, rows * sizeof(double));
    }
  }
}
