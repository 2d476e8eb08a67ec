"""Cutting a matrix into tiles of whole blocks, and a tile into its blocks.

A block is `block_rows` × `block_elems` of a matrix (0: all of them). A tile is `[down · r, across · e]`; its *blocks*
array is `[down, r, across, e]`, so that one scale a block is `[down, 1, across, 1]`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import dtype_name
from plugins.kernels.codecs import scratch

TILE = (
    1 << 18
)  # elements, a float32 of each is 1 MiB: smaller tiles fit L2 and lose more to the interpreter than they gain
_SHORT = 64  # rows of a block up to this long: repeating what they share beats a loop a row


def as_matrices(x: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """(leading index, view `[rows, n]`) of every matrix of `x`; a vector is one row."""
    if x.ndim == 1:
        yield (), x[None]
        return
    for lead in np.ndindex(*x.shape[:-2]):
        yield lead, x[lead]


def tiles(scheme: Scheme, rows: int, n: int, tall: bool = False, most: int = TILE) -> Iterator[tuple[slice, slice]]:
    """Boxes of whole blocks that cover a matrix, in row-major order unless tall.

    A box has at most `most` elements, or is one block that has more, which `pieces` cuts (or the few blocks that share
    bytes).

    Args:
        tall: prefer many rows and few columns, for a matrix whose rows are neighbours in memory.
    """
    down, across = scheme.block_rows or max(1, rows), scheme.column_grain if scheme.block_elems else max(1, n)
    width = across * max(1, (n if not tall else min(n, max(across, 512))) // across)
    if down * width > most:
        width = max(1, most // (down * across)) * across
    height = max(1, most // (width * down)) * down
    for r in range(0, rows, height):
        stop = min(r + height, rows)
        whole = r + (stop - r) // down * down
        for top, bottom in ((r, whole), (whole, stop)):  # the last band may be lower than a block
            if top < bottom:
                for c in range(0, n, width):
                    yield slice(top, bottom), slice(c, min(c + width, n))


def pieces(rows: slice, cols: slice, most: int = TILE) -> Iterator[tuple[slice, slice]]:
    """Parts of one large block, each of whole rows or of whole bytes of one row."""
    width = cols.stop - cols.start
    height = max(1, most // max(1, width))
    step = width if width <= most else most
    for r in range(rows.start, rows.stop, height):
        for c in range(cols.start, cols.stop, step):
            yield slice(r, min(r + height, rows.stop)), slice(c, min(c + step, cols.stop))


def shape_in_blocks(scheme: Scheme, rows: int, n: int) -> tuple[int, int, int, int]:
    """The blocks shape of a box of `rows` × `n`: whole blocks, or rows fewer than a block has."""
    r = min(scheme.block_rows or rows, rows)
    e = scheme.block_elems or n
    return rows // r, r, n // e, e


def floats(box: Any) -> Any:
    """A contiguous float32 copy (or view) of a box of bfloat16, float16 or float32."""
    if dtype_name(box.dtype) == "BF16":
        wide = box.view(np.uint16).astype(np.uint32, order="C")
        wide <<= 16
        return wide.view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(box).astype(np.float32, copy=False)


def loaded(box: Any) -> Any:
    """A float32 copy of a box in this thread's buffer 0, contiguous; the next tile overwrites it."""
    values = scratch.floats(0, box.shape)
    with np.errstate(invalid="ignore"):
        np.copyto(values, box, casting="same_kind" if box.dtype.kind == "f" else "unsafe")
    return values


def spread(operation: Any, blocks: Any, shared: Any) -> None:
    """`blocks = operation(blocks, shared)` in place: `[down, r, across, e]`, contiguous, and `[down, 1, across, 1]`."""
    if blocks.shape[1] == 1 and blocks.shape[3] <= _SHORT:
        flat = blocks.reshape(-1)
        operation(flat, np.repeat(shared.reshape(-1), blocks.shape[3]), out=flat)
    else:
        operation(blocks, shared, out=blocks)


def amax(blocks: Any) -> Any:
    """Largest magnitudes `[down, 1, across, 1]` of a contiguous blocks array; NaN where there is one."""
    return _over(np.maximum, np.abs(blocks, out=scratch.floats(1, blocks.shape)))


def extremes(blocks: Any) -> tuple[Any, Any]:
    """(low, high) `[down, 1, across, 1]` of a contiguous blocks array; NaN where there is one."""
    return _over(np.minimum, blocks), _over(np.maximum, blocks)


def _over(of: Any, blocks: Any) -> Any:
    """Reduced over each block. NumPy's reduction over short rows is many times slower than what is done instead.

    The 16-byte pieces of each block move into planes, whose elementwise extremes take whole arrays; then the four
    lanes of what is left meet.
    """
    down, r, across, e = blocks.shape
    rows = of.reduce(blocks, axis=1) if r > 1 else blocks
    if not 8 <= e <= 256 or e % 4 or not rows.size:
        return of.reduce(rows.reshape(down * across, e), axis=1).reshape(down, 1, across, 1)
    flat = rows.reshape(-1)
    planes = scratch.floats(2, flat.shape).view(np.complex128).reshape(e // 4, down * across)  # never computed with
    np.copyto(planes, flat.view(np.complex128).reshape(down * across, e // 4).T)
    lanes = of.reduce(planes.view(np.float32), axis=0)
    found = of(of(lanes[0::4], lanes[1::4]), of(lanes[2::4], lanes[3::4]))
    return found.reshape(down, 1, across, 1)


def matrix_extremes(matrix: Any) -> tuple[Any, Any]:
    """(low, high), float32 scalars, of a whole matrix, read in pieces; NaN if it holds one."""
    low, high = np.float32(np.inf), np.float32(-np.inf)
    rows, n = matrix.shape
    for r, c in pieces(slice(0, rows), slice(0, n)):
        part = loaded(matrix[r, c])
        low, high = np.minimum(low, part.min()), np.maximum(high, part.max())
    return (low, high) if matrix.size else (np.float32(0), np.float32(0))
