"""What experts are multiplied by: of each the rows that were routed to it, one expert after another, on the host.

A block's experts are never decoded together, and XᵀX of one is all that is held of these: the others lie on disk.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
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

    @property
    def names(self) -> frozenset[str]:
        """Of all matrices."""
        return frozenset((*chain(*self.into), *self.out))


class Hessians:
    """Files of XᵀX / tokens, fp32, `STEM.N.hessian.K.npy` each; N the block, K counts."""

    def __init__(self, folder: Path, stem: str):
        self._folder, self._stem, self._count = folder, stem, 0

    @contextmanager
    def another(self, shape: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
        """The name of another file, and the file, into which the values of `shape` are to be written in order: a
        mapping would keep all of it in memory until the system wants that."""
        name = f"{self._stem}.hessian.{self._count}.npy"
        self._count += 1
        with (self._folder / name).open("wb") as file:
            head = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, head)
            yield name, file


class _Side:
    """Statistics of the inputs of one matrix of every expert.

    Attributes:
        file: where their XᵀX lie; empty: nowhere.
    """

    def __init__(self, experts: int, width: int, samples: int, file: str, into: Any):
        self.tokens = np.zeros(experts, np.int64)
        self.square = np.zeros((experts, width), np.float64)
        self.absmax = np.zeros((experts, width), np.float32)
        self.sample = np.zeros((experts, samples, width), np.float32)
        self.file, self._into = file, into
        self._sums = np.zeros((width, width), np.float32) if file else None  # of the expert that is looked at

    def add(self, expert: int, x: Any, at: int, of: int) -> None:
        """Rows x [n, in], fp32, from row `at` of `of` rows that there are."""
        wanted = spaced(of, self.sample.shape[1], again=True) - at
        mine = (wanted >= 0) & (wanted < len(x))
        self.sample[expert, mine] = x[wanted[mine]]
        self.tokens[expert] += len(x)
        self.square[expert] += np.square(x, dtype=np.float64).sum(0)
        np.maximum(self.absmax[expert], np.abs(x).max(0, initial=0), out=self.absmax[expert])
        if self._sums is not None:
            self._sums += x.T @ x

    def done(self, expert: int) -> None:
        if self._sums is not None:
            self._into.write((self._sums / np.float32(max(1, self.tokens[expert]))).data)
            self._sums[...] = 0

    def told(self, names: Sequence[str]) -> dict[str, Any]:
        """NAME/statistic → array; see `plugins.engine.observe`."""
        found: dict[str, Any] = {}
        square = (self.square / np.maximum(self.tokens, 1)[:, None]).astype(np.float32)
        for e, name in enumerate(names):
            own: Any = slice(None) if len(names) == 1 else e
            found[f"{name}/tokens"] = self.tokens[own]
            found[f"{name}/mean_square"], found[f"{name}/absmax"] = square[own], self.absmax[own]
            if self.sample.size:
                found[f"{name}/sample"] = self.sample[own]
            if self.file:
                found[f"{name}/hessian"] = np.asarray(self.file)
                found[f"{name}/part"] = np.asarray([] if len(names) == 1 else [e], np.int64)
        return found


def experts(
    seen: Routed, x: Any, live: Any, held: Mapping[tuple[str, ...], Any], hessians: Hessians | None, samples: int, *,
    only: Collection[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Statistics of one mixture, NAME/statistic → array; XᵀX go into files.

    Args:
        x: what was routed, [rows, in], of the dtype of activations; may lie on disk.
        live: which rows each expert was chosen for, bool [rows, experts].
        held: names of a parameter → its array or QTensor, [experts, …].
        samples: rows of inputs that are kept of every expert.
        only: of other tensors nothing is added up; None: of all.
    """
    sides = [only is None or not names.isdisjoint(only) for names in ({*chain(*seen.into)}, {*seen.out})]
    count = live.shape[1]
    widths = (x.shape[1], held[seen.out].shape[-1])
    with ExitStack() as stack:
        files = [
            stack.enter_context(hessians.another((count, n, n))) if hessians is not None and wanted else ("", None)
            for n, wanted in zip(widths, sides, strict=True)
        ]
        into, out = (_Side(count, n, samples, *file) for n, file in zip(widths, files, strict=True))
        act = jax.jit(lambda *inside: seen.activation(*inside))
        for e in range(count):
            rows = np.flatnonzero(live[:, e])
            weights = [np.asarray(_taken(held[names], e)) for names in seen.into] if len(rows) and sides[1] else []
            biases = [None if names is None else np.asarray(_taken(held[names], e)) for names in seen.biases]
            for at in range(0, len(rows), ROWS):
                part = np.asarray(x[rows[at : at + ROWS]])
                wide = part.astype(np.float32)
                if sides[0]:
                    into.add(e, wide, at, len(rows))
                if not sides[1]:
                    continue
                inside = [wide @ w.T + (0 if b is None else b) for w, b in zip(weights, biases, strict=True)]
                padded = [np.pad(y.astype(part.dtype), ((0, ROWS - len(y)), (0, 0))) for y in inside]
                out.add(e, np.asarray(act(*padded)).astype(np.float32)[: len(part)], at, len(rows))
            into.done(e)
            out.done(e)
    found = out.told(seen.out) if sides[1] else {}
    for names in seen.into if sides[0] else ():
        found |= into.told(names)
    return found


def spaced(count: int, wanted: int, *, again: bool = False) -> Any:
    """Indices of `wanted` of `count` rows, evenly spaced; all where there are fewer, or some of these `again`."""
    return np.linspace(0, count - 1, wanted if again else min(count, wanted)).astype(int)


@jax.jit
def _taken(w: Any, e: Any) -> Any:
    """Of one expert, fp32."""
    one = jax.tree.map(lambda a: a[e], w)
    return decode(one, jnp.float32) if isinstance(one, QTensor) else one.astype(jnp.float32)
