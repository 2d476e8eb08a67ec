"""Cutting arrays of any layout into pieces that fit a core's cache.

A kernel that makes a dozen passes over a tile of this size reads memory once; whole-array NumPy makes as many trips to
memory as passes, and needs temporaries as large as the tensor. Nothing here copies.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np


def matrices(x: Any, *outs: Any) -> Iterator[tuple[Any, ...]]:
    """Views `[rows, n]` that together cover `x` in order, with the same rows of each contiguous array of `outs`.

    One matrix when x's leading dimensions collapse without a copy, else one for each leading index. A contiguous `x`
    comes back as a single row. Outs share x's leading dimensions; their last one is any fixed fraction of x's.
    """
    if x.flags.c_contiguous:
        yield tuple(a.reshape(1, -1) for a in (x, *outs))
        return
    try:
        whole = np.reshape(x, (-1, x.shape[-1]), copy=False)
    except ValueError:
        for lead in product(*map(range, x.shape[:-2])):
            yield from matrices(x[lead], *(o[lead] for o in outs))
        return
    yield whole, *(o.reshape(len(whole), -1) for o in outs)


def spans(rows: int, n: int, unit: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Boxes of a `[rows, n]` matrix in row-major order, at most `most` elements each.

    A box is either a run of whole rows or a piece of one row that is a multiple of `unit` long (`n` is one too).
    """
    if n <= most:
        step = max(1, most // max(n, 1))
        for r in range(0, rows, step):
            yield slice(r, min(r + step, rows)), slice(0, n)
        return
    step = max(unit, most // unit * unit)
    for r in range(rows):
        for c in range(0, n, step):
            yield slice(r, r + 1), slice(c, min(c + step, n))
