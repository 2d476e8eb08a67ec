"""The search for scales by outputs, whatever rounds values under them: tile by tile of rows, in NumPy and BLAS.

All rows of a tile go on together. What a block's scales are judged by is made of one product of matrices, the errors of
all columns times the block's columns of H, and of one of its own errors for each scale that is tried.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.kernels.quantize.numpy import empty, refuse_unstorable
from plugins.kernels.quantize.numpy.scale import Found, candidates, merged
from plugins.kernels.quantize.recipe import Recipe

PASSES: Final = 2  # over the blocks of a row; the third changes next to nothing
TILE: Final = 1 << 20  # weights that are looked at together, for memory's sake


class Rounding(Protocol):
    """Values of some rows, [rows, 1, blocks, size], and scales that are tried."""

    def errors(self, option: int, block: int) -> Any:
        """What the values of a block decode to under one of these scales, less what they are: float32 [rows, size],
        which the next call may overwrite."""
        ...

    def codes(self, found: Found) -> Any:
        """uint8 [rows, n], one code a byte, of all values under the scales `found`."""
        ...


Round = Callable[[Any, list[Found], Scheme, Recipe], Rounding]


def quantized(x: Any, hessian: Any, scheme: Scheme, recipe: Recipe, second: Any, to_round: Round) -> QTensor:
    """The op, of arguments that were checked.

    Args:
        to_round: what rounds the values of a tile, float32 [rows, 1, blocks, size], under the scales that are tried,
            the usual one first.

    Raises:
        ValueRangeError: a block's usual scale, or its minimum, is past its encoding.
    """
    (rows, n), q = x.shape, empty(x.shape, scheme)
    if q.second is not None:
        q.second[...] = second
    size, hessian = scheme.block_elems or n, np.ascontiguousarray(hessian, np.float32)
    height = max(1, TILE // n)
    for start in range(0, rows, height):
        own = slice(start, min(start + height, rows))
        blocks = np.ascontiguousarray(x[own], np.float32).reshape(-1, 1, n // size, size)
        ends = blocks.min(axis=(1, 3), keepdims=True), blocks.max(axis=(1, 3), keepdims=True)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
            tried = candidates(blocks, ends, scheme, recipe, second)
            refuse_unstorable(tried[0], np.maximum(*map(np.abs, ends)), scheme)
            rounding = to_round(blocks, tried, scheme, recipe)
            choice = _chosen(hessian, rounding, len(tried), (len(blocks), n, size))
            found = tried[0]
            for option, other in enumerate(tried[1:], 1):
                found = merged((choice == option)[:, None, :, None], other, found)
            q.codes[own] = bits.pack(rounding.codes(found), element(scheme.element).bits)
        q.scales[own] = found.stored[:, 0, :, 0]
        if q.zeros is not None:
            q.zeros[own] = found.zeros[:, 0, :, 0]
    return q


def _chosen(hessian: Any, rounding: Rounding, options: int, shape: tuple[int, int, int]) -> Any:
    """Which of the options the blocks of some rows take, [rows, blocks].

    Args:
        shape: rows, columns, columns of a block.
    """
    rows, n, size = shape
    choice, errors = np.zeros((rows, n // size), np.intp), np.empty((rows, n), np.float32)
    for b in range(n // size):
        errors[:, b * size : (b + 1) * size] = rounding.errors(0, b)
    for b in [*range(n // size)] * PASSES if options > 1 else ():
        own = slice(b * size, (b + 1) * size)
        within = hessian[own, own]
        others = 2 * (errors @ hessian[:, own] - errors[:, own] @ within)
        least = None
        for option in range(options):
            off = rounding.errors(option, b)
            loss = np.einsum("ij,ij->i", off, off @ within + others)
            if least is None:
                least, choice[:, b], errors[:, own] = loss, option, off
                continue
            better = loss < least
            least = np.where(better, loss, least)
            choice[better, b], errors[better, own] = option, off[better]
    return choice


def scratch(shape: tuple[int, ...], scheme: Scheme, recipe: Recipe) -> int:
    """Bytes that the op and its caller take of a tensor of `shape` `[..., out, in]`: a matrix as float32 and what comes
    out, XᵀX of its inputs, and a tile's work. That is of a value 4 for its error and 2 for its code, 24 where its block
    is looked at; of a block 34 for each scale that is tried, as NumPy and C++ have them, and 60 to make these.
    """
    rows, n = shape[-2:]
    size, steps = scheme.block_elems or n, 2 * recipe.search_steps
    options = 1 + (steps if scheme.scale == "e8m0" else len(recipe.search_grid)) * (recipe.search != "none")
    tile = min(rows, max(1, TILE // n))
    return 6 * rows * n + 4 * n * n + tile * (6 * n + 24 * size + n // size * (34 * options + 60))
