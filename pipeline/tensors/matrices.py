"""Extremes of whole matrices, for scales that a whole matrix shares, without holding the matrix.

A task sees a slice of rows; a per-tensor scale depends on all rows. The first task that needs it scans the matrix in
slices and keeps two numbers a matrix for the others of its process. A matrix that fits one task is not read twice.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.store import Index, TensorStore, normalize

SLICE_ELEMS = 4 << 20


@dataclass(frozen=True, slots=True)
class Extremes:
    """Smallest and largest value of every matrix of a box.

    Attributes:
        low, high: float32 `[..., 1, 1]` over the box's leading dimensions (`[1]` for a vector).
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
    """Extremes of the matrices of one store, scanned once a process. Pickles empty."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, tuple[int, ...]], tuple[float, float]] = {}
        self._locks: dict[tuple[str, tuple[int, ...]], threading.Lock] = {}
        self._guard = threading.Lock()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def box(self, store: TensorStore, name: str, box: Index, decode: Callable[[QTensor, str], Any]) -> Extremes | None:
        """Of the matrices that `box` touches; None when it holds them whole, so that the caller sees for itself."""
        shape = store.specs[name].shape
        whole = normalize(box, shape)
        if all((s.start, s.stop) == (0, n) for s, n in zip(whole[-2:], shape[-2:], strict=True)):
            return None
        lead = whole[:-2]
        grid = tuple(s.stop - s.start for s in lead)
        low = np.empty((*grid, *(1,) * min(2, len(shape))), np.float32)
        high = np.empty_like(low)
        for at in np.ndindex(*grid):
            matrix = tuple(s.start + i for s, i in zip(lead, at, strict=True))
            low[at], high[at] = self._matrix(store, name, matrix, decode)
        return Extremes(low, high)

    def _matrix(self, store: TensorStore, name: str, matrix: tuple[int, ...], decode: Any) -> tuple[float, float]:
        key = (name, matrix)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # one task scans, the others wait for what it finds
            if key not in self._found:
                self._found[key] = _scan(store, name, matrix, decode)
            return self._found[key]


def _scan(store: TensorStore, name: str, matrix: tuple[int, ...], decode: Any) -> tuple[float, float]:
    shape = store.specs[name].shape
    rows = shape[-2] if len(shape) > 1 else shape[0]
    step = max(1, SLICE_ELEMS // shape[-1]) if len(shape) > 1 else SLICE_ELEMS
    step = -(-step // 128) * 128  # whole blocks of rows
    low, high = np.inf, -np.inf
    for start in range(0, rows, step):
        box = (*(slice(i, i + 1) for i in matrix), slice(start, min(start + step, rows)))
        x = store.read(name, box)
        x = decode(x, "F32") if isinstance(x, QTensor) else x
        low, high = min(low, float(np.min(x))), max(high, float(np.max(x)))
    return low, high
