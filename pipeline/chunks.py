"""Cutting tensors into pieces that one task can hold, and packing small tensors together.

A chunk is a slice of leading dimensions (experts, then rows); the last dimension, along which blocks lie and sums run,
is never cut. Small tensors share a chunk, because a task costs more than a kilobyte does.
"""

from collections.abc import Iterator, Mapping
from itertools import product

from pipeline.stage import Piece
from pipeline.tensors.spec import TensorSpec

ROW_ALIGN = 4096  # elements; where even one dimension is too long, it is cut at whole pages and whole blocks


def cut(name: str, shape: tuple[int, ...], chunk_elems: int, grain: tuple[int, ...] = ()) -> Iterator[Piece]:
    """Pieces of at most `chunk_elems` elements that cover `shape` once, in C order.

    A single row may exceed `chunk_elems`, and so may the least number of rows that `grain` allows: what a piece's
    bounds are multiples of, for each dimension. A vector is cut at multiples of `ROW_ALIGN`.
    """
    inner = 1  # elements below dimension `dim`
    for n in shape:
        inner *= n
    if inner <= chunk_elems:
        yield Piece(name, tuple(slice(0, n) for n in shape))
        return
    last = max(0, len(shape) - 2)
    for dim in range(last + 1):
        inner //= shape[dim]
        if inner <= chunk_elems or dim == last:
            break
    step = max(1, chunk_elems // inner)
    if len(shape) == 1:
        step = max(ROW_ALIGN, step // ROW_ALIGN * ROW_ALIGN)
    count = -(-shape[dim] // step)
    if len(shape) > 1:
        step = -(-shape[dim] // count)  # even slices rather than a full one and a crumb
    if grain:
        step = max(1, step // grain[dim]) * grain[dim]
    rest = tuple(slice(0, n) for n in shape[dim + 1 :])
    for lead in product(*(range(n) for n in shape[:dim])):
        for start in range(0, shape[dim], step):
            stop = min(start + step, shape[dim])
            yield Piece(name, (*(slice(i, i + 1) for i in lead), slice(start, stop), *rest))


def pack(
    specs: Mapping[str, TensorSpec], chunk_elems: int, grains: Mapping[str, tuple[int, ...]] | None = None
) -> Iterator[tuple[Piece, ...]]:
    """Pieces of every tensor in order, those of small tensors grouped up to `chunk_elems` elements.

    Args:
        specs: the tensors.
        chunk_elems: elements of a piece or of a group.
        grains: for tensors whose pieces cannot be cut anywhere, see `cut`.
    """
    grains = grains or {}
    group: list[Piece] = []
    filled = 0
    for name, spec in specs.items():
        if spec.size > chunk_elems // 2:
            yield from ((piece,) for piece in cut(name, spec.shape, chunk_elems, grains.get(name, ())))
            continue
        if group and filled + spec.size > chunk_elems:
            yield tuple(group)
            group, filled = [], 0
        group += cut(name, spec.shape, chunk_elems)
        filled += spec.size
    if group:
        yield tuple(group)
