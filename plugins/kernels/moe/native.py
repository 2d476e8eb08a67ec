"""moe in C++, for a few tokens and MXFP4 weights: one call for each projection, over all experts that were chosen.

Experts that nobody chose are not touched, and assignments stand sorted by expert, so that tokens which share one share
a pass over it. What XLA does with many tokens (`schedule`) pays when an expert's weights are decoded for many rows. The
gradient is XLA's.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.moe.xla import project
from plugins.kernels.moe.xla_gradient import gradients
from plugins.kernels.native import ffi


def moe(
    x: Any,
    chosen: Any,
    weights: Any,
    w_in: Sequence[Any],
    b_in: Sequence[Any],
    w_out: Any,
    b_out: Any,
    *,
    activation: Callable[..., Any],
) -> Any:
    """See the op's docstring."""
    x, chosen, weights = jnp.asarray(x), jnp.asarray(chosen), jnp.asarray(weights).astype(jnp.float32)
    return _moe(activation, x, chosen, weights, tuple(w_in), tuple(b_in), w_out, b_out)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _moe(activation: Any, x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any) -> Any:
    k = chosen.shape[1]
    # An assignment of weight 0 is none: its expert is not read.
    expert = jnp.where(weights == 0, -1, chosen).reshape(-1).astype(jnp.int32)
    order = jnp.argsort(expert)
    expert = expert[order]

    def projected(rows: Any, w: Any, b: Any) -> Any:
        y = ffi.grouped(rows.astype(jnp.float32), expert, w.codes, w.scales)
        if b is not None:
            y = y + jnp.asarray(b).astype(jnp.float32)[jnp.maximum(expert, 0)]
        return y.astype(x.dtype)

    hidden = [projected(x[order // k], w, b) for w, b in zip(w_in, b_in, strict=True)]
    y = projected(activation(*hidden), w_out, b_out).astype(jnp.float32)
    share = weights.reshape(-1)[order][:, None]
    y = jnp.where(share == 0, 0.0, y * share)
    unsorted = jnp.zeros_like(y).at[order].set(y, unique_indices=True)
    return jnp.sum(unsorted.reshape(*chosen.shape, -1), axis=1).astype(x.dtype)


def _forward(activation: Any, *args: Any) -> tuple[Any, Any]:
    x, _, weights, w_in, b_in, w_out, b_out = args
    asked = wanted(x, weights, *w_in, *b_in, w_out, b_out)
    return _moe(activation, *given(args)), (given(args), asked)


@once
def _backward(activation: Any, kept: Any, dy: Any) -> tuple[Any, ...]:
    args, asked = kept
    return gradients(activation, project, args, asked.flags, cotangent(dy))


_moe.defvjp(_forward, _backward, symbolic_zeros=True)
