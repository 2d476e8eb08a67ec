"""dequantize in C++: every scheme, a row at a time. It takes no memory but its result."""

import ctypes
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from plugins.kernels.codecs import scales
from plugins.kernels.codecs.mx import E8M0_BIAS, E8M0_NAN
from plugins.kernels.dequantize import Overflow, check
from plugins.kernels.native import library, scheme

_DTYPES = ("BF16", "F16", "F32")  # in the order of src/dequantize.cc
_PARTS = ("codes", "scales", "zeros", "second")
_LARGE = E8M0_BIAS + 100  # under 2^100 every element but 0 is past F16, and none past float32


@cache
def _decode(isa: int) -> Any:
    found = library.load("dequantize", isa).wm_dequantize
    sizes, numbers, pointer = [ctypes.c_int64] * 5, [ctypes.c_int] * 5, ctypes.c_void_p
    found.argtypes = [*numbers, *sizes, *[pointer] * 4, ctypes.c_int, ctypes.c_int, pointer, pointer]
    found.restype = ctypes.c_int64
    return found


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    out = np.empty(q.shape, numpy_dtype(dtype))
    if not out.size:
        return out
    meaning = q.scheme
    parts: dict[str, Any] = {name: np.require(array, requirements=("C", "A")) for name, array in q.components.items()}
    if meaning.second == "dynamic8":
        meaning = replace(meaning, scale="f32", second=None)
        parts |= {"scales": np.ascontiguousarray(scales.totals(q)), "second": None}
    stored: Any = parts.get("scales")
    if meaning.scale == "e8m0" and dtype == "F16":
        parts["scales"] = np.where((stored > _LARGE) & (stored != E8M0_NAN), np.uint8(_LARGE), stored)
    matrices, rows, n = prod(q.shape[:-2]), prod(q.shape[-2:-1]), q.shape[-1]
    said = scheme.numbers(TensorSpec(tuple(q.shape), "BF16", meaning))
    down, across = said.block_rows or rows, said.block_elems or n
    value, isa = ctypes.c_float(), library.isa()
    bad = _decode(isa)(
        isa, *said[:4], matrices, rows, n, down, across,
        *(None if (part := parts.get(name)) is None else part.ctypes.data for name in _PARTS),
        _DTYPES.index(dtype), overflow == "clamp", out.ctypes.data, ctypes.byref(value),
    )  # fmt: skip
    if bad >= 0:
        row, column = divmod(bad, n)
        block = (row // rows * -(-rows // down) + row % rows // down) * -(-n // across) + column // across
        less = int(stored.flat[block]) - int(parts["scales"].flat[block]) if meaning.scale == "e8m0" else 0
        raise ValueRangeError(f"flat index {bad}: {value.value * 2.0**less} is out of range of {dtype}")
    return out
