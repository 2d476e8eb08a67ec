"""The small views that a `Part` is made of: which of a component a leaf holds, and how it lies there.

A pick takes some of a component: one matrix of a stack, every second row. What is picked then goes through steps, each
of which is undone exactly: transposed, split, one of several in a leaf. Picks come first, then steps, each in the order
in which they stand on the way from the component to the leaf; reading goes back through them. Every class maps boxes
too, so that a box of a tensor is a box of the leaf and nothing else is read or written. Steps that are no views are
packings: they order what is in bytes otherwise, and are their formats' own.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

Box = tuple[slice, ...]
Grain = tuple[int, ...]


class Pick(Protocol):
    """Which of a component lies in the leaf. Must pickle, and equal picks take the same."""

    def box(self, box: Box) -> Box | None:
        """The box of what is picked that the box of the component holds; None: nothing of it is in there.

        Raises:
            IndexError: the box cuts what belongs together.
        """
        ...

    def where(self, box: Box) -> tuple[Any, ...]:
        """What is picked, as a basic index of an array that covers the box of the component."""
        ...

    def grain(self, inner: Grain) -> Grain:
        """What bounds of a box of the component must be multiples of, where those of what is picked have `inner`."""
        ...


class Step(Protocol):
    """How something lies in the leaf. Must pickle.

    A step loses nothing: it is a view, reorders bytes, or widens floats. Only one that cannot `pack` may decode a type
    that no scheme describes. Where a part's component is `*`, boxes and grain are the tensor's, and `pack` takes a
    QTensor.
    """

    @property
    def dtype(self) -> str | None:
        """Dtype of the leaf, where it is another one than that of what is packed."""
        ...

    def box(self, box: Box) -> Box:
        """The box on the leaf's side.

        Raises:
            IndexError: the box cuts what belongs together.
        """
        ...

    def pack(self, value: Any) -> Any:
        """Towards the leaf."""
        ...

    def unpack(self, array: Any) -> Any:
        """The inverse of `pack`."""
        ...

    def grain(self, inner: Grain) -> Grain:
        """What bounds of a box must be multiples of, where those of the box on the leaf's side have `inner`."""
        ...


@dataclass(frozen=True, slots=True)
class Index:
    """Index `at` of dimension 0, without the dimension: experts stored one by one."""

    at: int

    def box(self, box: Box) -> Box | None:
        return box[1:] if box[0].start <= self.at < box[0].stop else None

    def where(self, box: Box) -> tuple[Any, ...]:
        return (self.at - box[0].start, ...)  # a view, of a vector's element too

    def grain(self, inner: Grain) -> Grain:
        return (1, *inner)


@dataclass(frozen=True, slots=True)
class Lane:
    """The indices phase, phase + step, … of a dimension: gate and up rows, stored apart.

    Attributes:
        dim: counted from the end, -1 the last.
    """

    dim: int
    phase: int
    step: int

    def box(self, box: Box) -> Box:
        return _divided(box, self.dim, self.step)

    def where(self, box: Box) -> tuple[Any, ...]:
        return (..., slice(self.phase, None, self.step), *(slice(None) for _ in range(-1 - self.dim)))

    def grain(self, inner: Grain) -> Grain:
        return tuple(g * self.step if d == len(inner) + self.dim else g for d, g in enumerate(inner))


@dataclass(frozen=True, slots=True)
class Slice:
    """Lies in the leaf from index `start` of dimension 0 on, beside others: q, k and v fused in one qkv leaf."""

    start: int
    dtype: ClassVar[None] = None

    def box(self, box: Box) -> Box:
        return (slice(box[0].start + self.start, box[0].stop + self.start), *box[1:])

    def pack(self, value: Any) -> Any:
        return value

    def unpack(self, array: Any) -> Any:
        return array

    def grain(self, inner: Grain) -> Grain:
        return inner


@dataclass(frozen=True, slots=True)
class Transpose:
    """The last two dimensions swapped: [..., out, in] → [..., in, out]. A view in both directions."""

    dtype: ClassVar[None] = None

    def box(self, box: Box) -> Box:
        return (*box[:-2], box[-1], box[-2])

    def pack(self, value: Any) -> Any:
        return value.swapaxes(-1, -2)

    def unpack(self, array: Any) -> Any:
        return array.swapaxes(-1, -2)

    def grain(self, inner: Grain) -> Grain:
        return (*inner[:-2], inner[-1], inner[-2])


@dataclass(frozen=True, slots=True)
class Split:
    """The last dimension in two: [..., n] → [..., n / size, size]."""

    size: int
    dtype: ClassVar[None] = None

    def box(self, box: Box) -> Box:
        return (*_divided(box, -1, self.size), slice(0, self.size))

    def pack(self, value: Any) -> Any:
        return value.reshape(*value.shape[:-1], value.shape[-1] // self.size, self.size)

    def unpack(self, array: Any) -> Any:
        return array.reshape(*array.shape[:-2], array.shape[-2] * self.size)

    def grain(self, inner: Grain) -> Grain:
        return (*inner[:-2], inner[-2] * self.size)


def _divided(box: Box, dim: int, by: int) -> Box:
    s = box[dim]
    if s.start % by or s.stop % by:
        raise IndexError(f"{s.start}:{s.stop} cuts a group of {by} in dimension {dim}")
    cut = list(box)
    cut[dim] = slice(s.start // by, s.stop // by)
    return tuple(cut)
