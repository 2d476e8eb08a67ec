"""attention in jnp: a scan over blocks of queries, so that the logits of a long prompt never exist together.

Nor do they for gradients: what a block computes is computed again on the way back.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.gradients import given, wanted
from plugins.kernels.matmul.weights import decoded
from plugins.kernels.softmax.xla import softmax

QUERIES = 256  # of a block, at most
LOGITS_NBYTES = 64 << 20  # of a block, at most, unless one query has more


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
    slots, key_heads = k.shape[1], k.shape[2]
    q = q.reshape(batch, queries, key_heads, heads // key_heads, dims)
    extra = None if sinks is None else jnp.asarray(sinks).astype(jnp.float32).reshape(1, key_heads, -1, 1, 1)

    segments = None if segments is None else jnp.asarray(segments)

    @jax.checkpoint
    def block(q_BTKGD: Any, at: Any, of: Any) -> Any:
        logits = jnp.einsum(
            "btkgd,bskd->bkgts", q_BTKGD, k, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
        )
        logits = logits * scale
        if softcap is not None:
            logits = softcap * jnp.tanh(logits / softcap)
        seen = mask(at, k_positions, window, causal)[:, None, None]
        if segments is not None:
            seen = seen & (of[:, :, None] == segments[:, None, :])[:, None, None]
        p = softmax(logits, sinks=extra, where=seen).astype(v.dtype)
        out = jnp.einsum("bkgts,bskd->btkgd", p, v, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
        return out.astype(q.dtype)

    step = min(QUERIES, max(1, LOGITS_NBYTES // max(1, batch * heads * slots * 4)))
    if queries <= step:
        out = block(q, q_positions, segments)
    else:
        count = -(-queries // step)
        pad = count * step - queries

        def blocks(array: Any, fill: int = 0) -> Any:
            padded = jnp.pad(array, [(0, 0), (0, pad), *[(0, 0)] * (array.ndim - 2)], constant_values=fill)
            return jnp.moveaxis(padded.reshape(batch, count, step, *array.shape[2:]), 1, 0)

        of = None if segments is None else blocks(segments)
        found = lax.map(lambda one: block(*one), (blocks(q), blocks(q_positions, -1), of))
        out = jnp.moveaxis(found, 0, 1).reshape(batch, count * step, *found.shape[3:])[:, :queries]
    return out.reshape(batch, queries, heads, v.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _unpacked(packed: Any, dtype: Any) -> Any:
    return decoded(packed, dtype)


def _forward(packed: Any, dtype: Any) -> tuple[Any, None]:
    wanted(packed)
    return decoded(given(packed), dtype), None


def _backward(dtype: Any, kept: None, dy: Any) -> tuple[None]:
    return (None,)


_unpacked.defvjp(_forward, _backward, symbolic_zeros=True)


def mask(q_positions: Any, k_positions: Any, window: int | None, causal: bool) -> Any:
    """bool `[B, T, S]`: which query sees which slot."""
    query, key = q_positions[:, :, None], k_positions[:, None, :]
    seen = jnp.broadcast_to(key >= 0, (query.shape[0], query.shape[1], key.shape[2]))
    if causal:
        seen = seen & (key <= query)
    if window is not None:
        seen = seen & (key > query - window)
    return seen
