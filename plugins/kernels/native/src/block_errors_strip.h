// Blocks of several rows under scales that are given, side by side in one strip. Included once for each instruction set,
// after quantize_strip.h.

static void block_errors(const QuantizeCall& q, const BlockErrorsCall& c, Strip& s) {
  // Blocks that are longer than a strip go by themselves, in pieces.
  const int64_t most = c.width < STRIP ? STRIP / c.width : 1;
  const auto from = [](const float* shared, int64_t row) {
    return shared == nullptr ? nullptr : const_cast<float*>(shared) + row;
  };
  for (int64_t r = 0; r < c.rows; r += most) {
    const int64_t rows = c.rows - r < most ? c.rows - r : most;
    QuantizeCall each = q;  // as if these blocks were a row
    each.block_elems = c.width, each.n = rows * c.width;
    Blocks b{};
    b.divisor = from(c.divisor, r), b.total = from(c.total, r), b.point = from(c.point, r);
    b.minimum = from(c.minimum, r), b.stored_minimum = from(c.stored_minimum, r);
    for (int64_t first = 0; first < each.n; first += STRIP) {
      const int64_t count = each.n - first < STRIP ? each.n - first : STRIP;
      const int64_t wide = c.width < count ? c.width : count;  // of a row that is here
      for (int64_t i = 0; i < count; i += wide)
        std::memcpy(s.v + i, c.x + (r + i / wide) * c.stride + first, size_t(wide) * sizeof(float));
      spread_all(each, b, s, first, count);
      Lanes lanes;
      const bool measures = c.errors != nullptr;
      code_any(each, b, s, first, count, measures ? &lanes : nullptr, measures ? s.y : nullptr);
      if (measures)
        for (int64_t i = 0; i < count; ++i) c.errors[r * c.width + first + i] = s.y[i] - s.v[i];
      if (c.codes != nullptr)
        for (int64_t i = 0; i < count; i += wide)
          std::memcpy(c.codes + (r + i / wide) * c.stride + first, s.code + i, size_t(wide));
    }
  }
}
