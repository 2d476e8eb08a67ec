"""Putting a transposed array in C order, a slab at a time.

`numpy.ascontiguousarray` of a transposed matrix walks memory a row's length per element (0.6 GB/s of bf16 where a copy
in tiles does 3.7) and needs as much memory again as the array has.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.tensors.chunks import cut
from pipeline.tensors.store import Index

SLAB_NBYTES = 2 << 20
TILE_COLS = 64  # of 2 bytes: two cache lines of the source per line of the slab


def slabs(array: Any, box: Index) -> Iterator[tuple[Index, Any]]:
    """C-contiguous arrays that together are `array`, in C order, each with its box; `box` is where `array` lies.

    One slab, without a copy, when `array` is contiguous already.
    """
    array = np.asarray(array)
    if array.flags.c_contiguous:
        yield box, array
        return
    for piece in cut("", array.shape, SLAB_NBYTES // array.itemsize):
        source = array[piece.index]
        slab = np.empty(source.shape, source.dtype)
        for col in range(0, source.shape[-1], TILE_COLS):
            slab[..., col : col + TILE_COLS] = source[..., col : col + TILE_COLS]
        yield tuple(slice(b.start + s.start, b.start + s.stop) for b, s in zip(box, piece.index, strict=True)), slab
