"""embed in jnp: packed rows are gathered, then decoded. Gradients of rows are added in float32 and rounded once."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plugins.kernels.gradients import cotangent, given, wanted
from plugins.kernels.matmul import weights
from plugins.kernels.varying import alike, along, axes_of


def embed(ids: Any, w: Any, *, dtype: Any) -> Any:
    """See the op's docstring."""
    return _embed(*alike(jnp.asarray(ids), w), jnp.dtype(dtype))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _embed(ids: Any, w: Any, dtype: Any) -> Any:
    rows = weights.decoded(weights.rows_at(w, ids.reshape(-1)), dtype)
    return rows.reshape(*ids.shape, w.shape[-1])


def _forward(ids: Any, w: Any, dtype: Any) -> tuple[Any, Any]:
    asked = wanted(w)
    ids, w = given(ids), given(w)
    return _embed(ids, w, dtype), (ids, w, asked)


def _backward(dtype: Any, kept: Any, dy: Any) -> tuple[None, Any]:
    ids, w, asked = kept
    if not any(asked.flags):
        return None, None
    rows = cotangent(dy).astype(jnp.float32).reshape(-1, w.shape[-1])
    room = along(axes_of(rows), jnp.zeros(w.shape, jnp.float32))
    total = room.at[jnp.clip(ids.reshape(-1), 0, w.shape[0] - 1)].add(rows)
    return None, total.astype(w.dtype)


_embed.defvjp(_forward, _backward, symbolic_zeros=True)
