"""NaN and infinities in what is written as it came: nobody refuses them there, so they are counted, and said."""

from typing import Any

import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import SCALE_DTYPES, STRUCT_HALVES, STRUCTS, ZEROS

# Container dtype → (bits of an element as an integer, the least magnitude of what is not finite). Floats of one sign
# are in the order of their bits, so that two maxima tell, one of each sign, where a test of each element would take
# longer than writing it does.
_LIMITS = {
    "BF16": (16, 0x7F80), "F16": (16, 0x7C00), "F32": (32, 0x7F80_0000), "F64": (64, 0x7FF0_0000_0000_0000),
    "F8_E4M3": (8, 0x7F), "F8_E5M2": (8, 0x7C),
}  # fmt: skip
_F16_EXPONENT = 0x7C  # of the upper byte; all of it set: NaN, or infinite
_E8M0_NAN = 0xFF  # OCP MX v1.0, section 5.4.1


def nonfinite(value: Any, dtype: str) -> int:
    """How many values of a plain array, or scales of a packed one, are NaN or infinite.

    Args:
        value: an array, or a QTensor; of structs of ggml the fp16 numbers in them count, and minima as scales do.
        dtype: of values, where they are plain.
    """
    if not isinstance(value, QTensor):
        return _of_floats(np.asarray(value), dtype)
    if value.scheme.is_struct:
        return _in_structs(np.asarray(value.codes), value.scheme.element)
    found = 0 if value.scheme.zero != "min_f16" else _of_floats(np.asarray(value.zeros), ZEROS["min_f16"])
    if value.scheme.scale == "e8m0":
        found += int(np.count_nonzero(np.asarray(value.scales).view(np.uint8) == _E8M0_NAN))
    elif value.scheme.scale != "dynamic8":
        found += _of_floats(np.asarray(value.scales), SCALE_DTYPES[value.scheme.scale])
    return found + (0 if value.second is None else _of_floats(np.asarray(value.second), "F32"))


def _in_structs(codes: Any, kind: str) -> int:
    """Of the numbers in every block the upper bytes, which have the exponents."""
    _, nbytes = STRUCTS[kind]
    return sum(
        int(np.count_nonzero((codes[..., at + 1 :: nbytes] & _F16_EXPONENT) == _F16_EXPONENT))
        for at in STRUCT_HALVES[kind]
    )


def _of_floats(array: Any, dtype: str) -> int:
    if dtype not in _LIMITS or array.size == 0:
        return 0
    bits, limit = _LIMITS[dtype]
    sign = 1 << (bits - 1)
    unsigned, signed = array.view(f"u{bits // 8}"), array.view(f"i{bits // 8}")
    if signed.max() < limit and unsigned.max() < sign + limit:
        return 0
    return int(np.count_nonzero((unsigned & (sign - 1)) >= limit))
