// Sums of products of a few rows: groups of codes of R rows of weights times those of M rows of activations, in registers.
// Included in gemv.h.

// `far`: ahead of the last row, one byte after the other, whatever the rows are, because a single stream is what memory
// gives fastest; ahead of the first row alone, the last one of the next pass would come too late. `own`: near in its row.
WM_INLINE void ask_far(const uint8_t* far, const Ahead& ahead) {
  if (ahead.second) __builtin_prefetch(far, 0, 2);
  else __builtin_prefetch(far);
}
WM_INLINE void ask_for(const uint8_t* far, const uint8_t* own, const Ahead& ahead) {
  ask_far(far, ahead);
  if (ahead.near) __builtin_prefetch(own);
}

// Whether M rows of activations are so many that sums of a group have no registers beside those of rows: weights are
// scaled then, before they are multiplied. Of four bits and fewer, decoding them once for all rows is quicker (gemm.h).
constexpr int MANY_BITS = 6;
template <class L, int M>
constexpr bool MANY = !L::FIXED && !L::HALVES && WM_SIMD != 0 &&
                      (M > 4 ? 8 * L::NBYTES >= MANY_BITS * L::GROUP : WM_SIMD == 256 && L::PLAIN);

// How scales may come to a loader's products.
template <class L>
constexpr int takes() {
  if constexpr (L::FIXED) return L::TAKES;
  else return set_of(Scaled::ROW) | (L::PLAIN ? 0 : set_of(Scaled::LANES)) | (L::PLAIN || L::HALVES ? 0 : set_of(Scaled::EACH));
}

// Which groups of rows: full ones; the last ones, which are not; or, if these fill half of a group at most, the same of two
// rows as one. Sums are then put where they are without: numbers are the same.
enum class Part { WHOLE, TAIL, HALVES };

// Elements of the first half of these loaders' groups are in the lanes of `lower_half`.
template <class L, int R, Scaled HOW>
constexpr bool HALVED =
    (WM_SIMD == 512 || (WM_SIMD == 256 && L::FIXED)) && R % 2 == 0 && L::NBYTES == 64 && HOW == Scaled::LANES;

// How the codes of R rows are read, one group after the other.
template <class L, int R, Part PART>
struct Stream {
  const Ahead ahead;
  const int64_t row_nbytes, near, ends;
  const uint8_t* const (&codes)[R];
  const uint8_t* const soon;

  // What is near may lie past the end of a row: then in the one R further, which is read as this one's next.
  WM_METHOD Stream(const Gemv& q, const uint8_t* const (&codes)[R])
      : ahead(R == 1 && q.ahead.linear ? Ahead{q.ahead.linear, true, 0, 0} : q.ahead),
        row_nbytes(q.w.row_nbytes()),
        near(ahead.near + q.near_rows * (R - 1) * row_nbytes),
        ends(row_nbytes - q.near_left),
        codes(codes),
        soon(codes[0] + (R - 1) * row_nbytes + ahead.bytes) {}
  // Those `at` bytes on. EACH: of so many rows, one is read, which holds the others too.
  template <int EACH>
  WM_METHOD void read(const L& l, int64_t at, typename L::Codes (&stored)[R]) const {
    const int64_t from = at + near + (at < ends ? 0 : (R - 1) * row_nbytes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#if WM_SIMD == 256
      if constexpr (EACH == 2) {
        if (r % 2 == 0) stored[r] = l.load(codes[r] + at, codes[r + 1] + at);
        continue;
      }
#endif
      if (r % EACH == 0) stored[r] = l.load(codes[r] + at);
      if (PART == Part::WHOLE && (L::NBYTES >= 64 || at % 64 < L::NBYTES))  // once a line
        for (int b = 0; b < L::NBYTES; b += 64) ask_for(soon + R * at + r * L::NBYTES + b, codes[r] + from + b, ahead);
    }
  }
};

// Whether the lanes of a group are of four blocks at most: of some loaders' groups they are, whatever blocks these take.
template <class L>
WM_INLINE bool few(const Gemv& q) {
  return L::GROUP <= 4 * L::GRAIN || q.few;
}

// Rows in a register.
template <Part PART>
constexpr int IN_ONE = PART == Part::HALVES ? 2 : 1;

