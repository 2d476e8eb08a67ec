"""softmax as a Pallas kernel, and its gradient as another.

A row that a multiprocessor holds in registers is read once: of its maximum m and the sum l = Σ exp(x - m) its
probabilities are exp(x - m) / l. Of longer rows a kernel reads pieces, each for itself, so that few rows keep a device
busy too. What pieces found is put together as in online softmax (Milakov and Gimelshein, arXiv 1805.02867),

    m ← max(m, m')        l ← l · exp(m_before - m) + l' · exp(m' - m)

and what becomes of each element then is left to XLA, whose loops are as fast as a copy. A sink is a logit that is there
from the start: m = sink, l = 1. For the gradient m and l are kept, and no probability is. With δ = Σ p · dy over a row:

    dx = p · (dy - δ)        dsink = -exp(sink - m) / l · δ, summed over the rows that share it

Nothing is made longer beforehand, which would take as long as all of this: what lies past the end of a row is masked.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.pallas.blocks import power
from plugins.kernels.pallas.launch import Device, everywhere, masked_load, masked_store
from plugins.kernels.varying import alike

HELD = 16384  # columns of a row that is read once, at most
PIECE = 4096  # columns of a piece of longer rows
ROWS = 8  # of a block on TPUs, whose registers have so many
VALUES = 2048  # of a block on GPUs, at least where there are so many
EACH = 16  # values that a thread has, at least
WARPS = 16  # of a block, at most


def softmax(x: Any, *, axis: int = -1, sinks: Any = None, where: Any = None) -> Any:
    """See the op's docstring."""
    x = jnp.moveaxis(jnp.asarray(x), axis, -1)
    seen = extra = None
    if where is not None:
        seen = jnp.moveaxis(jnp.broadcast_to(jnp.asarray(where), jnp.moveaxis(x, -1, axis).shape), axis, -1)
        seen = seen.reshape(-1, x.shape[-1])
    if sinks is not None:  # of x's rank, and of length 1 along the axis
        extra = jnp.moveaxis(jnp.asarray(sinks), axis, -1).astype(jnp.float32)
        extra = jnp.broadcast_to(extra, (*x.shape[:-1], 1)).reshape(-1, 1)
    found = _softmax(*alike(x.reshape(-1, x.shape[-1]), seen, extra))
    return jnp.moveaxis(found.reshape(x.shape), -1, axis)


@jax.custom_vjp
def _softmax(x: Any, seen: Any, sinks: Any) -> Any:
    """`[R, C]` of `x` `[R, C]`, `seen` bool `[R, C]` or None, `sinks` float32 `[R, 1]` or None."""
    return _found(x, seen, sinks)[0]


def _found(x: Any, seen: Any, sinks: Any) -> Any:
    """Probabilities `[R, C]` of x's dtype, and float32 m and l `[R, 1]`."""
    if x.shape[1] <= HELD:
        return everywhere(_over_rows, _How(_row, (-jnp.inf, 0), True, 2), (x, seen), (sinks,))
    tops, sums = everywhere(_over_rows, _How(_piece, (-jnp.inf, 0), False, 2), (x, seen), ())
    top = jnp.max(tops, axis=0) if sinks is None else jnp.maximum(jnp.max(tops, axis=0), sinks)
    top = jnp.where(top == -jnp.inf, 0.0, top)
    total = jnp.sum(sums * jnp.exp(tops - top), axis=0)
    if sinks is not None:
        total += jnp.exp(sinks - top)
    total = jnp.where(total == 0, 1.0, total)
    return (jnp.exp(_logits(x, seen) - top) / total).astype(x.dtype), top, total


def _forward(x: Any, seen: Any, sinks: Any) -> tuple[Any, Any]:
    asked = wanted(x, sinks)
    x, seen, sinks = given((x, seen, sinks))
    p, m, total = _found(x, seen, sinks)
    return p, (x, seen, sinks, m, total, asked)


