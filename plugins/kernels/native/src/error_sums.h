// What is summed of errors, in registers and over a call. Included once for each instruction set, after codes.h.

struct Sums {
  double count = 0, largest = 0, error = 0, signal = 0;
};

struct Lanes {
  VF error, signal, largest;
};

// Squares are summed in float32 over a strip, and strips in float64. False where that will not do: values near the ends
// of float32's range, or nothing but zeros.
static bool add_up(const Lanes& lanes, Sums& sums) {
  double signal = 0, error = 0;
  float worst = 0;
  for (int l = 0; l < LANES; ++l) {
    signal += lanes.signal[l];
    error += lanes.error[l];
    worst = lanes.largest[l] > worst ? lanes.largest[l] : worst;
  }
  if (!(signal > 0x1p-80 && signal < 0x1p90 && error < 0x1p90 && (worst == 0 ? error == 0 : worst > 0x1p-40f)))
    return false;
  sums.error += error;
  sums.signal += signal;
  if (worst > sums.largest) sums.largest = worst;
  return true;
}