// By what each lane of group g is scaled. few: for `spread`.
template <bool TAIL>
WM_INLINE V lane_scales(const Gemv& q, const float* s, int64_t g, bool few) {
  const int32_t* which = q.spread + g * LANES;
  const V scale = spread(s + q.first[g], which, few);
  return TAIL ? of_lanes_there(scale, which) : scale;
}

// Groups first … until of R rows of weights, times M rows of activations: added to sum[r][m]. codes: of group `first` of
// each row; s: scales of each row, from its start.
template <class L, int R, int M, Scaled HOW, Part PART>
WM_INLINE void add(const L& l, const Gemv& q, const uint8_t* const (&codes)[R], const float* const (&s)[R],
                   const Arranged* xs, int64_t first, int64_t until, V (&total)[R][M]) {
  V sum[R][M];  // in registers: what is given would be written every time
  std::memcpy(sum, total, sizeof sum);
  // A group is summed in two chains, its even vectors and its odd ones. One row of activations has too few sums to keep a
  // core at work, and makes both at a time; several make one after the other, so that a row's numbers are the same alone
  // and among others.
  constexpr int CHAINS = HOW == Scaled::LANES && L::VECS >= 8 ? 2 : 1;
  constexpr int AT_ONCE = M == 1 ? CHAINS : 1, EACH = IN_ONE<PART>;
  const Stream<L, R, PART> stream(q, codes);
  for (int64_t g = first, at = 0; g < until; ++g, at += L::NBYTES) {
    typename L::Codes stored[R];
    stream.template read<EACH>(l, at, stored);
#pragma GCC unroll 2
    for (int chain = 0; chain < CHAINS; chain += AT_ONCE) {
      V here[AT_ONCE][R][M];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
          for (int c = 0; c < AT_ONCE; ++c) here[c][r][m] = HOW == Scaled::LANES ? V{} : sum[r][m];
#pragma GCC unroll 16
      for (int j = chain; j < L::VECS; j += CHAINS / AT_ONCE) {
        decltype(L::activations(nullptr, 0)) x[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const typename L::X* own = static_cast<const typename L::X*>(xs[m].x) + g * L::GROUP;
          if constexpr (PART == Part::HALVES) in_both(own + j * (L::GROUP / L::VECS), x[m]);
          else x[m] = L::activations(own, j);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r += EACH) {
          const auto w = l.value(stored[r], j);
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) here[j % AT_ONCE][r][m] = L::dot(w, x[m], here[j % AT_ONCE][r][m]);
        }
      }
      if constexpr (PART == Part::HALVES)
#pragma GCC unroll 4
        for (int r = 0; r < R; r += 2)
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int c = 0; c < AT_ONCE; ++c) {
              here[c][r + 1][m] = upper_half(here[c][r][m]);
              here[c][r][m] = lower_half(here[c][r][m]);
            }
      if constexpr (HOW == Scaled::LANES) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const V scale = lane_scales<PART != Part::WHOLE>(q, s[r], g, few<L>(q));
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int c = 0; c < AT_ONCE; ++c) sum[r][m] = fused(here[c][r][m], scale, sum[r][m]);
        }
      } else {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
            for (int c = 0; c < AT_ONCE; ++c) sum[r][m] = here[c][r][m];
      }
    }
  }
  std::memcpy(total, sum, sizeof sum);
}

// The same of many rows of activations.
template <class L, int R, int M, Scaled HOW, Part PART>
WM_INLINE void add_many(const L& l, const Gemv& q, const uint8_t* const (&codes)[R], const float* const (&s)[R],
                        const Arranged* xs, int64_t first, int64_t until, V (&total)[R][M]) {
  V sum[R][M];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) sum[r][m] = total[r][m];
  const Stream<L, R, PART> stream(q, codes);
  for (int64_t g = first, at = 0; g < until; ++g, at += L::NBYTES) {
    typename L::Codes stored[R];
    stream.template read<1>(l, at, stored);
    V scale[R];
    if constexpr (HOW == Scaled::LANES)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) scale[r] = lane_scales<PART != Part::WHOLE>(q, s[r], g, few<L>(q));
