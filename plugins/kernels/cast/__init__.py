"""cast: one float dtype to another, with every bit pattern accounted for.

    cast(x, dtype, *, overflow="error") -> array of x's shape; dtype: BF16, F32, F16 or F64

NumPy and ml_dtypes casts turn finite values into infinities and lose NaN payloads; weights must do neither unseen.

- Widening is exact, and moves the bits, so that NaNs keep sign, payload and quietness.
- Narrowing rounds once, to nearest even (F64 → BF16 included: no double rounding), into subnormals where needed.
- NaN stays NaN with its sign and as many of its top payload bits as fit. It becomes quiet (IEEE 754-2019, section
  6.2.1: top fraction bit set) where payload bits were cut off, so that it cannot turn into an infinity.
- An infinity stays an infinity. A finite value that would round to one is `overflow`: "error" raises ValueRangeError
  naming the first flat index, "clamp" gives the largest finite value of its sign, "inf" is IEEE.
- A dtype that `x` already has returns `x` itself.
"""

from typing import Final, Literal

Overflow = Literal["error", "clamp", "inf"]
DTYPES: Final = ("BF16", "F32", "F16", "F64")
