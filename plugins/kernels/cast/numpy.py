"""cast in whole-tile NumPy: integer arithmetic on bit patterns where NumPy's casts lose NaNs or make infinities.

Extra memory is a few tiles, whatever the array's size.
"""

from functools import cache
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, ValueRangeError, did_you_mean
from pipeline.tensors.spec import dtype_name, numpy_dtype
from plugins.kernels.cast import DTYPES, Overflow
from plugins.kernels.tiles import matrices, spans

_TILE = 1 << 16  # elements: source, target and temporaries of a tile fit a core's L2 cache
# Bits of a magnitude: fraction width and infinity (IEEE 754-2019, table 3.5; bfloat16 is the top half of binary32).
_FRACTION = {"BF16": 7, "F16": 10, "F32": 23, "F64": 52}
_UINT = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "F64": np.uint64}
_INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF0000000000000}
_WIDTH = {"BF16": 16, "F16": 16, "F32": 32, "F64": 64}


def cast(x: Any, dtype: str, *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    given = dtype_name(x.dtype)
    for name in (given, dtype):
        if name not in DTYPES:
            raise ConfigError(f"cast: dtype {name!r} is unknown{did_you_mean(name, DTYPES)}")
    if overflow not in ("error", "clamp", "inf"):
        raise ConfigError(f"cast: overflow {overflow!r} is unknown{did_you_mean(overflow, ['error', 'clamp', 'inf'])}")
    if given == dtype:
        return x
    out = np.empty(x.shape, numpy_dtype(dtype))
    first = 0  # flat index of the matrix
    for source, target in matrices(_flat(x), _flat(out)):
        for rows, cols in spans(source.shape[0], source.shape[1], 1, _TILE):
            if given == "BF16" and dtype == "F32":
                box = target[rows, cols]
                np.copyto(box, source[rows, cols])
                np.left_shift(box, 16, out=box)
                continue
            bits = np.ascontiguousarray(source[rows, cols])
            top = int((bits & _magnitude(given)).max(initial=0))
            rounded = _tile(bits, given, dtype, top)
            bad = _overflowed(bits, rounded, given, dtype) if top > _largest(given, dtype) else None
            if bad is not None and overflow == "error":
                r, c = np.argwhere(bad)[0]
                at = first + (rows.start + int(r)) * source.shape[1] + cols.start + int(c)
                value = bits[r, c : c + 1].view(numpy_dtype(given))[0]
                raise ValueRangeError(f"flat index {at}: {value} is out of range of {dtype}")
            if bad is not None and overflow == "clamp":
                rounded[bad] -= 1  # the pattern below infinity is the largest finite value
            target[rows, cols] = rounded
        first += source.size
    return out


def _flat(x: Any) -> Any:
    return (x if x.ndim else x.reshape(1)).view(_UINT[dtype_name(x.dtype)])


@cache
def _largest(given: str, dtype: str) -> int:
    """Pattern of `given` up to which no magnitude overflows `dtype` (nor is infinite or NaN)."""
    if _INFINITY[dtype] == 0x7C00:
        value = 65504.0
    elif dtype == "BF16":
        value = float(np.uint32(0x7F7F0000).view(np.float32))
    else:
        value = float(np.finfo(numpy_dtype(dtype)).max)
    if given == "F64":
        return int(np.float64(value).view(np.uint64))
    if given == "F16" or dtype == "F64":
        return _INFINITY[given]
    return int(np.float32(value).view(np.uint32)) >> (16 if given == "BF16" else 0)


def _tile(bits: Any, given: str, dtype: str, top: int) -> Any:
    """Bits of `dtype` for contiguous bits of `given`, rounded to nearest even; overflow is still an infinity.

    Args:
        top: the largest magnitude pattern among `bits`; past infinity there are NaNs to look after.
    """
    if given == "BF16":
        wide = bits.astype(np.uint32)
        wide <<= 16
        rounded = wide if dtype == "F32" else _tile(wide, "F32", dtype, 0)
    elif dtype == "BF16":
        rounded = _to_bf16(bits, given)
    else:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rounded = bits.view(numpy_dtype(given)).astype(numpy_dtype(dtype)).view(_UINT[dtype])
    return _with_nans(bits, rounded, given, dtype) if top > _INFINITY[given] else rounded


def _to_bf16(bits: Any, given: str) -> Any:
    if given == "F16":
        bits = _tile(bits, "F16", "F32", 0)
    elif given == "F64":
        # Round to odd first: a sticky last bit keeps the second rounding from seeing a tie that is not one.
        values = bits.view(np.float64)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            near = values.astype(np.float32)
            back = near.astype(np.float64)
        wide = near.view(np.uint32)
        wide -= np.abs(back) > np.abs(values)  # toward zero
        wide |= back != values
        bits = wide
    # Round to nearest even: half a unit less one, plus the bit that makes the unit odd; carries reach the exponent.
    rounded = bits >> 16
    rounded &= 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    return rounded.astype(np.uint16)


def _with_nans(bits: Any, rounded: Any, given: str, dtype: str) -> Any:
    """`rounded` with every NaN of `bits` written out: sign, top payload bits, quiet when narrowed."""
    nan = (bits & _magnitude(given)) > _INFINITY[given]
    b = bits[nan].astype(np.uint64)
    payload = b & ((1 << _FRACTION[given]) - 1)
    wider = _FRACTION[dtype] - _FRACTION[given]
    sign = b >> (_WIDTH[given] - 1) << (_WIDTH[dtype] - 1)
    payload = payload << wider if wider >= 0 else payload >> -wider | 1 << (_FRACTION[dtype] - 1)
    rounded[nan] = (sign | _INFINITY[dtype] | payload).astype(_UINT[dtype])
    return rounded


def _magnitude(dtype: str) -> int:
    return (1 << (_WIDTH[dtype] - 1)) - 1


def _overflowed(bits: Any, rounded: Any, given: str, dtype: str) -> Any:
    """Mask of finite values that became infinite, or None."""
    infinite = (rounded & _magnitude(dtype)) == _INFINITY[dtype]
    if not infinite.any():
        return None
    infinite &= (bits & _magnitude(given)) != _INFINITY[given]
    return infinite if infinite.any() else None
