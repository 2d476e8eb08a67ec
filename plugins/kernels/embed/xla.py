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
    return with_rows(_rows, ids, w, dtype)


def with_rows(rows: Any, ids: Any, w: Any, dtype: Any) -> Any:
    """embed around `rows(ids, w, dtype)`, which gives `[n, D]` of `dtype` for ids `[n]`, and the gradient."""
    return _embed(*alike(jnp.asarray(ids), w), (rows, jnp.dtype(dtype)))


def _rows(ids: Any, w: Any, dtype: Any) -> Any:
    return weights.decoded(weights.rows_at(w, ids), dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _embed(ids: Any, w: Any, how: tuple[Any, Any]) -> Any:
    rows, dtype = how
    return rows(ids.reshape(-1), w, dtype).reshape(*ids.shape, w.shape[-1])


def _forward(ids: Any, w: Any, how: tuple[Any, Any]) -> tuple[Any, Any]:
    asked = wanted(w)
    ids, w = given(ids), given(w)
    return _embed(ids, w, how), (ids, w, asked)


def _backward(how: tuple[Any, Any], kept: Any, dy: Any) -> tuple[None, Any]:
    ids, w, asked = kept
    if not any(asked.flags):
        return None, None
    rows = cotangent(dy).astype(jnp.float32).reshape(-1, w.shape[-1])
    room = along(axes_of(rows), jnp.zeros(w.shape, jnp.float32))
    total = room.at[jnp.clip(ids.reshape(-1), 0, w.shape[0] - 1)].add(rows)
    return None, total.astype(w.dtype)


_embed.defvjp(_forward, _backward, symbolic_zeros=True)
