"""The kernels of `pallas.py`: what a block of rows gives, and what goes back to it, and to a block of slots.

Each is handed references by name (`Refs`), of what its block has and of what it reads all of; what a call does not have
is absent. `[n, ·]` are rows of a block, `[·, s]` slots.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from plugins.kernels.pallas.decode import values

Refs = Mapping[str, Any]
EVERY = slice(None)


@dataclass(frozen=True, slots=True)
class Options:
    """What a kernel is told beside arrays.

    Attributes:
        element: of packed keys and values.
        rows, slots: of a block.
    """

    scale: float
    softcap: float | None
    window: int | None
    causal: bool
    element: str | None = None
    rows: int = 0
    slots: int = 0


def forward(o: Options, r: Refs, out: Any, m: Any, total: Any) -> None:
    """float32 `out` `[n, E]`, `m` and `total` `[n, 1]` of a block of rows."""
    top, sum_, y = _gathered(o, r, out.shape)
    sum_ = jnp.where(sum_ == 0, 1.0, sum_)
    out[...], m[...], total[...] = y / sum_, jnp.where(top == -jnp.inf, 0.0, top), sum_


def part(o: Options, r: Refs, out: Any, m: Any, total: Any) -> None:
    """The same of some of the slots, to be joined with others: `out` is not divided yet, nor is -inf made 0."""
    m[...], total[...], out[...] = _gathered(o, r, out.shape)


def _gathered(o: Options, r: Refs, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """m and l `[n, 1]`, and Σ exp(logit - m) · v of a `shape` `[n, E]`."""

    def more(j: Any, so_far: Any) -> Any:
        top, sum_, y = so_far
        s = _some(j, o.slots)
        logits, _ = _logits(o, r, EVERY, s)
        new = jnp.maximum(top, jnp.max(logits, axis=1, keepdims=True))
        base = jnp.where(new == -jnp.inf, 0.0, new)  # nothing took part yet: no -inf - -inf
        p, fades = jnp.exp(logits - base), jnp.exp(top - base)
        sum_ = sum_ * fades + jnp.sum(p, axis=1, keepdims=True)
        return new, sum_, y * fades + _times(_of_values(r, p, s), _values(o, r, s))

    if "sinks" in r:
        begin = r["sinks"][...], jnp.ones((o.rows, 1), jnp.float32)
    else:
        begin = jnp.full((o.rows, 1), -jnp.inf, jnp.float32), jnp.zeros((o.rows, 1), jnp.float32)
    found: tuple[Any, Any, Any] = lax.fori_loop(*_reach(r), more, (*begin, jnp.zeros(shape, jnp.float32)))
    return found


def shares(o: Options, r: Refs, share: Any) -> None:
    """float32 `[n, 1]`: Σ p · dp of a block of rows."""

    def more(j: Any, so_far: Any) -> Any:
        p, dp, _ = _pair(o, r, EVERY, _some(j, o.slots))
        return so_far + jnp.sum(p * dp, axis=1, keepdims=True)

    share[...] = lax.fori_loop(*_reach(r), more, jnp.zeros((o.rows, 1), jnp.float32))


def back_to_queries(o: Options, r: Refs, dq: Any) -> None:
    """float32 `dq` `[n, D]` of a block of rows."""

    def more(j: Any, so_far: Any) -> Any:
        s = _some(j, o.slots)
        _, ds = _turned(o, r, EVERY, s)
        k = _keys(o, r, s)
        ds = ds * r["k_scales"][:, s] if "k_scales" in r else ds
        return so_far + _times(ds.astype(k.dtype), k)

    dq[...] = lax.fori_loop(*_reach(r), more, jnp.zeros(dq.shape, jnp.float32))


def back_to_keys(o: Options, r: Refs, dk: Any, dv: Any) -> None:
    """float32 `dk` `[s, D]` and `dv` `[s, E]` of a block of slots."""

    def more(i: Any, so_far: Any) -> Any:
        n = _some(i, o.rows)
        p, ds = _turned(o, r, n, EVERY)
        q, do = r["q"][n, :], r["do"][n, :]
        to_k, to_v = so_far
        return to_k + _times(ds.astype(q.dtype), q, over=0), to_v + _times(p.astype(do.dtype), do, over=0)

    begin = jnp.zeros(dk.shape, jnp.float32), jnp.zeros(dv.shape, jnp.float32)
    dk[...], dv[...] = lax.fori_loop(*_reach(r), more, begin)


def _turned(o: Options, r: Refs, n: Any, s: Any) -> tuple[Any, Any]:
    """float32 `[n, s]`: probabilities, and what goes back to q · k."""
    p, dp, slope = _pair(o, r, n, s)
    return p, p * (dp - r["share"][n, :]) * slope


def _pair(o: Options, r: Refs, n: Any, s: Any) -> tuple[Any, Any, Any]:
    """float32 `[n, s]`: probabilities, what goes back to these, and what logits grow by with q · k."""
    logits, slope = _logits(o, r, n, s)
    p = jnp.exp(logits - r["m"][n, :]) / r["total"][n, :]
    dp = _dot(r["do"][n, :], _values(o, r, s), 1, 1)
    return p, dp * r["v_scales"][:, s] if "v_scales" in r else dp, slope


def _logits(o: Options, r: Refs, n: Any, s: Any) -> tuple[Any, Any]:
    """float32 `[n, s]`, -inf where a row does not see a slot; and what they grow by with q · k."""
    q = r["q"][n, :]
    logits = _dot(q, _keys(o, r, s), 1, 1) * o.scale
    logits = logits * r["k_scales"][:, s] if "k_scales" in r else logits
    slope: Any = o.scale
    if o.softcap is not None:
        bent = jnp.tanh(logits / o.softcap)
        logits, slope = o.softcap * bent, o.scale * (1 - bent * bent)
    at, slot = r["at"][n, :], r["slot"][:, s]
    seen = slot >= 0
    seen = seen & (slot <= at) if o.causal else jnp.broadcast_to(seen, logits.shape)
    seen = seen & (slot > at - o.window) if o.window is not None else seen
    if "own" in r:
        seen = seen & (r["own"][n, :] == r["of_slot"][:, s])
    return jnp.where(seen, logits, -jnp.inf), slope


def _keys(o: Options, r: Refs, s: Any) -> Any:
    return _unpacked(o, r["k"][s, :], r["q"].dtype)


def _values(o: Options, r: Refs, s: Any) -> Any:
    return _unpacked(o, r["v"][s, :], r["q"].dtype)


def _unpacked(o: Options, held: Any, dtype: Any) -> Any:
    """In q's dtype, and of packed ones without their scales, one a slot, which wait for the product."""
    return (held if o.element is None else values(held.astype(jnp.int32), o.element)).astype(dtype)


def _of_values(r: Refs, p: Any, s: Any) -> Any:
    """`[n, s]` of q's dtype: with the scales of values, to be multiplied with these."""
    return (p * r["v_scales"][:, s] if "v_scales" in r else p).astype(r["q"].dtype)


def _reach(r: Refs) -> tuple[Any, Any]:
    """Which blocks are read: the first, and after the last."""
    found = r["reach"]
    return (0, found) if isinstance(found, int) else (found[0, 0], found[0, 1])


def _some(i: Any, count: int) -> Any:
    return pl.ds(pl.multiple_of(i * count, count), count)


def _times(a: Any, b: Any, over: int = 1) -> Any:
    """float32 a · b, or aᵀ · b `over` the first axis of a."""
    return _dot(a, b, over, 0)


def _dot(a: Any, b: Any, of_a: int, of_b: int) -> Any:
    full = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, (((of_a,), (of_b,)), ((), ())), precision=full, preferred_element_type=jnp.float32)
