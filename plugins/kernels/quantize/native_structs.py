"""quantize into ggml's structs in C++: the bytes of `plugins.kernels.codecs.superblocks`, which says how to find them.

Its tables of kinds are handed over; src/superblocks_fit.h has the arithmetic and no number of its own.
"""

import ctypes
from functools import cache
from typing import Any, Final

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.spec import dtype_name
from plugins.kernels.codecs.superblocks import LAYOUTS, MOST_GROWN, REFITS, SETTLED, assumed, past_half, spread_of
from plugins.kernels.native import library
from plugins.kernels.native.scheme import ELEMENTS
from plugins.kernels.quantize.declines import FLOATS

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
_BOOK_END: Final = 256  # src/superblocks_fit.h looks values up by their doubles, -256 … 256


class _Call(ctypes.Structure):
    """`struct SuperblockCall`."""

    _fields_ = [
        ("x", _POINTER),
        *((n, _LONG) for n in ("rows", "n", "row_stride")),
        *((n, _POINTER) for n in ("importance", "out", "grid", "book", "codes")),
        *((n, _INT) for n in ("dtype", "kind", "tops", "refits", "settled")),
        *((n, _INT) for n in ("least", "most", "least_scale", "most_scale")),
        *((n, _FLOAT) for n in ("spread", "most_grown")),
        *((n, _LONG) for n in ("not_finite", "factor_past", "second_past")),
    ]


def encode(kind: str, rows: Any, importance: Any, first: int, out: Any) -> None:
    """See `structs.Encode`."""
    if not rows.flags.aligned or rows.strides[1] != rows.itemsize or rows.strides[0] % rows.itemsize:
        rows = np.array(rows, order="C")
    layout, grid, book, codes = LAYOUTS[kind], *_tables(kind)
    importance = assumed(layout, rows.shape[1]) if importance is None else importance
    call = _Call(
        x=rows.ctypes.data, rows=len(rows), n=rows.shape[1], row_stride=rows.strides[0] // rows.itemsize,
        importance=None if importance is None else importance.ctypes.data, out=out.ctypes.data, grid=grid.ctypes.data,
        book=None if book is None else book.ctypes.data, codes=None if codes is None else codes.ctypes.data,
        dtype=FLOATS.index(dtype_name(rows.dtype)), kind=ELEMENTS.index(kind.lower()), tops=len(grid),
        refits=len(REFITS), settled=SETTLED, least=layout.least, most=layout.most, least_scale=layout.least_scale,
        most_scale=layout.most_scale, spread=spread_of(layout), most_grown=MOST_GROWN, not_finite=-1, factor_past=-1,
        second_past=-1,
    )  # fmt: skip
    isa = library.isa()
    _make(isa)(isa, call)
    if call.not_finite >= 0:
        value = np.float32(rows[divmod(call.not_finite, rows.shape[1])])
        raise ValueRangeError(f"flat index {first + call.not_finite}: {value} has no code in {kind}")
    for past in (call.factor_past, call.second_past):
        if past >= 0:
            raise past_half(first + past, kind)


@cache
def _make(isa: int) -> Any:
    found = library.load("superblocks", isa).wm_superblocks
    found.argtypes, found.restype = [_INT, ctypes.POINTER(_Call)], None
    return found


@cache
def _tables(kind: str) -> tuple[Any, Any, Any]:
    """The grid; of a code book what is nearest to half of -256 … 256, and the codes of -128 … 127, else None."""
    layout = LAYOUTS[kind]
    grid = np.array(layout.grid, np.float32)
    if layout.book is None:
        return grid, None, None
    twice = layout.book.astype(np.int64)
    nearest = np.searchsorted(twice[1:] + twice[:-1], np.arange(-_BOOK_END, _BOOK_END + 1))
    codes = np.zeros(_BOOK_END, np.uint8)
    codes[twice + _BOOK_END // 2] = np.arange(len(twice))
    return grid, layout.book.astype(np.float32)[nearest], codes
