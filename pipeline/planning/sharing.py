"""Reading once for several jobs: in a task that serves them all, a shared store keeps a box until all have taken it.

Outside such a task a shared store is the store behind it. What it kept is handed out as a copy, because what `read`
gives is the caller's own; and with it goes what reading it measured, so that the record of a job says what was read
and lost for it, whoever read it first.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline import meter
from pipeline.stage import Chunk
from pipeline.tensors.blocks import common, each
from pipeline.tensors.pieces import Piece
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.store import Index, TensorStore, normalize
from pipeline.tensors.store_view import StoreView

Box = tuple[slice, ...]


@dataclass(slots=True)
class Kept:
    """What a task keeps of what it has read.

    Attributes:
        boxes: tensor → boxes that the chunks of the task ask for; nothing else is kept.
        found: (key of the store, tensor) → box, value, and what reading it measured.
    """

    boxes: Mapping[str, list[Box]]
    found: dict[tuple[str, str], list[tuple[Box, Any, meter.Meter]]] = field(default_factory=dict)


_kept: ContextVar[Kept | None] = ContextVar("kept", default=None)


@dataclass(frozen=True)
class SharedStore(StoreView):
    """A store that works of several jobs read.

    Attributes:
        store: it.
        key: the same in every process.
        grains: tensor → what bounds of chunks are multiples of in all these jobs, so that they are cut alike.
    """

    store: TensorStore
    key: str
    grains: Mapping[str, tuple[int, ...]]

    def grain(self, name: str) -> tuple[int, ...]:
        own = super().grain(name)
        return common(own, self.grains[name]) if name in self.grains else own

    def read(self, name: str, index: Index = ()) -> Any:
        if (kept := _kept.get()) is None:
            return self.store.read(name, index)
        box = normalize(index, self.specs[name].shape)
        if not any(within(box, wanted) for wanted in kept.boxes.get(name, ())):
            return self.store.read(name, index)
        there = kept.found.setdefault((self.key, name), [])
        for held, value, measured in there:
            if held == box:
                meter.add(measured, value.nbytes)
                return own_copy(value)
            # What was lost, or who declined, cannot be said of a part.
            if within(box, held) and not (isinstance(value, QTensor) or measured.errors or measured.declined):
                part = value[tuple(slice(b.start - h.start, b.stop - h.start) for b, h in zip(box, held, strict=True))]
                meter.add(measured.share(part.nbytes / value.nbytes), part.nbytes)
                return own_copy(part)
        start = time.perf_counter()
        with meter.metered() as measured:
            value = self.store.read(name, index)
        meter.add(measured, value.nbytes, time.perf_counter() - start)
        there.append((box, value, measured))
        return own_copy(value)


def own_copy(value: Any) -> Any:
    """`value` again, in memory of its own, lying there as `value` does."""
    return each(value, lambda array: np.array(array, copy=True, order="K"))


def within(inner: Box, outer: Box) -> bool:
    return all(o.start <= i.start and i.stop <= o.stop for i, o in zip(inner, outer, strict=True))


def bounds(piece: Piece) -> tuple[str, tuple[tuple[int, int], ...]]:
    """What a piece is of, to be looked up by."""
    return piece.tensor, tuple((s.start, s.stop) for s in piece.index)


@contextmanager
def keeping(chunks: list[Chunk]) -> Iterator[None]:
    """Shared stores keep what these chunks ask for until `let_go`, or the end of the body."""
    boxes: dict[str, list[Box]] = {}
    for piece in {bounds(p): p for chunk in chunks for p in chunk.pieces}.values():
        boxes.setdefault(piece.tensor, []).append(tuple(piece.index))
    token = _kept.set(Kept(boxes))
    try:
        yield
    finally:
        _kept.reset(token)


def let_go(left: list[tuple[Chunk, Sequence[str]]]) -> None:
    """Keep nothing that `left` does not ask for: chunks that are still to come, and keys of the stores they read."""
    if (kept := _kept.get()) is not None:
        needed = {(key, piece.tensor) for chunk, keys in left for piece in chunk.pieces for key in keys}
        for box in [k for k in kept.found if k not in needed]:
            del kept.found[box]
