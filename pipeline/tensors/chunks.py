"""Cutting tensors into pieces that one task can hold, and packing small tensors together.

A chunk is a slice of leading dimensions (experts, then rows). A row that is too long for one task is cut too, at whole
blocks and bytes. Small tensors share a chunk, because a task costs more than a kilobyte does.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import ceil, lcm, prod

from pipeline.tensors.pieces import Piece
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index

ROW_ALIGN = 4096  # elements; where even one dimension is too long, it is cut at whole pages and whole blocks


def cut(name: str, shape: tuple[int, ...], chunk_elems: int, grain: tuple[int, ...] = ()) -> Iterator[Piece]:
    """Pieces of at most `chunk_elems` elements that cover `shape` once; in C order where `grain` is 1 but for the last.

    The least box that `grain` allows may exceed `chunk_elems`: what a piece's bounds are multiples of, or the end, for
    each dimension. The last dimension is cut at multiples of `ROW_ALIGN` too, when `chunk_elems` allows it.
    """
    inner = prod(shape)
    if inner <= chunk_elems:
        yield Piece(name, tuple(slice(0, n) for n in shape))
        return
    steps = [max(1, min(g, n)) for g, n in zip(grain or (1,) * len(shape), shape, strict=True)]
    outer, last = 1, len(shape) - 1
    for dim, n in enumerate(shape):  # the first one of which more than the least fits
        inner //= n
        if dim == last or outer * steps[dim] * inner <= chunk_elems:
            break
        outer *= steps[dim]
    most = max(1, chunk_elems // (outer * inner))
    unit = steps[dim]
    if dim == last and (aligned := lcm(unit, ROW_ALIGN)) <= most:
        unit = aligned
    step = max(unit, most // unit * unit)
    if dim < last:
        count = ceil(shape[dim] / step)
        step = ceil(ceil(shape[dim] / count) / unit) * unit  # even slices rather than a full one and a crumb
    rest = tuple(slice(0, n) for n in shape[dim + 1 :])
    for lead in product(*(_slices(n, s) for n, s in zip(shape[:dim], steps, strict=False))):
        for part in _slices(shape[dim], step):
            yield Piece(name, (*lead, part, *rest))


def cut_box(box: Index, elems: int, grain: tuple[int, ...] = ()) -> Iterator[tuple[slice, ...]]:
    """Boxes that are together `box`; see `cut`."""
    for piece in cut("", tuple(s.stop - s.start for s in box), elems, grain):
        yield tuple(slice(b.start + p.start, b.start + p.stop) for b, p in zip(box, piece.index, strict=True))


def _slices(n: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def pack(
    specs: Mapping[str, TensorSpec], chunk_elems: int, grains: Mapping[str, tuple[int, ...]] | None = None
) -> Iterator[tuple[Piece, ...]]:
    """Pieces of every tensor in order, those of small tensors grouped up to `chunk_elems` elements.

    Args:
        specs: the tensors.
        chunk_elems: elements of a piece or of a group.
        grains: for tensors whose pieces cannot be cut anywhere, see `cut`.
    """
    whole = ((name, tuple(slice(0, n) for n in spec.shape)) for name, spec in specs.items())
    yield from pack_boxes(whole, chunk_elems, grains)


def pack_boxes(
    boxes: Iterable[tuple[str, tuple[slice, ...]]],
    chunk_elems: int,
    grains: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[tuple[Piece, ...]]:
    """The same of boxes of tensors, whose bounds are multiples of the grain."""
    grains = grains or {}
    group: list[Piece] = []
    filled = 0
    for name, box in boxes:
        shape = tuple(s.stop - s.start for s in box)
        if (size := prod(shape)) > chunk_elems // 2:
            yield from ((Piece(name, part),) for part in cut_box(box, chunk_elems, grains.get(name, ())))
            continue
        if group and filled + size > chunk_elems:
            yield tuple(group)
            group, filled = [], 0
        group.append(Piece(name, box))
        filled += size
    if group:
        yield tuple(group)
