// How logits become weights: the running softmax of a row and a tile of slots. Included by attention.h.

// How much of what was found so far is kept, from the largest logits of before and of now.
WM_INLINE float kept_of(float before, float now) {
  if (before == now) return 1;  // e^0 is exact
  return before == -__builtin_inff() ? 0 : exponential(before - now);
}

// Of one row that sees all of a whole tile, where logits are but scaled; as `weigh`. False, and nothing is done, where no
// logit so far is a number above -infinity.
static bool weigh_all(float scale, float* logits, float* largest_so_far, float* sum, float* kept) {
  constexpr int N = SLOTS / LANES;
  Floats x[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) x[j] = load(logits + j * LANES) * scale;
  Floats top = x[0], weights = {};
#pragma GCC unroll 8
  for (int j = 1; j < N; ++j) top = larger(x[j], top);
  const float before = *largest_so_far, there = largest(top);
  float now = there > before ? there : before;
  if (now == -__builtin_inff()) return false;
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) {
    const Floats w = exponential(x[j] - now);
    weights += w;
    store(logits + j * LANES, w);
  }
  const float all = total(weights);
  if (all != all) now = all;  // a NaN, which has no part in what is largest
  *largest_so_far = now;
  *kept = kept_of(before, now);
  *sum = *sum * *kept + all;
  return true;
}

// Of one row: logits of a tile of `wide` slots become weights, in place. Returns what the sums so far are to be
// multiplied with.
static float weigh(const Call& c, const Tile& t, int64_t wide, Sight sight, float* logits, float* largest_so_far,
                   float* sum) {
  float kept;
  if (wide == SLOTS && c.plain() && sight.all(t.first, t.last) && weigh_all(c.scale, logits, largest_so_far, sum, &kept))
    return kept;
  const auto hidden = [&](int j) { return sight.hidden(t.slot + j, c.segment ? t.segment + j : nullptr); };
  Floats top = everywhere(-__builtin_inff());
  Ints nan = {};  // negative where there is one
  for (int j = 0; j < wide; j += LANES) {
    Floats x = load(logits + j) * c.scale;
    if (c.k_scales) x = x * load(t.k_scales + j);
    if (c.softcap != 0) x = c.softcap * hyperbolic_tangent(x / c.softcap);
    x = without(x, hidden(j), -0x00800000);  // -infinity
    Ints bits;
    std::memcpy(&bits, &x, sizeof bits);
    nan |= 0x7F800000 - (bits & 0x7FFFFFFF);
    store(logits + j, x);
    top = larger(x, top);
  }
  Floats strange;
  nan = (nan >> 31) & 0x7FC00000;
  std::memcpy(&strange, &nan, sizeof strange);
  const float before = *largest_so_far, there = largest(top) + total(strange);
  const float now = there <= before ? before : there;  // NaN, once it is there
  if (now == -__builtin_inff()) {  // nothing seen yet
    for (int j = 0; j < wide; j += LANES) store(logits + j, Floats{});
    return 1;
  }
  Floats weights = {};
  for (int j = 0; j < wide; j += LANES) {
    const Floats x = load(logits + j);
    const Floats w = without(exponential(x - now), hidden(j), 0);
    weights += w;
    store(logits + j, c.v_scales ? w * load(t.v_scales + j) : w);
  }
  *largest_so_far = now;
  kept = kept_of(before, now);
  *sum = *sum * kept + total(weights);
  return kept;
}
