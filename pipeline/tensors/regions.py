"""Which boxes of which tensors are read to fill boxes of a parameter: what a loader does, and what a plan counts.

A parameter is one tensor, or several that are stacked along a new first dimension. Of each tensor as much is read as
its store reads anyway (`StoreHooks.grain`): boxes for which that is the same region are filled together from one read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.tensors.blocks import Box, common, grain_of, outward
from pipeline.tensors.chunks import cut_box
from pipeline.tensors.store import TensorStore

READ_ELEMS = 16 << 20  # values read at once; a lazily quantized box takes a few times its bf16 bytes


@dataclass(frozen=True, slots=True)
class Read:
    """One read.

    Attributes:
        tensor: which of the parameter's tensors is read.
        box: of the tensor.
        at: the same box of the parameter.
    """

    tensor: int
    box: Box
    at: Box


@dataclass(frozen=True, slots=True)
class Portion:
    """Boxes of a parameter that are filled together, and the reads, none twice, that fill them."""

    boxes: tuple[Box, ...]
    reads: tuple[Read, ...]


def portions(
    shape: tuple[int, ...],
    boxes: Iterable[Box],
    grain: tuple[int, ...],
    *,
    stack: bool = False,
    elems: int = READ_ELEMS,
) -> Iterator[Portion]:
    """All that is read to fill boxes of a parameter.

    Args:
        shape: of the parameter.
        boxes: of the parameter, distinct ones.
        grain: of what its tensors are read in multiples: `grain_of_all`.
        stack: whether its first dimension counts the tensors.
        elems: values of one read, at most, unless the grain allows no less.
    """
    whole = (1, *grain) if stack else grain
    together: dict[tuple[tuple[int, int], ...], list[Box]] = {}
    for box in boxes:
        together.setdefault(ends(outward(box, shape, whole)), []).append(box)
    for sides, filled in together.items():
        inner = tuple(cut_box(tuple(slice(*side) for side in sides[stack:]), elems, grain))
        tensors = [(i, (slice(i, i + 1),)) for i in range(*sides[0])] if stack else [(0, ())]
        yield Portion(tuple(filled), tuple(Read(i, box, (*lead, *box)) for i, lead in tensors for box in inner))


def grain_of_all(store: TensorStore, names: Iterable[str]) -> tuple[int, ...]:
    """What boxes of tensors of one shape are multiples of, so that reading any of them takes no more than the box."""
    return common(*(grain_of(store, name) for name in names))


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes share; None: nothing."""
    found = tuple(slice(max(x.start, y.start), min(x.stop, y.stop)) for x, y in zip(a, b, strict=True))
    return None if any(s.start >= s.stop for s in found) else found


def within(box: Box, outer: Box) -> Box:
    """`box` as seen from where `outer` starts."""
    return tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, outer, strict=True))


def ends(box: Box) -> tuple[tuple[int, int], ...]:
    """A box to be looked up by."""
    return tuple((s.start, s.stop) for s in box)
