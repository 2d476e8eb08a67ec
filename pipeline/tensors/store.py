"""The handle that flows between stages, and what a slice of it is.

A store knows every tensor before a byte of data is read. Reading is always of a box: one contiguous, step-1 slice per
dimension. Only a writer or a device reads; everything in between is a view.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pipeline.hooks import hooks_of
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec

Index = tuple[slice, ...]
"""A box: one slice per leading dimension with step 1; missing trailing dimensions are whole. () is the whole tensor."""


class TensorStore(Protocol):
    """Named tensors that can be read a box at a time. Must pickle: workers receive it and open files themselves."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor's spec, in file order; complete before any data byte is read."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """JSON-able facts about the whole store."""
        ...

    def read(self, name: str, index: Index = ()) -> Any:
        """The box as a NumPy array (plain) or a QTensor (quantized), owned by the caller.

        Arrays are C-contiguous unless the tensor is stored transposed: then a transposed view is handed over, and
        whoever needs contiguity copies where it is needed.

        Raises:
            SourceError: the bytes are gone, cut short, or changed.
        """
        ...


@hooks_of(TensorStore)
class StoreHooks:
    """What a store may have beside that."""

    grain: Callable[[str], tuple[int, ...]] | None = None
    """`grain(name)`: for each dimension, what the bounds of a box must be multiples of so that reading it takes no more
    than the box, where the store knows more than its specs say (how leaves lie, what a method must see whole)."""

    scratch: Callable[[str], int] | None = None
    """`scratch(name)`: bytes that reading a box takes beside what is read and what is given, where what must be seen at
    once is more than a tile. A view adds what its source takes."""

    read_nbytes: Callable[[str, Sequence[Index]], int] | None = None
    """`read_nbytes(name, boxes)`: bytes that come out of files when one process reads these boxes of a tensor, where
    that is not what they hold. A view says what its source reads for them."""

    shares: Callable[[str], Sequence[tuple[Index, int]] | None] | None = None
    """`shares(name)`: of a tensor that lies in several processes, boxes that are together all of it, each with the
    number of the process that is to read it, said alike in all of them. None: this process can read all of it."""

    seeded: "Callable[[int], TensorStore] | None" = None
    """`seeded(seed)`, of values that are made of a seed: those that another seed makes."""


def normalize(index: Index, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """`index` with one concrete `slice(start, stop)` for every dimension of `shape`.

    Raises:
        IndexError: a step, a negative or out-of-range bound, or more slices than dimensions.
    """
    if _is_normal(index, shape):
        return index
    if len(index) > len(shape):
        raise IndexError(f"{len(index)} slices for a tensor of shape {shape}")
    out = []
    for i, n in enumerate(shape):
        s = index[i] if i < len(index) else slice(None)
        start = 0 if s.start is None else s.start
        stop = n if s.stop is None else s.stop
        if s.step not in (None, 1) or not 0 <= start <= stop <= n:
            raise IndexError(f"slice {s} is not a step-1 range inside dimension {i} of shape {shape}")
        out.append(slice(start, stop))
    return tuple(out)


def _is_normal(index: Index, shape: tuple[int, ...]) -> bool:
    """Whether nothing is open: what one view asks of the next is so, ten times a tensor."""
    if len(index) != len(shape):
        return False
    for s, n in zip(index, shape, strict=True):
        if s.step is not None or s.start is None or s.stop is None or not 0 <= s.start <= s.stop <= n:
            return False
    return True


def box_shape(index: Index, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the box `index` cuts from a tensor of `shape`."""
    return tuple(s.stop - s.start for s in normalize(index, shape))


def checked(value: Any, spec: TensorSpec, index: Index, name: str) -> Any:
    """`value` if its shape and scheme are what `spec[index]` promises; a bug in a view or plugin otherwise."""
    want = box_shape(index, spec.shape)
    if spec.scheme is None and want and (bits := DTYPE_BITS[spec.dtype]) < 8:
        want = (*want[:-1], want[-1] * bits // 8)  # sub-byte elements are held packed
    scheme = value.scheme if isinstance(value, QTensor) else None
    if tuple(value.shape) != want or scheme != spec.scheme:
        raise AssertionError(f"{name}: read gave {tuple(value.shape)} {scheme}, the spec promises {want} {spec.scheme}")
    return value
