// What a product of few rows is told, whatever the instruction set.
#pragma once
#include <cstdint>

#include "weights.h"

// How scales come to products. ROW: a whole row of weights has one, for its sum. LANES: whatever a lane of a register
// holds at a time is of one block, so sums are scaled lane by lane after each group. EACH: blocks of any other size.
enum class Scaled { ROW, LANES, EACH };
constexpr int UNIT = 32;  // activations that share a unit, where they become integers and registers are narrow

// Sets of them.
template <typename... S>
constexpr int set_of(S... some) {
  return ((1 << int(some)) | ...);
}
constexpr bool has(int set, Scaled one) { return set >> int(one) & 1; }

struct GemvKernel;

// How far ahead memory is asked for, in bytes past what is read.
struct Ahead {
  int64_t bytes;
  bool second;   // to come to the second cache, else to the first
  int64_t near;  // of each row, to come to the first cache; 0: nothing
  // Where rows are read one at a time, how far ahead, to come to the second cache. If not 0, those that want no scales
  // are, whatever the registers would hold.
  int64_t linear;
};

// One stack of weights and what its kernel wants to know of it; made once a call.
struct Gemv {
  Weights w;
  const GemvKernel* kernel;
  Scaled scaled;
  int64_t groups;         // of elements in a row, the last of them perhaps not full
  const int32_t* first;   // [groups], LANES: the first block of a group
  const int32_t* spread;  // [groups, lanes]: which block after that a lane is of; -1 past the end of a row
  bool few;               // those that lanes of a group are of are four at most
  Ahead ahead;
  int64_t near_rows, near_left;  // `ahead.near` as whole rows of codes, and the bytes beyond them
};

// Activations as the kernel reads them.
struct Arranged {
  const void* x;      // [groups, arranged], elements where the kernel meets them
  // [groups, lanes] of what each lane meets, in the order of elements; null where no zero points or minimums want them.
  const float* sums;
  const GemvKernel* kernel;  // whose it is
};

struct GemvKernel {
  int lanes, group;  // elements of a group
  int arranged;      // floats, or half as large, that a group of activations is
  int grain;         // of elements: a lane's are all in one
  int (*begins)(int lane);  // at which element of a group those of a lane begin, to a grain; null: lanes are in order
  int takes;         // a set of Scaled
  int most;          // rows of activations that share a pass over the weights, GEMV_MOST at most
  // x is float32 or, `from_bf16`, bfloat16. Whether they can: see gemv_fixed.h.
  bool (*arrange)(const void* x, bool from_bf16, int64_t n, void* out, float* sums);
  // y[m][row …] of `count` rows of weights of a matrix for m (1 … `most`) rows of activations; `scratch` has scratch_floats.
  void (*product)(const Gemv& q, int64_t matrix, int64_t row, int64_t count, int m, const Arranged* x, float* const* y,
                  float* scratch);
};

constexpr int GEMV_MOST = 8;

// Scales that are float32 at a time: few enough to stay in the nearest cache, and those of a pass at least.
static inline int64_t factors_room(const Weights& w) {
  const int64_t pass = GEMV_MOST * w.across();
  return pass > 1024 ? pass : 1024;
}

static inline int64_t scratch_floats(const Gemv& q) {
  const int64_t blocks = 2 * (factors_room(q.w) + q.kernel->lanes) + GEMV_MOST * (q.w.across() + q.kernel->lanes);
  return q.scaled == Scaled::EACH ? blocks + 2 * q.w.across() + GEMV_MOST * q.groups * q.kernel->group : blocks;
}
