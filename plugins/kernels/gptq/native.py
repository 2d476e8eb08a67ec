"""gptq in C++: scales by the codec of `quantize`, columns by src/gptq_columns.h, and products of matrices by BLAS."""

import ctypes
from typing import Any

import numpy as np

from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.kernels.gptq import feedback
from plugins.kernels.gptq.given import checked
from plugins.kernels.native import library
from plugins.kernels.quantize.native import SHARES, codec, described, shared_by_blocks
from plugins.kernels.quantize.numpy import empty

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class _Columns(ctypes.Structure):
    """`struct ColumnsCall`."""

    _fields_ = [
        ("rows", _LONG), ("count", _LONG), ("columns", _POINTER), ("shares", _POINTER), ("blocks", _LONG),
        *((n, _POINTER) for n in ("upper", "w", "errors", "codes")),
    ]  # fmt: skip


def gptq(x: Any, factor: Any, scheme: Any, *, order: Any = None, second: Any = None, **recipe: Any) -> Any:
    """See the op's docstring."""
    how, (rows, n) = checked(x, factor, scheme, order, second, recipe), x.shape
    size, q = scheme.block_elems or n, empty(x.shape, scheme)
    if q.second is not None:
        q.second[...] = second
    codes, shares = np.empty((n, rows), np.uint8), np.zeros((SHARES, n // size, rows), np.float32)
    call, lib, isa = described(scheme, how), codec(), library.isa()
    call.block_elems = size

    def find_scales(block: int, values: Any, weights: Any) -> None:
        own = slice(block, block + len(weights) // size)
        q.scales[:, own], zeros, shares[:, own] = shared_by_blocks(values, scheme, how, second, weights)
        if q.zeros is not None:
            q.zeros[:, own] = zeros

    def round_columns(columns: Any, w: Any, upper: Any, errors: Any) -> None:
        columns, upper = np.ascontiguousarray(columns, np.int64), np.ascontiguousarray(upper)
        arrays = (a.ctypes.data for a in (upper, w, errors, codes))
        given = _Columns(rows, len(columns), columns.ctypes.data, shares.ctypes.data, n // size, *arrays)
        lib.wm_columns(isa, call, ctypes.byref(given))

    feedback.correct(x, factor, size, find_scales, round_columns, order=order)
    q.codes[...] = bits.pack(codes.T, element(scheme.element).bits)
    return q
