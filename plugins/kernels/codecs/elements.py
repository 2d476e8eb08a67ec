"""Element encodings: the value of every code, and the code nearest to a float32.

A value divided by its block's scale is a float32; here it becomes a code. Rounding looks at the exact distance to the
two neighbours: scaling by a power of two, flooring and subtracting the floor are all exact in float32, where adding a
half would not be.

Sources: OCP Microscaling Formats (MX) v1.0, section 5.3; OCP 8-bit Floating Point (OFP8) v1.0, section 5; QLoRA
(arXiv 2305.14314), appendix E, for NF4.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import numpy as np

from pipeline.tensors.scheme import ELEMENT_BITS

# (mantissa bits, bias, largest finite magnitude code): OCP MX v1.0, tables 1-5.
_FLOATS: Final = {
    "e2m1": (1, 1, 7),
    "e2m3": (3, 1, 31),
    "e3m2": (2, 3, 31),
    "e4m3": (3, 7, 0x7E),
    "e5m2": (2, 15, 0x7B),
}
NF4: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@dataclass(frozen=True)
class Element:
    """One element encoding.

    Attributes:
        name: a key of `ELEMENT_BITS`.
        family: `float` (sign and magnitude), `fixed` (two's complement), `unsigned`, or `table` (sorted values).
    """

    name: str

    @property
    def bits(self) -> int:
        return ELEMENT_BITS[self.name]

    @property
    def family(self) -> str:
        if self.name in _FLOATS:
            return "float"
        return "table" if self.name == "nf4" else "unsigned" if self.name.startswith("uint") else "fixed"

    @property
    def unit(self) -> float:
        """Value of code 1 of a `fixed` or `unsigned` element."""
        return 2.0**-6 if self.name == "mxint8" else 1.0  # OCP MX v1.0, section 5.3.4

    @property
    def least(self) -> int:
        """Smallest integer that a code stands for (`fixed`, `unsigned`)."""
        return 0 if self.family == "unsigned" else -(1 << (self.bits - 1))

    @property
    def most(self) -> int:
        """Largest integer that a code stands for (`fixed`, `unsigned`)."""
        return (1 << self.bits) - 1 if self.family == "unsigned" else (1 << (self.bits - 1)) - 1

    @property
    def max(self) -> float:
        """Largest finite value."""
        if self.family in ("fixed", "unsigned"):
            return self.most * self.unit
        return 1.0 if self.family == "table" else float(self.values[_FLOATS[self.name][2]])

    @property
    def emax(self) -> int:
        """Exponent of the largest power of two that is not past `max`."""
        return int(np.frexp(self.max)[1]) - 1

    @property
    def mantissa_bits(self) -> int | None:
        """Fraction bits of the values in the topmost binade; None where spacing is not even."""
        if self.family == "float":
            return _FLOATS[self.name][0]
        return None if self.family == "table" else self.bits - 2

    @cached_property
    def values(self) -> Any:
        """float32 `[2 ** bits]`: the value of each code; NaN and infinities where the format has them."""
        code = np.arange(1 << self.bits)
        if self.family == "table":
            return np.array(NF4, np.float32)
        if self.family == "unsigned":
            return code.astype(np.float32)
        if self.family == "fixed":
            return (np.where(code > self.most, code - (1 << self.bits), code) * self.unit).astype(np.float32)
        mantissa, bias, top = _FLOATS[self.name]
        magnitude = code & ((1 << (self.bits - 1)) - 1)
        exponent, fraction = magnitude >> mantissa, magnitude & ((1 << mantissa) - 1)
        value = np.ldexp(
            np.where(exponent > 0, fraction + (1 << mantissa), fraction).astype(np.float64),
            np.maximum(exponent, 1) - bias - mantissa,
        )
        # OFP8, section 5: E4M3 has one NaN a sign and no infinity, E5M2 those of IEEE 754.
        value = np.where(magnitude > top, np.nan, value)
        if self.name == "e5m2":
            value[magnitude == top + 1] = np.inf
        return np.where(code >> (self.bits - 1), -value, value).astype(np.float32)

    def encode(self, v: Any, ties: str, zero: str, narrow: bool = False, uniform: Any = None) -> Any:
        """uint8 codes (one a byte) of float32 `v`, in any shape; saturating; NaN counts as 0.

        Args:
            ties: see the `quantize` op.
            zero: what becomes of a zero's sign; see the `quantize` op.
            narrow: leave the smallest code of a `fixed` element out, so that codes are symmetric.
            uniform: float32 in [0, 1) of v's shape: round up with the probability of the distance, not to the nearest.
        """
        v = np.where(np.isnan(v), np.float32(0), v) if np.isnan(np.sum(v)) else v
        if self.family == "float":
            return self._encode_float(v, ties, zero, uniform)
        if self.family == "table":
            return self._encode_table(v, ties, uniform)
        return self._encode_integer(v, ties, narrow, uniform)

    def _encode_float(self, v: Any, ties: str, zero: str, uniform: Any) -> Any:
        mantissa, bias, top = _FLOATS[self.name]
        negative = np.signbit(v)
        magnitude = np.minimum(np.abs(v), np.float32(self.max))
        # Biased float32 exponent of the binade, never below that of the smallest normal value.
        binade = np.maximum(magnitude.view(np.int32) >> 23, np.int32(128 - bias))
        magnitude *= ((254 + mantissa - binade) << 23).view(np.float32)  # units in the last place: exact
        code = _rounded(magnitude, negative, ties, uniform).astype(np.int32)
        code += (binade - (128 - bias)) << mantissa  # monotone: a carry moves on to the next binade
        code = np.minimum(code, top).astype(np.uint8)
        if zero == "positive":
            negative &= code != 0
        elif zero == "minus":
            negative |= v == 0
        code |= negative.view(np.uint8) << np.uint8(self.bits - 1)
        return code

    def _encode_integer(self, v: Any, ties: str, narrow: bool, uniform: Any) -> Any:
        low = -self.most if narrow and self.family == "fixed" else self.least
        if self.unit != 1:
            v = v * np.float32(1 / self.unit)
        v = np.minimum(np.maximum(v, np.float32(low)), np.float32(self.most))
        if ties == "up" and uniform is None:
            whole = np.floor(v + np.float32(0.5 - self.least))
            return (np.clip(whole + np.float32(self.least), low, self.most).astype(np.int32) & self.mask).astype(
                np.uint8
            )
        if ties == "even" and uniform is None:
            whole = np.rint(v)
        else:
            whole = np.copysign(_rounded(np.abs(v), v < 0, ties, uniform), v)
        return (whole.astype(np.int32) & self.mask).astype(np.uint8)

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def _encode_table(self, v: Any, ties: str, uniform: Any) -> Any:
        values = self.values.astype(np.float64)
        code = np.zeros(v.shape, np.uint8)
        if uniform is not None:
            low = np.clip(np.searchsorted(values, v, side="right") - 1, 0, len(values) - 2)
            up = (v - values[low]) > uniform * (values[low + 1] - values[low])
            return (low + up).astype(np.uint8)
        for k, middle in enumerate((values[:-1] + values[1:]) / 2):
            # The largest float32 that is not past the middle: no float32 lies between them.
            edge = np.float32(middle)
            edge = np.nextafter(edge, np.float32(-2)) if float(edge) > middle else edge
            at_tie = float(edge) == middle and _up_on_tie(ties, k, values[k], values[k + 1])
            code += (v >= edge) if at_tie else (v > edge)
        return code


def _up_on_tie(ties: str, k: int, low: float, high: float) -> bool:
    """Whether a value halfway between code k and code k + 1 takes code k + 1."""
    return {
        "even": k % 2 == 1, "down": False, "up": True, "zero": abs(high) < abs(low), "away": abs(high) > abs(low),
    }[ties]  # fmt: skip


def _rounded(magnitude: Any, negative: Any, ties: str, uniform: Any) -> Any:
    """Whole float32 numbers near the nonnegative `magnitude`, which is the caller's to lose."""
    if uniform is None and ties == "even":
        return np.rint(magnitude, out=magnitude)
    whole = np.floor(magnitude)
    magnitude -= whole
    if uniform is not None:
        up = magnitude > uniform
    elif ties == "zero":
        up = magnitude > 0.5
    elif ties == "away":
        up = magnitude >= 0.5
    else:  # toward minus infinity: "down"
        up = (magnitude > 0.5) | (negative & (magnitude == 0.5))
    whole += up
    return whole


@cache
def element(name: str) -> Element:
    """The one Element of that name."""
    return Element(name)
