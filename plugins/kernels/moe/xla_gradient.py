"""The gradients of moe in jnp: every tile is computed again, expert by expert, and turned round.

With e the expert of an assignment, p its weight and h = activation(…):

    through = dout · w_out      dp = through · h + dout · b_out      dh = p · through
    dw_out[e] += (p · dout)ᵀ · h      db_out[e] += p · dout

and through the activation the same for every w_in. Sums are float32 and rounded once. An assignment of weight 0 is
none: its expert is not read, and its dp is 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from plugins.kernels.matmul.xla_gradient import input_gradient, weight_gradient
from plugins.kernels.moe.schedule import Schedule
from plugins.kernels.varying import along, axes_of


def gradients(
    activation: Callable[..., Any], dtype: Any, project: Callable[..., Any], args: Sequence[Any], flags: Sequence[bool],
    dout: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Of all arguments of `xla._moe` but the activation; None for those that have none or need none.

    Args:
        dtype: of the result: cotangents are exact in it.
        project: that of the backend.
        args: x, chosen, weights, w_in, b_in, w_out, b_out.
        flags: what is asked for: x, weights, each of w_in, each of b_in, w_out, b_out.
        dout: `[N, D_out]`.
    """
    x, chosen, weights, w_in, b_in, w_out, b_out = args
    k, parts = chosen.shape[1], len(w_in)
    for_x, _, *rest = flags
    for_w_in, for_b_in, (for_w_out, for_b_out) = rest[:parts], rest[parts : 2 * parts], rest[2 * parts :]
    schedule = Schedule.of(chosen, weights, w_out.shape[0])
    flat = weights.reshape(-1)

    def room(of: Any, asked: bool) -> Any:
        return jnp.zeros(of.shape, jnp.float32) if asked else None

    begin = (
        schedule.padded(x.shape[1], jnp.float32) if for_x else None,
        schedule.padded(1, jnp.float32),
        tuple(room(w, f) for w, f in zip(w_in, for_w_in, strict=True)),
        tuple(room(b, f) for b, f in zip(b_in, for_b_in, strict=True)),
        room(w_out, for_w_out),
        room(b_out, for_b_out),
    )

    def tile(i: Any, so_far: Any) -> Any:
        dx, dp, dw_in, db_in, dw_out, db_out = so_far
        t = schedule.tile(i)
        own = t.own[:, None]
        token = t.assignment // k
        tile_x = jnp.where(own, x[token], 0)  # padding may be NaN, and 0 · NaN is that too
        hidden = [project(tile_x, w, b, t.expert) for w, b in zip(w_in, b_in, strict=True)]
        h, turn = jax.vjp(activation, *hidden)
        g = jnp.where(own, dout[token], 0).astype(jnp.float32)
        share = flat[t.assignment][:, None]
        through = input_gradient(g.astype(dtype), w_out, x.dtype, t.expert)
        gain = jnp.sum(through * h.astype(jnp.float32), axis=1, keepdims=True)
        if b_out is not None:
            bias = lax.dynamic_index_in_dim(jnp.asarray(b_out), t.expert, 0).astype(jnp.float32)
            gain = gain + jnp.sum(g * bias, axis=1, keepdims=True)
        dp = _put(dp, t, gain)
        dy = (g * share).astype(dtype)
        dw_out, db_out = _added(dw_out, t, weight_gradient, dy, h), _added(db_out, t, _over_rows, dy)
        dh = turn((through * share).astype(h.dtype))
        dw_in = tuple(_added(a, t, weight_gradient, d, tile_x) for a, d in zip(dw_in, dh, strict=True))
        db_in = tuple(_added(a, t, _over_rows, d) for a, d in zip(db_in, dh, strict=True))
        if dx is not None:
            dx = _put(dx, t, sum(input_gradient(d, w, x.dtype, t.expert) for d, w in zip(dh, w_in, strict=True)))
        return dx, dp, dw_in, db_in, dw_out, db_out

    dx, dp, dw_in, db_in, dw_out, db_out = lax.fori_loop(0, schedule.tiles, tile, along(axes_of(args, dout), begin))
    chose = (flat != 0)[:, None]
    if dx is not None:
        dx = jnp.where(chose, schedule.unsorted(dx), 0).reshape(*chosen.shape, -1).sum(axis=1).astype(x.dtype)
    dp = jnp.where(chose, schedule.unsorted(dp), 0).reshape(chosen.shape)
    return (
        dx, None, dp, tuple(map(_as, dw_in, w_in)), tuple(map(_as, db_in, b_in)), _as(dw_out, w_out), _as(db_out, b_out)
    )  # fmt: skip


def _put(rows: Any, t: Any, new: Any) -> Any:
    return lax.dynamic_update_slice_in_dim(rows, new, t.start, 0)


def _added(total: Any, t: Any, new: Callable[..., Any], *args: Any) -> Any:
    """`total` with `new(*args)` added to the tile's expert; None, and nothing computed, where nobody asks."""
    return None if total is None else total.at[t.expert].add(new(*args))


def _over_rows(dy: Any) -> Any:
    return jnp.sum(dy.astype(jnp.float32), axis=0)


def _as(total: Any, like: Any) -> Any:
    return None if total is None else total.astype(like.dtype)
