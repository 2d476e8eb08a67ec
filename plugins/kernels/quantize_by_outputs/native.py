"""quantize_by_outputs in C++ where values are rounded (src/block_errors_strip.h); the search is `search`'s."""

import ctypes
from typing import Any

import numpy as np

from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import element
from plugins.kernels.native import library
from plugins.kernels.quantize.native import codec, described
from plugins.kernels.quantize.numpy.scale import Found
from plugins.kernels.quantize.recipe import Recipe
from plugins.kernels.quantize_by_outputs import search
from plugins.kernels.quantize_by_outputs.given import checked

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class _BlockErrors(ctypes.Structure):
    """`struct BlockErrorsCall`."""

    _fields_ = [
        ("x", _POINTER), ("rows", _LONG), ("width", _LONG), ("stride", _LONG),
        *((n, _POINTER) for n in ("divisor", "total", "point", "minimum", "stored_minimum", "errors", "codes")),
    ]  # fmt: skip


def quantize_by_outputs(x: Any, hessian: Any, scheme: Any, *, second: Any = None, **recipe: Any) -> Any:
    """See the op's docstring."""
    return search.quantized(x, hessian, scheme, checked(x, hessian, scheme, second, recipe), second, _Rounding)


class _Rounding:
    """See `search.Rounding`."""

    def __init__(self, blocks: Any, tried: list[Found], scheme: Scheme, recipe: Recipe) -> None:
        self._blocks, self._scheme = blocks, scheme
        self._shared = [_shared(found, scheme) for found in tried]
        self._call, self._isa, self._library = described(scheme, recipe), library.isa(), codec()
        self._errors = np.empty((blocks.shape[0], blocks.shape[3]), np.float32)

    def errors(self, option: int, block: int) -> Any:
        self._round(block, self._shared[option], errors=self._errors.ctypes.data)
        return self._errors

    def codes(self, found: Found) -> Any:
        rows, _, count, size = self._blocks.shape
        made, shared = np.empty((rows, count * size), np.uint8), _shared(found, self._scheme)
        for b in range(count):
            self._round(b, shared, codes=made.ctypes.data + b * size)
        return made

    def _round(self, block: int, shared: dict[str, Any], **to: int) -> None:
        rows, _, count, size = self._blocks.shape
        values = self._blocks.ctypes.data + 4 * block * size
        under = {name: array.ctypes.data + 4 * block * rows for name, array in shared.items()}
        given = _BlockErrors(values, rows, size, count * size, **under, **to)
        self._library.wm_block_errors(self._isa, self._call, ctypes.byref(given))


def _shared(found: Found, scheme: Scheme) -> dict[str, Any]:
    """What blocks share as C++ takes it: float32 [blocks, rows] each, as src/quantize.h says."""
    arrays = {"divisor": found.divisor, "total": found.total, "minimum": found.minimum}
    if scheme.zero == "int":
        arrays["point"] = found.zeros.astype(np.float32) - np.float32(1 << (element(scheme.element).bits - 1))
    elif scheme.zero == "min_f16":
        arrays["stored_minimum"] = found.zeros
    shared = {name: array[:, 0, :, 0].T for name, array in arrays.items() if array is not None}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in shared.items()}