@once
def _turned(how: None, kept: Any, dy: Any) -> tuple[Any, Any, Any]:
    x, seen, sinks, m, total, asked = kept
    for_x, for_sinks = asked.flags
    wide, narrow, fills = (x, seen, cotangent(dy)), (m, total), (-jnp.inf, 0, 0)
    if x.shape[1] <= HELD:
        dx, through = everywhere(_over_rows, _How(_row_back, fills, True, 1), wide, narrow)
    else:
        (parts,) = everywhere(_over_rows, _How(_piece_back, fills, False, 1), wide, narrow)
        through = jnp.sum(parts, axis=0)
        p = jnp.exp(_logits(x, seen) - m) / total
        dx = (p * (wide[2].astype(jnp.float32) - through)).astype(x.dtype)
    d_sinks = -jnp.exp(sinks - m) / total * through if for_sinks else None
    return dx if for_x else None, None, d_sinks


_softmax.defvjp(_forward, partial(_turned, None), symbolic_zeros=True)


@dataclass(frozen=True)
class _How:
    """A kernel over blocks of rows, or over pieces of rows.

    Attributes:
        body: of wide and narrow arrays of a block, or None for those that there are not, a list of what it makes.
        fills: what lies past the end of a row, of wide arrays.
        whole: blocks have whole rows, and the first result is `[R, C]` of x's dtype.
        sums: how many results have one float32 for each row: `[R, 1]`, or of pieces `[pieces, R, 1]`.
    """

    body: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    fills: tuple[float, ...]
    whole: bool
    sums: int


def _over_rows(how: _How, device: Device, wide: Sequence[Any], narrow: Sequence[Any]) -> tuple[Any, ...]:
    """Over arrays `[R, C]`, the first of which is x, and `[R, 1]`; any but x may be None."""
    rows, columns = wide[0].shape
    block = _Block.of(device, rows, columns, how.whole)
    fills = *how.fills, *(0,) * len(narrow)
    there = [a is not None for a in (*wide, *narrow)]
    lies = [block.wide] * len(wide) + [block.narrow] * len(narrow)

    def kernel(*refs: Any) -> None:
        left = iter(refs)
        given = [block.read(next(left), fill) if some else None for some, fill in zip(there, fills, strict=True)]
        for made, ref in zip(how.body(given[: len(wide)], given[len(wide) :]), left, strict=True):
            block.write(ref, made)

    many = how.sums
    results: list[Any] = [((block.rows, 1) if how.whole else (block.pieces, block.rows, 1), jnp.float32)] * many
    specs = [block.narrow if how.whole else block.of_pieces] * many
    if how.whole:
        results, specs = [(wide[0].shape, wide[0].dtype), *results], [block.wide, *specs]
    return device.call(
        kernel, results, [_stored(a) for a in (*wide, *narrow) if a is not None], grid=block.grid, warps=block.warps,
        in_specs=[spec for spec, some in zip(lies, there, strict=True) if some], out_specs=specs,
    )  # fmt: skip


