"""quantize_by_outputs in NumPy: a block of all rows of a tile at once (`search`)."""

from typing import Any

import numpy as np

from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.rounding import encode
from plugins.kernels.quantize.numpy.scale import Found, decoded, quotients
from plugins.kernels.quantize.recipe import Recipe
from plugins.kernels.quantize_by_outputs import search
from plugins.kernels.quantize_by_outputs.given import checked


def quantize_by_outputs(x: Any, hessian: Any, scheme: Any, *, second: Any = None, **recipe: Any) -> Any:
    """See the op's docstring."""
    return search.quantized(x, hessian, scheme, checked(x, hessian, scheme, second, recipe), second, _Rounding)


class _Rounding:
    """See `search.Rounding`."""

    def __init__(self, blocks: Any, tried: list[Found], scheme: Scheme, recipe: Recipe) -> None:
        self._blocks, self._scheme, self._recipe = blocks, scheme, recipe
        self._tried = [[_part(found, b) for b in range(blocks.shape[2])] for found in tried]

    def errors(self, option: int, block: int) -> Any:
        found, values = self._tried[option][block], self._blocks[:, :, block : block + 1]
        off = decoded(self._codes(block, found), found.total, found.zeros, self._scheme) - values
        return off.reshape(len(off), -1)

    def codes(self, found: Found) -> Any:
        made = np.empty(self._blocks.shape, np.uint8)
        for b in range(made.shape[2]):
            made[:, :, b : b + 1] = self._codes(b, _part(found, b))
        return made.reshape(len(made), -1)

    def _codes(self, block: int, found: Found) -> Any:
        how = self._recipe
        v = quotients(self._blocks[:, :, block : block + 1].copy(), found, self._scheme, how)
        return encode(element(self._scheme.element), v, how.ties, how.zero, how.is_narrow)


def _part(found: Found, block: int) -> Found:
    """The scales of one block of every row."""
    arrays = {k: getattr(found, k) for k in ("stored", "total", "divisor", "zeros", "minimum")}
    return Found(**{k: None if a is None else a[:, :, block : block + 1] for k, a in arrays.items()})
