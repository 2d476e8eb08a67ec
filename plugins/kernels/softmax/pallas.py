"""softmax as a Pallas kernel: online (Milakov and Gimelshein, arXiv 1805.02867), and its gradient as another.

Of a row, the maximum m and the sum l = Σ exp(x - m) are found together, in one pass: columns with maximum m' make of
them

    m ← max(m, m')        l ← l · exp(m_before - m) + Σ exp(x - m)

A sink is a logit that is there from the start: m = sink, l = 1. Then the row, which is in cache, becomes exp(x - m) /
l; for the gradient m and l are kept, and no probability is. With δ = Σ p · dy over a row:

    dx = p · (dy - δ)        dsink = -exp(sink - m) / l · δ, summed over the rows that share it
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.pallas.blocks import padded, power
from plugins.kernels.pallas.launch import Device, everywhere
from plugins.kernels.varying import alike

ROWS = 8  # of a block
COLUMNS = 1024  # of a step along a row, at most


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
    return everywhere(_over_rows, _How(_rows, ((-jnp.inf, 0), (0,)), 2), (x, seen), (sinks,))


def _forward(x: Any, seen: Any, sinks: Any) -> tuple[Any, Any]:
    asked = wanted(x, sinks)
    x, seen, sinks = given((x, seen, sinks))
    p, m, total = _found(x, seen, sinks)
    return p, (x, seen, sinks, m, total, asked)


@once
def _turned(how: None, kept: Any, dy: Any) -> tuple[Any, Any, Any]:
    x, seen, sinks, m, total, asked = kept
    for_x, for_sinks = asked.flags
    back = _How(_rows_back, ((-jnp.inf, 0, 0), (0, 1)), 1)
    dx, gain = everywhere(_over_rows, back, (x, seen, cotangent(dy)), (m, total))
    d_sinks = -jnp.exp(sinks - m) / total * gain if for_sinks else None
    return dx if for_x else None, None, d_sinks


_softmax.defvjp(_forward, partial(_turned, None), symbolic_zeros=True)


@dataclass(frozen=True)
class _How:
    """A kernel over rows: `body(step, wide, narrow, *results)` is handed a reference for each array, or None, and
    gives `[R, C]` of x's dtype and as many float32 `[R, 1]` as `sums`. `fills` are what wide and narrow arrays are
    made longer with."""

    body: Callable[..., None]
    fills: tuple[tuple[float, ...], tuple[float, ...]]
    sums: int


def _over_rows(how: _How, device: Device, wide: Sequence[Any], narrow: Sequence[Any]) -> tuple[Any, ...]:
    """Over blocks of rows of arrays `[R, C]`, the first of which is x, and `[R, 1]`; any but x may be None."""
    rows, columns = wide[0].shape
    step = min(COLUMNS, max(device.lanes, power(columns)))
    of_wide, of_narrow = how.fills
    given = [(a, fill, step) for a, fill in zip(wide, of_wide, strict=True) if a is not None]
    given += [(a, fill, 1) for a, fill in zip(narrow, of_narrow, strict=True) if a is not None]
    made = [padded(_stored(a), {0: ROWS, 1: across}, fill) for a, fill, across in given]
    long, across = made[0].shape
    there = [a is not None for a in (*wide, *narrow)]

    def kernel(*refs: Any) -> None:
        left = iter(refs)
        found = [next(left) if some else None for some in there]
        how.body(step, found[: len(wide)], found[len(wide) :], *left)

    def block(width: int) -> Any:
        return pl.BlockSpec((ROWS, width), lambda i: (i, 0))

    kinds = [(across, wide[0].dtype), *[(1, jnp.float32)] * how.sums]
    first, *others = device.call(
        kernel, [((long, width), kind) for width, kind in kinds], made, grid=(long // ROWS,),
        in_specs=[block(a.shape[1]) for a in made], out_specs=[block(width) for width, _ in kinds],
    )  # fmt: skip
    return first[:rows, :columns], *(a[:rows] for a in others)


def _stored(array: Any) -> Any:
    return array.astype(jnp.int8) if array.dtype == jnp.bool_ else array


def _logits(x: Any, seen: Any, at: Any) -> Any:
    logits = x[at].astype(jnp.float32)
    return logits if seen is None else jnp.where(seen[at] != 0, logits, -jnp.inf)


def _rows(step: int, wide: Any, narrow: Any, p: Any, m: Any, total: Any) -> None:
    (x, seen), (sinks,) = wide, narrow

    def columns(c: Any) -> Any:
        return slice(None), pl.ds(pl.multiple_of(c * step, step), step)

    def more(c: Any, so_far: Any) -> Any:
        top, sum_ = so_far
        logits = _logits(x, seen, columns(c))
        new = jnp.maximum(top, jnp.max(logits, axis=1, keepdims=True))
        base = jnp.where(new == -jnp.inf, 0.0, new)  # nothing took part yet: no -inf - -inf
        return new, sum_ * jnp.exp(top - base) + jnp.sum(jnp.exp(logits - base), axis=1, keepdims=True)

    if sinks is None:
        begin = jnp.full((ROWS, 1), -jnp.inf, jnp.float32), jnp.zeros((ROWS, 1), jnp.float32)
    else:
        begin = sinks[...], jnp.ones((ROWS, 1), jnp.float32)
    top, sum_ = lax.fori_loop(0, x.shape[1] // step, more, begin)
    top, sum_ = jnp.where(top == -jnp.inf, 0.0, top), jnp.where(sum_ == 0, 1.0, sum_)
    m[...], total[...] = top, sum_

    def write(c: Any, _: Any) -> None:
        p[columns(c)] = (jnp.exp(_logits(x, seen, columns(c)) - top) / sum_).astype(p.dtype)

    lax.fori_loop(0, x.shape[1] // step, write, None)


def _rows_back(step: int, wide: Any, narrow: Any, dx: Any, gain: Any) -> None:
    (x, seen, dy), (m, total) = wide, narrow
    top, sum_ = m[...], total[...]

    def columns(c: Any) -> Any:
        return slice(None), pl.ds(pl.multiple_of(c * step, step), step)

    def terms(c: Any) -> tuple[Any, Any]:
        return jnp.exp(_logits(x, seen, columns(c)) - top) / sum_, dy[columns(c)].astype(jnp.float32)

    def more(c: Any, so_far: Any) -> Any:
        p, d = terms(c)
        return so_far + jnp.sum(p * d, axis=1, keepdims=True)

    through = lax.fori_loop(0, x.shape[1] // step, more, jnp.zeros((ROWS, 1), jnp.float32))
    gain[...] = through

    def write(c: Any, _: Any) -> None:
        p, d = terms(c)
        dx[columns(c)] = (p * (d - through)).astype(dx.dtype)

    lax.fori_loop(0, x.shape[1] // step, write, None)