#pragma GCC unroll 16
    for (int j = 0; j < L::VECS; ++j) {
      V w[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        w[r] = l.value(stored[r], j);
        if constexpr (HOW == Scaled::LANES) w[r] *= scale[r];
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const V x = in_register(L::activations(static_cast<const float*>(xs[m].x) + g * L::GROUP, j));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[r][m] = fused(w[r], x, sum[r][m]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) total[r][m] = sum[r][m];
}

// The same of a loader that makes products of a group by itself, of the first m rows of activations. What these take of
// registers is for one row of them: several come one after the other, and their sums stay in the nearest cache.
template <class L, int R, int M, Scaled HOW, Part PART>
WM_INLINE void add_fixed(const L& l, const Gemv& q, const uint8_t* const (&codes)[R], const float* const (&s)[R],
                         const Arranged* xs, int m, int64_t first, int64_t until, V (&total)[R][M]) {
  constexpr int EACH = IN_ONE<PART>;
  constexpr bool LATE = WM_SIMD == 256 && M == 1;  // few registers: no scale takes one before it is wanted
  V sum[R][M];
  std::memcpy(sum, total, sizeof sum);
  const Stream<L, R, PART> stream(q, codes);
  for (int64_t g = first, at = 0; g < until; ++g, at += L::NBYTES) {
    typename L::Codes stored[R];
    stream.template read<EACH>(l, at, stored);
    const auto scale_of = [&](int r) __attribute__((always_inline)) {
      return lane_scales<PART != Part::WHOLE>(q, s[r], g, few<L>(q));
    };
    V scale[R];
    if constexpr (HOW == Scaled::LANES && !LATE)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) scale[r] = scale_of(r);
    const auto times = [&](int i) __attribute__((always_inline)) {
      const typename L::X* x = static_cast<const typename L::X*>(xs[i].x) + g * L::ARRANGED;
      V here[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; r += EACH) {
        here[r] = l.template products<EACH == 2>(stored[r], x, sum[r][i], HOW == Scaled::LANES);
        if constexpr (EACH == 2) here[r + 1] = upper_half(here[r]), here[r] = lower_half(here[r]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        if constexpr (HOW == Scaled::LANES) sum[r][i] = fused(here[r], LATE ? scale_of(r) : scale[r], sum[r][i]);
        else sum[r][i] = here[r];
      }
    };
    if constexpr (M <= 2) {
#pragma GCC unroll 2
      for (int i = 0; i < M; ++i) times(i);
    } else
#pragma GCC unroll 1
      for (int i = 0; i < m; ++i) times(i);
  }
  std::memcpy(total, sum, sizeof sum);
}

// Numbers that stand for blocks, a row of activations after the other: those of whole vectors.
WM_INLINE int64_t blocks_room(const Weights& w) { return (w.across() + LANES - 1) / LANES * LANES; }

// What each block meets of a row of activations, by what each lane does: blocks are of whole lanes, in their order.
template <class L>
static void sums_of_blocks(const Gemv& q, const float* of_lanes, float* out) {
  const int64_t lanes = q.w.block_elems * LANES / L::GROUP, all = q.groups * LANES;
  for (int64_t b = 0, l = 0; b < q.w.across(); ++b) {
    float sum = 0;
    for (const int64_t until = std::min(l + lanes, all); l < until; ++l) sum += of_lanes[l];
    out[b] = sum;
  }
}

// What is added to each row's blocks, times what these meet of m rows of activations. Of any loader, and a function of its
// own, so that each of these is compiled once.
template <int R, int M>
static __attribute__((noinline)) void add_offsets(const Weights& w, const float* const (&z)[R], const float* met, int m,
                                                  V (&sum)[R][M]) {
  const int64_t across = w.across(), room = blocks_room(w);
  I lane;
  for (int l = 0; l < LANES; ++l) lane[l] = l;
  for (int64_t b = 0; b < across; b += LANES) {
    const I there = lane < int32_t(across - b);  // what stands past the last is another row's, and may be infinite
    for (int r = 0; r < R; ++r) {
      const V offset = (V)((I)load(z[r] + b) & there);
      for (int i = 0; i < m; ++i)
        sum[r][i] = fused(offset, (V)((I)load(met + i * room + b) & there), sum[r][i]);
    }
  }
}
