"""cast, the definition: one value at a time, on integers, from IEEE 754-2019's picture of a binary float."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipeline.errors import ConfigError, ValueRangeError, did_you_mean
from pipeline.tensors.spec import dtype_name, numpy_dtype
from plugins.kernels.cast import DTYPES, Overflow


@dataclass(frozen=True, slots=True)
class Format:
    """A sign bit, `exponent_bits`, then `fraction_bits` (IEEE 754-2019, section 3.4)."""

    exponent_bits: int
    fraction_bits: int

    @property
    def nbits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits


FORMATS: Final = {"BF16": Format(8, 7), "F16": Format(5, 10), "F32": Format(8, 23), "F64": Format(11, 52)}


def cast(x: Any, dtype: str, *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    given = dtype_name(x.dtype)
    for name in (given, dtype):
        if name not in FORMATS:
            raise ConfigError(f"cast: dtype {name!r} is unknown{did_you_mean(name, DTYPES)}")
    if overflow not in ("error", "clamp", "inf"):
        raise ConfigError(f"cast: overflow {overflow!r} is unknown{did_you_mean(overflow, ['error', 'clamp', 'inf'])}")
    if given == dtype:
        return x
    source, target = FORMATS[given], FORMATS[dtype]
    patterns = np.ascontiguousarray(x).view(f"u{source.nbits // 8}").ravel()
    out = np.empty(patterns.shape, f"u{target.nbits // 8}")
    for i, bits in enumerate(map(int, patterns)):
        rounded, overflowed = cast_bits(bits, source, target)
        if overflowed and overflow == "error":
            raise ValueRangeError(f"flat index {i}: {np.asarray(x).flat[i]} is out of range of {dtype}")
        out[i] = rounded - 1 if overflowed and overflow == "clamp" else rounded
    return out.view(numpy_dtype(dtype)).reshape(x.shape)


def cast_bits(bits: int, source: Format, target: Format) -> tuple[int, bool]:
    """`bits` in the target format, and whether a finite value became an infinity."""
    sign = bits >> (source.nbits - 1) << (target.nbits - 1)
    magnitude = bits & ((1 << (source.nbits - 1)) - 1)
    wider = target.fraction_bits - source.fraction_bits
    if magnitude > source.infinity:
        payload = magnitude & ((1 << source.fraction_bits) - 1)
        if wider >= 0:
            return sign | target.infinity | payload << wider, False
        return sign | target.infinity | payload >> -wider | 1 << (target.fraction_bits - 1), False
    if magnitude == source.infinity:
        return sign | target.infinity, False
    # value = fraction · 2^exponent, exactly, with an integer fraction.
    stored = magnitude >> source.fraction_bits
    fraction = magnitude & ((1 << source.fraction_bits) - 1) | (1 << source.fraction_bits if stored else 0)
    exponent = max(stored, 1) - source.bias - source.fraction_bits
    if fraction == 0:
        return sign, False
    # The unit in the target's last place for this binade, never below its subnormal unit.
    top = fraction.bit_length() - 1 + exponent
    unit = max(top, 1 - target.bias) - target.fraction_bits
    drop = unit - exponent
    if drop <= 0:
        units = fraction << -drop
    else:
        units, rest = fraction >> drop, fraction & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        units += rest > half or (rest == half and units & 1)
    # The implicit bit and a carry out of rounding both add 1 to the exponent field: the encoding is monotone.
    field = unit + target.fraction_bits + target.bias - 1
    rounded = min(units + (field << target.fraction_bits), target.infinity)
    return sign | rounded, rounded == target.infinity
