"""attention in jnp, over blocks of queries, so that the logits of a long prompt never exist together.

Nor do they for gradients, which are written out (`_backward`): of every query its largest logit is kept and its sum,
and logits are computed again (arXiv 2205.14135, 3.1). Where rows hold documents in order (`segments`), slots that no
query of a block can see are left out of it.

    B batch, N queries of a key head (those of all query heads that share it), S slots, K key heads, D and E dims
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.gradients import given, wanted
from plugins.kernels.matmul.weights import decoded
from plugins.kernels.varying import alike

QUERIES = 256  # of a block, at most
LOGITS_NBYTES = 64 << 20  # of a block, at most, unless one query has more
RANGES, LEAST = 8, 64  # of queries in order, each with slots of its own: how many at most, and how long at least


@dataclass(frozen=True, slots=True)
class How:
    """What a block is told beside arrays."""

    scale: float
    softcap: float | None
    window: int | None
    causal: bool


def attention(
    q: Any,
    k: Any,
    v: Any,
    q_positions: Any,
    k_positions: Any,
    *,
    scale: float,
    window: int | None = None,
    sinks: Any = None,
    softcap: float | None = None,
    causal: bool = True,
    segments: Any = None,
) -> Any:
    """See the op's docstring."""
    q, q_positions, k_positions = (jnp.asarray(a) for a in (q, q_positions, k_positions))
    k, v = (_unpacked(a, q.dtype) if isinstance(a, QTensor) else jnp.asarray(a).astype(q.dtype) for a in (k, v))
    batch, queries, heads, dims = q.shape
    key_heads = k.shape[2]
    q = q.reshape(batch, queries, key_heads, heads // key_heads, dims)
    extra = None if sinks is None else jnp.asarray(sinks).astype(jnp.float32).reshape(key_heads, -1)
    own = None if segments is None else jnp.asarray(segments)
    how = How(scale, softcap, window, causal)
    found = []
    for of, slots in _ranges(queries, window) if own is not None and causal else [(slice(None), slice(None))]:
        rows = q[:, of], q_positions[:, of], None if own is None else own[:, of]
        keys = k[:, slots], v[:, slots], k_positions[:, slots], None if own is None else own[:, slots]
        found.append(_blocks(how, rows, keys, extra))
    out = found[0] if len(found) == 1 else jnp.concatenate(found, axis=1)
    return out.reshape(batch, queries, heads, v.shape[-1])


def _ranges(queries: int, window: int | None) -> Iterator[tuple[slice, slice]]:
    """Queries in order, and the slots that any of them may see."""
    count = max(1, min(RANGES, queries // LEAST))
    size = -(-queries // count)
    for start in range(0, queries, size):
        stop = min(queries, start + size)
        first = 0 if window is None else max(0, start - window + 1)
        yield slice(start, stop), slice(first, stop)


def _blocks(how: How, rows: tuple[Any, ...], keys: tuple[Any, ...], sinks: Any) -> Any:
    """`[B, T, K, G, E]` of queries `[B, T, K, G, D]`, a block of them at a time."""
    batch, queries, *heads, _ = rows[0].shape
    slots = keys[0].shape[1]
    step = min(QUERIES, max(1, LOGITS_NBYTES // max(1, batch * heads[0] * heads[1] * slots * 4)))

    def block(some: tuple[Any, ...]) -> Any:
        q, at, of = some
        k, v, k_positions, own = keys
        seen = mask(at, k_positions, how.window, how.causal)
        if own is not None:
            seen = seen & (of[:, :, None] == own[:, None, :])
        n = q.shape[1]
        flat = jnp.moveaxis(q, 1, 3).reshape(batch, heads[0], heads[1] * n, -1)
        found = _attended(how, *alike(flat, k, v, sinks, seen))
        return jnp.moveaxis(found.reshape(batch, *heads, n, -1), 3, 1).astype(q.dtype)

    if queries <= step:
        return block(rows)
    count = -(-queries // step)
    pad = count * step - queries

    def cut(array: Any, fill: int) -> Any:
        padded = jnp.pad(array, [(0, 0), (0, pad), *[(0, 0)] * (array.ndim - 2)], constant_values=fill)
        return jnp.moveaxis(padded.reshape(batch, count, step, *array.shape[2:]), 1, 0)

    q, at, of = rows
    found = lax.map(block, (cut(q, 0), cut(at, -1), None if of is None else cut(of, 0)))
    return jnp.moveaxis(found, 0, 1).reshape(batch, count * step, *found.shape[3:])[:, :queries]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(how: How, q: Any, k: Any, v: Any, sinks: Any, seen: Any) -> Any:
    """float32 `[B, K, N, E]`, N = G · T: `q` `[B, K, N, D]`, `k` `[B, S, K, D]`, `v` `[B, S, K, E]`, `sinks` `[K, G]`
    or None, `seen` bool `[B, T, S]`."""
    return _forward(how, q, k, v, sinks, seen)[0]


def _forward(how: How, q: Any, k: Any, v: Any, sinks: Any, seen: Any) -> tuple[Any, Any]:
    logits = _masked(_logits(how, q, k)[0], seen)
    top = jnp.max(logits, axis=-1, keepdims=True, initial=-jnp.inf)
    extra = None if sinks is None else _of_queries(sinks, seen)
    top = top if extra is None else jnp.maximum(top, extra)
    top = jnp.where(jnp.isneginf(top), 0.0, top)  # nothing takes part: no -inf - -inf
    p = jnp.exp(logits - top)
    total = jnp.sum(p, axis=-1, keepdims=True)
    total = total if extra is None else total + jnp.exp(extra - top)
    total = jnp.where(total == 0, 1.0, total)
    return _dot("bkns,bske->bkne", p.astype(v.dtype), v) / total, (q, k, v, sinks, seen, top, total)


def _backward(how: How, kept: Any, d_out: Any) -> tuple[Any, ...]:
    q, k, v, sinks, seen, top, total = kept
    logits, slope = _logits(how, q, k)
    p = jnp.exp(_masked(logits, seen) - top) * (1 / total)
    d_out = d_out.astype(v.dtype)
    dv = _dot("bkns,bkne->bske", p.astype(v.dtype), d_out)
    dp = _dot("bkne,bske->bkns", d_out, v)
    share = jnp.sum(p * dp, axis=-1, keepdims=True)
    d_logits = (p * (dp - share) * slope).astype(q.dtype)
    dq, dk = _dot("bkns,bskd->bknd", d_logits, k), _dot("bkns,bknd->bskd", d_logits, q)
    d_sinks = None
    if sinks is not None:
        lost = -jnp.exp(_of_queries(sinks, seen) - top) / total * share
        d_sinks = lost.reshape(len(q), *sinks.shape, -1).sum(axis=(0, 3))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), d_sinks, None


_attended.defvjp(_forward, _backward)


def _logits(how: How, q: Any, k: Any) -> tuple[Any, Any]:
    """`[B, K, N, S]`, and what they grow by with q · k."""
    logits = _dot("bknd,bskd->bkns", q, k) * how.scale
    if how.softcap is None:
        return logits, how.scale
    bent = jnp.tanh(logits / how.softcap)
    return how.softcap * bent, how.scale * (1 - jnp.square(bent))


def _masked(logits: Any, seen: Any) -> Any:
    apart = logits.reshape(*logits.shape[:2], -1, *seen.shape[1:])
    return jnp.where(seen[:, None, None], apart, -jnp.inf).reshape(logits.shape)


def _of_queries(sinks: Any, seen: Any) -> Any:
    """`[1, K, N, 1]` of `[K, G]`."""
    return jnp.repeat(sinks, seen.shape[1], axis=1)[None, :, :, None]


def _dot(which: str, a: Any, b: Any) -> Any:
    return jnp.einsum(which, a, b, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _unpacked(packed: Any, dtype: Any) -> Any:
    return decoded(packed, dtype)


def _forward_unpacked(packed: Any, dtype: Any) -> tuple[Any, None]:
    wanted(packed)
    return decoded(given(packed), dtype), None


def _backward_unpacked(dtype: Any, kept: None, dy: Any) -> tuple[None]:
    return (None,)


_unpacked.defvjp(_forward_unpacked, _backward_unpacked, symbolic_zeros=True)


def mask(q_positions: Any, k_positions: Any, window: int | None, causal: bool) -> Any:
    """bool `[B, T, S]`: which query sees which slot."""
    query, key = q_positions[:, :, None], k_positions[:, None, :]
    seen = jnp.broadcast_to(key >= 0, (query.shape[0], query.shape[1], key.shape[2]))
    if causal:
        seen = seen & (key <= query)
    if window is not None:
        seen = seen & (key > query - window)
    return seen
