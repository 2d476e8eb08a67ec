"""Element encodings: the value of every code, and the code nearest to a float32.

A value divided by its block's scale is a float32; how it becomes a code is in `rounding`.

Sources: OCP Microscaling Formats (MX) v1.0, section 5.3; OCP 8-bit Floating Point (OFP8) v1.0, section 5.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import numpy as np

from pipeline.tensors.scheme import ELEMENT_BITS
from plugins.facts import codebooks

# (mantissa bits, bias, largest finite magnitude code): OCP MX v1.0, tables 1-5.
FLOATS: Final = {
    "e2m1": (1, 1, 7),
    "e2m3": (3, 1, 31),
    "e3m2": (2, 3, 31),
    "e4m3": (3, 7, 0x7E),
    "e5m2": (2, 15, 0x7B),
}


@dataclass(frozen=True)
class Element:
    """One element encoding.

    Attributes:
        name: a key of `ELEMENT_BITS`.
        family: `float` (sign and magnitude), `fixed` (two's complement), `unsigned`, or `table` (sorted values).
    """

    name: str

    @cached_property
    def bits(self) -> int:
        return ELEMENT_BITS[self.name]

    @cached_property
    def family(self) -> str:
        if self.name in FLOATS:
            return "float"
        return "table" if self.name == "nf4" else "unsigned" if self.name.startswith("uint") else "fixed"

    @cached_property
    def unit(self) -> float:
        """Value of code 1 of a `fixed` or `unsigned` element."""
        return 2.0**-6 if self.name == "mxint8" else 1.0  # OCP MX v1.0, section 5.3.4

    @cached_property
    def least(self) -> int:
        """Smallest integer that a code stands for (`fixed`, `unsigned`)."""
        return 0 if self.family == "unsigned" else -(1 << (self.bits - 1))

    @cached_property
    def most(self) -> int:
        """Largest integer that a code stands for (`fixed`, `unsigned`)."""
        return (1 << self.bits) - 1 if self.family == "unsigned" else (1 << (self.bits - 1)) - 1

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        if self.family in ("fixed", "unsigned"):
            return self.most * self.unit
        return 1.0 if self.family == "table" else float(self.values[FLOATS[self.name][2]])

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest power of two that is not past `max`."""
        return int(np.frexp(self.max)[1]) - 1

    @property
    def mantissa_bits(self) -> int | None:
        """Fraction bits of the values in the topmost binade; None where spacing is not even."""
        if self.family == "float":
            return FLOATS[self.name][0]
        return None if self.family == "table" else self.bits - 2

    @cached_property
    def values(self) -> Any:
        """float32 `[2 ** bits]`: the value of each code; NaN and infinities where the format has them."""
        code = np.arange(1 << self.bits)
        if self.family == "table":
            return codebooks.nf4()
        if self.family == "unsigned":
            return code.astype(np.float32)
        if self.family == "fixed":
            return (np.where(code > self.most, code - (1 << self.bits), code) * self.unit).astype(np.float32)
        mantissa, bias, top = FLOATS[self.name]
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

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1


@cache
def element(name: str) -> Element:
    """The one Element of that name."""
    return Element(name)
