"""The gradients of moe for plain weights in C++: the formulas of `xla_gradient.py`, of all assignments at once.

What went into the activation is kept on the way there, so that no product is computed twice.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from plugins.kernels.native.gradients import input_gradient, weight_gradient


def gradients(
    activation: Any, dtype: Any, args: Sequence[Any], flags: Sequence[bool], expert: Any, hidden: Any, dout: Any
) -> tuple[Any, ...]:
    """See `xla_gradient.gradients`.

    Args:
        expert: int32 `[N · k]`, of each assignment; negative where its weight is 0.
        hidden: for each of `w_in` `[N · k, F]`, what went into the activation.
    """
    x, chosen, weights, w_in, b_in, w_out, b_out = args
    parts, experts = len(w_in), w_out.shape[0]
    for_x, _, *rest = flags
    for_w_in, for_b_in, (for_w_out, for_b_out) = rest[:parts], rest[parts : 2 * parts], rest[2 * parts :]
    live = (expert >= 0)[:, None]
    share = weights.reshape(-1, 1)

    h, turn = jax.vjp(activation, *hidden)
    through = input_gradient([dout.astype(dtype)], [w_out], expert)
    gain = jnp.sum(through * h.astype(jnp.float32), axis=1)
    g = jnp.repeat(dout.astype(jnp.float32), chosen.shape[1], axis=0)
    if b_out is not None:
        gain = gain + jnp.sum(g * jnp.asarray(b_out).astype(jnp.float32)[jnp.maximum(expert, 0)], axis=1)
    dp = jnp.where(live[:, 0], gain, 0).reshape(chosen.shape)

    def of_expert(dy: Any, x: Any, w: Any, for_w: bool, b: Any, for_b: bool) -> tuple[Any, Any]:
        if not (for_w or for_b):
            return None, None
        dw, db = weight_gradient(dy, x, expert, experts)
        return dw.astype(w.dtype) if for_w else None, db.astype(b.dtype) if for_b else None

    dw_out, db_out = of_expert((g * share).astype(dtype), h, w_out, for_w_out, b_out, for_b_out)
    dh = turn((through * share).astype(h.dtype))
    both = [of_expert(d, x, *each) for d, *each in zip(dh, w_in, for_w_in, b_in, for_b_in, strict=True)]
    dx = None
    if for_x:
        dx = input_gradient(dh, w_in, expert).reshape(*chosen.shape, -1).sum(axis=1).astype(x.dtype)
    return dx, None, dp, tuple(dw for dw, _ in both), tuple(db for _, db in both), dw_out, db_out
