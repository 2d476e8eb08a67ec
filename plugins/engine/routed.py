"""What experts are multiplied by: of each the rows that were routed to it, one expert after another, on the host.

A block's experts are never decoded together, and XᵀX of one is all that is held of these: the others lie on disk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.dequantize.traced import decode

ROWS = 1024  # that go through an expert at once


@dataclass(frozen=True)
class Routed:
    """One mixture of experts of a block, as its trace tells of it. Each of the names is a tensor of all experts, or
    there are as many as there are experts.

    Attributes:
        into: names of the matrices that inputs go into; of gate and up where they lie apart.
        biases: their names, or None for those that have none.
        out: names of the matrix behind.
        activation: what is between, of as many arrays as `into` has.
    """

    into: tuple[tuple[str, ...], ...]
    biases: tuple[tuple[str, ...] | None, ...]
    out: tuple[str, ...]
    activation: Callable[..., Any]


class Hessians:
    """Files of XᵀX / tokens, fp32, `STEM.N.hessian.K.npy` each; N the block, K counts."""

    def __init__(self, folder: Path, stem: str):
        self._folder, self._stem, self._count = folder, stem, 0

    def room(self, shape: tuple[int, ...]) -> tuple[str, Any]:
        """The name of another file, and its array."""
        name = f"{self._stem}.hessian.{self._count}.npy"
        self._count += 1
        return name, np.lib.format.open_memmap(self._folder / name, "w+", np.dtype(np.float32), shape)


class _Side:
    """Statistics of the inputs of one matrix of every expert."""

    def __init__(self, experts: int, width: int, hessians: Hessians | None):
        self.tokens = np.zeros(experts, np.int64)
        self.square = np.zeros((experts, width), np.float64)
        self.absmax = np.zeros((experts, width), np.float32)
        self.file, self.hessian = ("", None) if hessians is None else hessians.room((experts, width, width))

    def add(self, expert: int, x: Any, sums: Any) -> None:
        """Rows x [n, in], fp32; `sums` [in, in] of the expert, to which they are added."""
        self.tokens[expert] += len(x)
        self.square[expert] += np.square(x, dtype=np.float64).sum(0)
        np.maximum(self.absmax[expert], np.abs(x).max(0, initial=0), out=self.absmax[expert])
        if sums is not None:
            sums += x.T @ x

    def room(self) -> Any:
        """Zeros for the sums of one expert."""
        return None if self.hessian is None else np.zeros(self.hessian.shape[1:], np.float32)

    def done(self, expert: int, sums: Any) -> None:
        if sums is not None:
            self.hessian[expert] = sums / np.float32(max(1, self.tokens[expert]))

    def told(self, names: Sequence[str]) -> dict[str, Any]:
        """NAME/statistic → array; see `plugins.engine.observe`."""
        found: dict[str, Any] = {}
        square = (self.square / np.maximum(self.tokens, 1)[:, None]).astype(np.float32)
        for e, name in enumerate(names):
            own: Any = slice(None) if len(names) == 1 else e
            found[f"{name}/tokens"] = self.tokens[own]
            found[f"{name}/mean_square"], found[f"{name}/absmax"] = square[own], self.absmax[own]
            if self.hessian is not None:
                found[f"{name}/hessian"] = np.asarray(self.file)
                found[f"{name}/part"] = np.asarray([] if len(names) == 1 else [e], np.int64)
        if self.hessian is not None:
            self.hessian.flush()
        return found


def experts(
    seen: Routed, x: Any, live: Any, held: Mapping[tuple[str, ...], Any], hessians: Hessians | None
) -> dict[str, Any]:
    """Statistics of one mixture, NAME/statistic → array; XᵀX go into files.

    Args:
        x: what was routed, [rows, in], of the dtype of activations; may lie on disk.
        live: which rows each expert was chosen for, bool [rows, experts].
        held: names of a parameter → its array or QTensor, [experts, …].
    """
    count = live.shape[1]
    widths = (x.shape[1], held[seen.out].shape[-1])
    into, out = (_Side(count, width, hessians) for width in widths)
    act = jax.jit(lambda *inside: seen.activation(*inside))
    for e in range(count):
        rows, sums = np.flatnonzero(live[:, e]), (into.room(), out.room())
        weights = [np.asarray(_taken(held[names], e)) for names in seen.into] if len(rows) else []
        biases = [None if names is None else np.asarray(_taken(held[names], e)) for names in seen.biases]
        for at in range(0, len(rows), ROWS):
            part = np.asarray(x[rows[at : at + ROWS]])
            wide = part.astype(np.float32)
            inside = [wide @ w.T + (0 if b is None else b) for w, b in zip(weights, biases, strict=True)]
            padded = [np.pad(y.astype(part.dtype), ((0, ROWS - len(y)), (0, 0))) for y in inside]
            into.add(e, wide, sums[0])
            out.add(e, np.asarray(act(*padded)).astype(np.float32)[: len(part)], sums[1])
        into.done(e, sums[0])
        out.done(e, sums[1])
    found = out.told(seen.out)
    for names in seen.into:
        found |= into.told(names)
    return found


@jax.jit
def _taken(w: Any, e: Any) -> Any:
    """Of one expert, fp32."""
    one = jax.tree.map(lambda a: a[e], w)
    return decode(one, jnp.float32) if isinstance(one, QTensor) else one.astype(jnp.float32)
