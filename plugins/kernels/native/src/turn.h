// Matrices whose rows, not columns, are neighbours in memory. Included once for each instruction set.

// [cols][rows] with rows as neighbours → [rows][cols]; pieces of 16 bytes at a time.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define WM_SHUFFLES 1
#endif
#endif
static inline void turn_piece(const uint16_t* x, int64_t stride, uint16_t* out, int64_t out_stride) {
#if WM_SHUFFLES
  typedef uint16_t V __attribute__((vector_size(16)));
  typedef uint16_t InMemory __attribute__((vector_size(16), aligned(2), may_alias));
  V a[8], b[8];
  for (int k = 0; k < 8; ++k) a[k] = *reinterpret_cast<const InMemory*>(x + k * stride);
  for (int step = 0; step < 3; ++step) {
    for (int k = 0; k < 4; ++k) {
      b[2 * k] = __builtin_shufflevector(a[k], a[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * k + 1] = __builtin_shufflevector(a[k], a[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int k = 0; k < 8; ++k) a[k] = b[k];
  }
  for (int k = 0; k < 8; ++k) *reinterpret_cast<InMemory*>(out + k * out_stride) = a[k];
#else
  InMemory16* const codes = reinterpret_cast<InMemory16*>(out);
  for (int k = 0; k < 8; ++k)
    for (int r = 0; r < 8; ++r) codes[r * out_stride + k] = x[k * stride + r];
#endif
}
static inline void turn_piece(const uint32_t* x, int64_t stride, uint32_t* out, int64_t out_stride) {
#if WM_SHUFFLES
  typedef uint32_t V __attribute__((vector_size(16)));
  typedef uint32_t InMemory __attribute__((vector_size(16), aligned(4), may_alias));
  V a[4], b[4];
  for (int k = 0; k < 4; ++k) a[k] = *reinterpret_cast<const InMemory*>(x + k * stride);
  for (int step = 0; step < 2; ++step) {
    for (int k = 0; k < 2; ++k) {
      b[2 * k] = __builtin_shufflevector(a[k], a[k + 2], 0, 4, 1, 5);
      b[2 * k + 1] = __builtin_shufflevector(a[k], a[k + 2], 2, 6, 3, 7);
    }
    for (int k = 0; k < 4; ++k) a[k] = b[k];
  }
  for (int k = 0; k < 4; ++k) *reinterpret_cast<InMemory*>(out + k * out_stride) = a[k];
#else
  for (int k = 0; k < 4; ++k)
    for (int r = 0; r < 4; ++r) out[r * out_stride + k] = x[k * stride + r];
#endif
}

// The same of all of a tile, whose rows are TALL_STRIP apart then.
template <typename U>
static void turn(const U* x, int64_t stride, int64_t rows, int64_t cols, U* out) {
  constexpr int N = 16 / int(sizeof(U));
  for (int64_t c = 0; c < cols; c += N) {
    int64_t r = 0;
    if (c + N <= cols)
      for (; r + N <= rows; r += N) turn_piece(x + r + c * stride, stride, out + r * TALL_STRIP + c, TALL_STRIP);
    for (; r < rows; ++r)
      for (int64_t k = c; k < cols && k < c + N; ++k) out[r * TALL_STRIP + k] = x[r + k * stride];
  }
}
