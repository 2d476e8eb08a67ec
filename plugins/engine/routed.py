"""What experts are multiplied by: of each the rows that were routed to it, on the devices that there are.

Experts are dealt out: one is a single device's, and its rows go through it in the same portions and order however many
devices there are, so that bytes do not depend on that. A block's experts are never decoded together, and XᵀX of one is
all that a device holds of these: the others lie on disk. Sums are float32 in a portion and float64 over portions, XᵀX
float32.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.files import of_storage
from pipeline.tensors.qtensor import QTensor
from plugins.kernels.dequantize.traced import decode

ROWS = 1024  # that go through an expert at once
MULTIPLES = 128  # of so many rows programs are compiled for; what is lacking are zeros
BANDS = 4  # of rows of XᵀX: right of the square on the diagonal there is nothing new, 3/8 of all


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
        with of_storage(self._folder / name), (self._folder / name).open("wb") as file:
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

    def none(self, device: Any) -> list[Any]:
        """The bands of XᵀX on its device, before any row; none where it is not wanted."""
        bands = _bands(self.square.shape[1]) if self.file else []
        return [jnp.zeros((band.stop - band.start, band.stop), jnp.float32, device=device) for band in bands]

    def add(self, expert: int, count: int, square: Any, absmax: Any) -> None:
        """So many rows more, and what `_through` says of them."""
        self.tokens[expert] += count
        self.square[expert] += np.asarray(square)
        np.maximum(self.absmax[expert], np.asarray(absmax), out=self.absmax[expert])

    def keep(self, expert: int, x: Any, at: int, of: int) -> None:
        """Samples of rows x [n, in], which begin at row `at` of `of` rows that there are."""
        wanted = spaced(of, self.sample.shape[1], again=True) - at
        mine = (wanted >= 0) & (wanted < len(x))
        self.sample[expert, mine] = x[wanted[mine]]

    def done(self, expert: int, bands: Sequence[Any]) -> None:
        """Write XᵀX / tokens of the next expert."""
        if not self.file:
            return
        whole = np.empty((self.square.shape[1],) * 2, np.float32)
        for at, band in zip(_bands(len(whole)), map(np.asarray, bands), strict=True):
            whole[at, : at.stop] = band
            whole[: at.start, at] = band[:, : at.start].T
        whole /= np.float32(max(1, self.tokens[expert]))
        self._into.write(whole.data)

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


class _Expert:
    """One expert on its device."""

    def __init__(
        self, seen: Routed, number: int, rows: Any, held: Mapping[tuple[str, ...], Any], device: Any,
        into: _Side, out: _Side | None,
    ):  # fmt: skip
        """
        Args:
            rows: indices of those that chose it.
            held: see `experts`.
            into, out: what is said of both sides; None: nothing is, and no row goes through.
        """
        self.number, self.rows, self.device, self.activation = number, rows, device, seen.activation
        self.sides = (into,) if out is None else (into, out)
        self.sums = [side.none(device) for side in self.sides]
        through = out is not None and len(rows) > 0
        self.weights = [self._on_device(held[names]) for names in seen.into] if through else []
        self.biases = [None if of is None else self._on_device(held[of]) for of in seen.biases] if through else []
        self._kept = into.sample.size > 0
        self._found: Any = None

    def _on_device(self, w: Any) -> Any:
        """Its own of a parameter, fp32; packed ones travel as they are."""
        return _wide(jax.device_put(_taken(w, self.number), self.device))

    def ask(self, x: Any, at: int) -> None:
        """Have the device look at its rows of `x` from the `at`th on; what it says is there when it is done."""
        part = np.asarray(x[self.rows[at : at + ROWS]])
        padded = np.zeros((-(-len(part) // MULTIPLES) * MULTIPLES, x.shape[1]), part.dtype)
        padded[: len(part)] = part
        given = jax.device_put((padded, np.int32(len(part))), self.device)
        of: dict[str, Any] = {"activation": self.activation, "kept": self._kept}
        self.sums, *found = _through(self.sums, *given, self.weights, self.biases, **of)
        self._found = (part, *found)

    def take(self, at: int) -> None:
        """What the device says of what it was asked."""
        part, told, kept = self._found
        for side, of in zip(self.sides, told, strict=True):
            side.add(self.number, len(part), *of)
        for side, inputs in zip(self.sides, (part, *kept), strict=True) if self._kept else ():
            side.keep(self.number, np.asarray(inputs)[: len(part)].astype(np.float32), at, len(self.rows))

    def done(self) -> None:
        for side, bands in zip(self.sides, self.sums, strict=True):
            side.done(self.number, bands)


def experts(
    seen: Routed, x: Any, live: Any, held: Mapping[tuple[str, ...], Any], hessians: Hessians | None, samples: int, *,
    devices: Sequence[Any], only: Collection[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Statistics of one mixture, NAME/statistic → array; XᵀX go into files.

    Args:
        x: what was routed, [rows, in], of the dtype of activations; may lie on disk.
        live: which rows each expert was chosen for, bool [rows, experts].
        held: names of a parameter → its array or QTensor, [experts, …].
        samples: rows of inputs that are kept of every expert.
        devices: that experts are dealt out to.
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
        for first in range(0, count, len(devices)):
            given = zip(range(first, count), devices, strict=False)
            mine = [
                _Expert(seen, e, np.flatnonzero(live[:, e]), held, device, into, out if sides[1] else None)
                for e, device in given
            ]
            for at in range(0, max(len(one.rows) for one in mine), ROWS):
                going = [one for one in mine if at < len(one.rows)]
                for one in going:
                    one.ask(x, at)
                for one in going:  # all of them were asked before the first is waited for
                    one.take(at)
            for one in mine:
                one.done()
    found = out.told(seen.out) if sides[1] else {}
    for names in seen.into if sides[0] else ():
        found |= into.told(names)
    return found


def spaced(count: int, wanted: int, *, again: bool = False) -> Any:
    """Indices of `wanted` of `count` rows, evenly spaced; all where there are fewer, or some of these `again`."""
    return np.linspace(0, count - 1, wanted if again else min(count, wanted)).astype(int)


def _bands(width: int) -> list[slice]:
    """Rows of XᵀX that are made together, of its columns up to the last of them."""
    size = -(-width // BANDS)
    return [slice(start, min(width, start + size)) for start in range(0, width, size)]


@partial(jax.jit, static_argnames=("activation", "kept"), donate_argnums=0)
def _through(
    sums: Sequence[Sequence[Any]], x: Any, count: Any, weights: Sequence[Any], biases: Sequence[Any], *,
    activation: Callable[..., Any], kept: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Rows through an expert; of each side the bands of XᵀX, and of these rows the squares' sum and the largest value.

    Args:
        sums: of each side, its bands so far, or none.
        x: [n, in], of which `count` are rows and the others zeros.
        weights, biases: of the matrices that inputs go into; none: the side behind them is not looked at.
        kept: give what comes out of the activation as well.
    """
    sides = [x.astype(jnp.float32)]
    if weights:
        inside = [_product(sides[0], w.T) + (0 if b is None else b[None]) for w, b in zip(weights, biases, strict=True)]
        hidden = activation(*(y.astype(x.dtype) for y in inside)).astype(jnp.float32)
        sides.append(jnp.where((jnp.arange(len(x)) < count)[:, None], hidden, 0))
    added = [
        [
            band + _product(side[:, at].T, side[:, : at.stop])
            for at, band in zip(_bands(side.shape[1]), so_far, strict=False)
        ]
        for side, so_far in zip(sides, sums, strict=True)
    ]
    told = [(jnp.sum(side * side, 0), jnp.max(jnp.abs(side), 0)) for side in sides]
    return added, told, sides[1:] if kept else []


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _taken(w: Any, e: Any) -> Any:
    """Of one expert, as it is packed."""
    return jax.tree.map(lambda a: a[e], w)


@jax.jit
def _wide(one: Any) -> Any:
    """In fp32."""
    return decode(one, jnp.float32) if isinstance(one, QTensor) else one.astype(jnp.float32)