@dataclass(frozen=True)
class _Block:
    """What a point of the grid has of `[rows, columns]`: `down` × `across`, which may reach past both ends."""

    device: Device
    rows: int
    columns: int
    down: int
    across: int

    @staticmethod
    def of(device: Device, rows: int, columns: int, whole: bool) -> "_Block":
        if device.overhangs:
            return _Block(device, rows, columns, ROWS, columns if whole else PIECE)
        across = power(columns) if whole else PIECE
        return _Block(device, rows, columns, min(power(rows), max(1, VALUES // across)), across)

    @property
    def pieces(self) -> int:
        """Of a row; those of a row come one after another in the grid."""
        return -(-self.columns // self.across)

    @property
    def grid(self) -> tuple[int]:
        return (-(-self.rows // self.down) * self.pieces,)

    @property
    def warps(self) -> int:
        return min(WARPS, max(4, self.down * self.across // (32 * EACH)))

    def _at(self, point: Any) -> tuple[Any, Any]:
        """Which block, down and across, a point of the grid has."""
        return (point, 0) if self.pieces == 1 else (lax.div(point, self.pieces), lax.rem(point, self.pieces))

    @property
    def wide(self) -> Any:
        return pl.BlockSpec((self.down, self.across), self._at)

    @property
    def narrow(self) -> Any:
        return pl.BlockSpec((self.down, 1), lambda point: (self._at(point)[0], 0))

    @property
    def of_pieces(self) -> Any:
        return pl.BlockSpec((None, self.down, 1), lambda point: (*self._at(point)[::-1], 0))

    def _there(self, width: int) -> Any:
        """Which elements of a block are in the array, bool `[down, width]`; None: all of them.

        Where blocks may overhang rows need no care: none knows of another, and those past the end are lost.
        """
        inside, starts = [], self._at(pl.program_id(0))
        for axis, (size, each) in enumerate([(self.rows, self.down), (self.columns, self.across)]):
            if size % each and (width > 1 if axis else not self.device.overhangs):
                here = lax.broadcasted_iota(jnp.int32, (self.down, width), axis)
                inside.append(here + starts[axis] * each < size)
        return reduce(operator.and_, inside) if inside else None

    def read(self, ref: Any, fill: float) -> Any:
        inside, other = self._there(ref.shape[-1]), np.asarray(fill, ref.dtype)
        if inside is None:
            return ref[...]
        if self.device.overhangs:
            return jnp.where(inside, ref[...], other)
        return masked_load(ref, mask=inside, other=other)

    def write(self, ref: Any, array: Any) -> None:
        inside, array = self._there(ref.shape[-1]), array.astype(ref.dtype)
        if inside is None or self.device.overhangs:
            ref[...] = array
        else:
            masked_store(ref, array, mask=inside)


def _stored(array: Any) -> Any:
    return array.astype(jnp.int8) if array.dtype == jnp.bool_ else array


def _logits(x: Any, seen: Any) -> Any:
    logits = x.astype(jnp.float32)
    return logits if seen is None else jnp.where(seen != 0, logits, -jnp.inf)


def _powers(logits: Any, sinks: Any = None) -> tuple[Any, Any, Any]:
    """m and exp(logits - m) of rows, and the sum of these; m is -inf where nothing takes part."""
    top = jnp.max(logits, axis=1, keepdims=True)
    top = top if sinks is None else jnp.maximum(top, sinks)
    base = jnp.where(top == -jnp.inf, 0.0, top)  # no -inf - -inf
    powers = jnp.exp(logits - base)
    total = jnp.sum(powers, axis=1, keepdims=True)
    return top, powers, total if sinks is None else total + jnp.exp(sinks - base)


def _row(wide: Sequence[Any], narrow: Sequence[Any]) -> list[Any]:
    (x, seen), (sinks,) = wide, narrow
    top, powers, total = _powers(_logits(x, seen), sinks)
    top, total = jnp.where(top == -jnp.inf, 0.0, top), jnp.where(total == 0, 1.0, total)
    return [powers / total, top, total]


def _piece(wide: Sequence[Any], narrow: Sequence[Any]) -> list[Any]:
    top, _, total = _powers(_logits(*wide))
    return [top, total]


def _terms(wide: Sequence[Any], narrow: Sequence[Any]) -> tuple[Any, Any, Any]:
    """p, dy and δ."""
    (x, seen, dy), (m, total) = wide, narrow
    p, dy = jnp.exp(_logits(x, seen) - m) / total, dy.astype(jnp.float32)
    return p, dy, jnp.sum(p * dy, axis=1, keepdims=True)


def _row_back(wide: Sequence[Any], narrow: Sequence[Any]) -> list[Any]:
    p, dy, through = _terms(wide, narrow)
    return [p * (dy - through), through]


def _piece_back(wide: Sequence[Any], narrow: Sequence[Any]) -> list[Any]:
    return [_terms(wide, narrow)[2]]
