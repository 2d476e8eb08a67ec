"""The ops once more, in float64 and in a form that JAX differentiates by itself: what gradients are held to.

Plain formulas, written from the ops' docstrings; that they mean the same as the references is tested beside them.
Weights come decoded. Run under `jax.enable_x64`.
"""

from typing import Any

import jax
import jax.numpy as jnp


def matmul(x: Any, w: Any, bias: Any = None, **_: Any) -> Any:
    y = jnp.einsum("...i,oi->...o", x, w)
    return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + (-1,))


def embed(ids: Any, w: Any, **_: Any) -> Any:
    return jnp.einsum("...v,vd->...d", jax.nn.one_hot(ids, w.shape[0], dtype=w.dtype), w)


def moe(
    x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, *, activation: Any
) -> Any:  # fmt: skip
    """Every token through every expert, and a one-hot choice afterwards. A weight of 0 is no choice, and stays none."""
    weights = jnp.where(weights == 0, 0, weights)
    x = jnp.where((weights != 0).any(axis=1)[:, None], x, 0)  # padding may be NaN
    hidden = []
    for w, b in zip(w_in, b_in, strict=True):
        h = jnp.einsum("ni,efi->enf", x, w)
        hidden.append(h if b is None else h + b[:, None])
    y = jnp.einsum("enf,eof->eno", activation(*hidden), w_out)
    y = y if b_out is None else y + b_out[:, None]
    share = jnp.einsum("nke,nk->en", jax.nn.one_hot(chosen, w_out.shape[0], dtype=y.dtype), weights)
    return jnp.einsum("eno,en->no", y, share)


def attention(
    q: Any, k: Any, v: Any, q_positions: Any, k_positions: Any, *, scale: float, window: int | None = None,
    sinks: Any = None, softcap: float | None = None, causal: bool = True,
) -> Any:  # fmt: skip
    group = q.shape[2] // k.shape[2]
    logits = jnp.einsum("bthd,bshd->bhts", q, jnp.repeat(k, group, axis=2)) * scale
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    at, slot = q_positions[:, None, :, None], k_positions[:, None, None, :]
    seen = jnp.broadcast_to(slot >= 0, (*logits.shape[:1], 1, *logits.shape[2:]))
    seen = seen & (slot <= at) if causal else seen
    seen = seen & (slot > at - window) if window is not None else seen
    p = softmax(
        logits, sinks=None if sinks is None else sinks[None, :, None, None], where=jnp.broadcast_to(seen, logits.shape)
    )
    return jnp.einsum("bhts,bshd->bthd", p, jnp.repeat(v, group, axis=2))


def softmax(x: Any, *, axis: int = -1, sinks: Any = None, where: Any = None) -> Any:
    seen = jnp.ones(x.shape, bool) if where is None else jnp.broadcast_to(where, x.shape)
    seen = seen & ~jnp.isneginf(x)
    x = jnp.where(seen, x, 0)
    top = jnp.where(seen, x, -jnp.inf).max(axis=axis, keepdims=True)
    top = jnp.where(jnp.isneginf(top), 0, top) if sinks is None else jnp.maximum(top, sinks)
    top = jax.lax.stop_gradient(top)
    weights = jnp.where(seen, jnp.exp(x - top), 0)
    total = weights.sum(axis=axis, keepdims=True)
    total = total if sinks is None else total + jnp.exp(sinks - top)
    return weights / jnp.where(total == 0, 1, total)


def rms_norm(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    gain = (1 + weight if plus_one else weight).reshape((1,) * (x.ndim - 1) + (-1,))
    return x / jnp.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * gain


def rope(x: Any, positions: Any, inv_freq: Any, *, concentration: float = 1.0, interleaved: bool = False) -> Any:
    """Angles are float32 products, as the op has them."""
    half = inv_freq.shape[0]
    angle = positions.astype(jnp.float32)[:, :, None, None] * inv_freq.astype(jnp.float32)[None, None, None]
    cos, sin = (f(angle.astype(jnp.float64)) * concentration for f in (jnp.cos, jnp.sin))
    i = jnp.arange(half)
    first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
    a, b = x[..., first], x[..., second]
    return x.at[..., first].set(a * cos - b * sin).at[..., second].set(b * cos + a * sin)
