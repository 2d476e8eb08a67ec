"""NaN and infinities in what is written as it came: nobody refuses them there, so they are counted, and said."""

from typing import Any

import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import SCALE_DTYPES

# Container dtype → (bits of an element as an integer, the least magnitude of what is not finite). Floats of one sign
# are in the order of their bits, so that two maxima tell, one of each sign, where a test of each element would take
# longer than writing it does.
_LIMITS = {
    "BF16": (16, 0x7F80), "F16": (16, 0x7C00), "F32": (32, 0x7F80_0000), "F64": (64, 0x7FF0_0000_0000_0000),
    "F8_E4M3": (8, 0x7F), "F8_E5M2": (8, 0x7C),
}  # fmt: skip
_E8M0_NAN = 0xFF  # OCP MX v1.0, section 5.4.1


def nonfinite(value: Any, dtype: str) -> int:
    """How many values of a plain array, or scales of a packed one, are NaN or infinite.

    Args:
        value: an array, or a QTensor. Scales inside structs of ggml are not looked at.
        dtype: of values, where they are plain.
    """
    if not isinstance(value, QTensor):
        return _of_floats(np.asarray(value), dtype)
    if value.scheme.is_struct:
        return 0
    found = 0
    if value.scheme.scale == "e8m0":
        found += int(np.count_nonzero(np.asarray(value.scales).view(np.uint8) == _E8M0_NAN))
    elif value.scheme.scale != "dynamic8":
        found += _of_floats(np.asarray(value.scales), SCALE_DTYPES[value.scheme.scale])
    return found + (0 if value.second is None else _of_floats(np.asarray(value.second), "F32"))


def _of_floats(array: Any, dtype: str) -> int:
    if dtype not in _LIMITS or array.size == 0:
        return 0
    bits, limit = _LIMITS[dtype]
    sign = 1 << (bits - 1)
    unsigned, signed = array.view(f"u{bits // 8}"), array.view(f"i{bits // 8}")
    if signed.max() < limit and unsigned.max() < sign + limit:
        return 0
    return int(np.count_nonzero((unsigned & (sign - 1)) >= limit))
