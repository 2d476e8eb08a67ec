"""Extremes of whole matrices and of whole rows, for scales that they share, without holding them.

A task sees a box; a scale of the whole tensor depends on all rows, and one of a row on all of the row. The first task
that needs it scans the matrix, or the rows, in slices and keeps two numbers for the others of its process. What fits
one task is not read twice.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.tensors.blocks import grain_of
from pipeline.tensors.chunks import cut
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.store import Index, TensorStore, normalize

SLICE_ELEMS = 4 << 20

Box = tuple[slice, ...]
Decode = Callable[[QTensor, str], Any]
_Region = tuple[str, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Extremes:
    """Smallest and largest value of every matrix of a box, or of every band of rows of one.

    Attributes:
        low, high: float32 `[..., 1, 1]` over the box's leading dimensions (`[1]` for a vector), `[..., bands, 1]` of
            bands. NaN where there is one.
    """

    low: Any
    high: Any

    @property
    def amax(self) -> Any:
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @classmethod
    def of(cls, x: Any) -> "Extremes":
        """Of an array `[..., rows, n]` that holds whole matrices."""
        axes = tuple(range(max(0, x.ndim - 2), x.ndim))
        low, high = (f(x, axis=axes, keepdims=True).astype(np.float32) for f in (np.min, np.max))
        return cls(low, high)


class ExtremesOf:
    """Extremes of the matrices and rows of one store, scanned once a process. Pickles empty."""

    def __init__(self) -> None:
        self._found: dict[_Region, tuple[float, float]] = {}
        self._locks: dict[_Region, threading.Lock] = {}
        self._guard = threading.Lock()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def box(self, store: TensorStore, name: str, box: Index, decode: Decode) -> Extremes | None:
        """Of the matrices that `box` touches; None when it holds them whole, so that the caller sees for itself."""
        shape = store.specs[name].shape
        whole = normalize(box, shape)
        return None if _holds(whole, shape, 2) else self._of(store, name, whole, _height(shape), decode)

    def bands(self, store: TensorStore, name: str, box: Index, rows: int, decode: Decode) -> Extremes | None:
        """Of each `rows` rows, from end to end, that `box` touches; None when it holds them whole.

        Args:
            box: a box of whole bands.
        """
        shape = store.specs[name].shape
        whole = normalize(box, shape)
        return None if _holds(whole, shape, 1) else self._of(store, name, whole, rows, decode)

    def _of(self, store: TensorStore, name: str, box: Box, rows: int, decode: Decode) -> Extremes:
        """Of whole rows, `rows` together."""
        shape = store.specs[name].shape
        first, last = _bands(shape, box, rows)
        grid = tuple(s.stop - s.start for s in box[:-2])
        low = np.empty((*grid, last - first, 1) if shape[:-1] else (1,), np.float32)
        high = np.empty_like(low)
        for where, region in _regions(shape, box, rows):
            low[where], high[where] = self._region(store, name, region, decode)
        return Extremes(low, high)

    def _region(self, store: TensorStore, name: str, region: Box, decode: Decode) -> tuple[float, float]:
        key = (name, tuple(s.start for s in region), tuple(s.stop for s in region))
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # one task scans, the others wait for what it finds
            if key not in self._found:
                self._found[key] = _scan(store, name, region, decode)
            return self._found[key]


def scanned(shape: tuple[int, ...], boxes: Iterable[Box], rows: int | None = None) -> tuple[Box, ...]:
    """Regions of a tensor of `shape` that are read for what `ExtremesOf` says of these boxes: each once.

    Args:
        rows: as `bands` takes them; None: as of `box`, whole matrices.
    """
    high, dims = (_height(shape), 2) if rows is None else (rows, 1)
    parts = (box for box in boxes if not _holds(box, shape, dims))
    regions = (region for box in parts for _, region in _regions(shape, box, high))
    return tuple({tuple((s.start, s.stop) for s in region): region for region in regions}.values())


def _height(shape: tuple[int, ...]) -> int:
    """Rows of a matrix."""
    return max(1, math.prod(shape[-2:-1]))


def _holds(box: Box, shape: tuple[int, ...], dims: int) -> bool:
    """Whether the box has all of the last `dims` dimensions."""
    return all((s.start, s.stop) == (0, n) for s, n in zip(box[-dims:], shape[-dims:], strict=True))


def _bands(shape: tuple[int, ...], box: Box, rows: int) -> tuple[int, int]:
    """The first band of `rows` rows that `box` touches, and the one after the last."""
    if rows >= (shape[-2] if shape[:-1] else 1):
        return 0, 1
    return box[-2].start // rows, -(-box[-2].stop // rows)


def _regions(shape: tuple[int, ...], box: Box, rows: int) -> Iterator[tuple[tuple[int, ...], Box]]:
    """The bands of `rows` whole rows that `box` touches, each with its place among them."""
    *lead, n = shape
    first, last = _bands(shape, box, rows)
    for at in np.ndindex(*(s.stop - s.start for s in box[:-2])):
        matrix = tuple(slice(s.start + i, s.start + i + 1) for s, i in zip(box[:-2], at, strict=True))
        for band in range(first, last):
            across = (slice(band * rows, min((band + 1) * rows, lead[-1])),) if lead else ()
            yield ((*at, band - first, 0) if lead else (0,)), (*matrix, *across, slice(0, n))


def _scan(store: TensorStore, name: str, region: Box, decode: Decode) -> tuple[float, float]:
    """Of a box, read in slices."""
    low, high = np.float32(np.inf), np.float32(-np.inf)
    shape = tuple(s.stop - s.start for s in region)
    for piece in cut(name, shape, SLICE_ELEMS, grain_of(store, name)):
        box = tuple(slice(r.start + s.start, r.start + s.stop) for r, s in zip(region, piece.index, strict=True))
        x = store.read(name, box)
        x = decode(x, "F32") if isinstance(x, QTensor) else x  # as `CodedStore.read` does
        with np.errstate(invalid="ignore"):  # NaN stays
            low, high = np.minimum(low, np.float32(np.min(x))), np.maximum(high, np.float32(np.max(x)))
    return float(low), float(high)
