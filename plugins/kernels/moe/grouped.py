"""One projection of a mixture of experts by itself: every assignment's row times the weights of its expert.

    grouped(x, chosen, weights, w) -> float32 [N · k, out]

What `moe` does twice, with something of the caller's in between: adapters, which add to a projection what differs by
expert. `x` is `[N, in]`, a row a token, or `[N · k, in]`, a row an assignment; one of weight 0 gets zeros, and
nothing is read for it. Gradients with respect to `x` and to an array `w`, computed by the tiles of `schedule.py`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.matmul.xla import product
from plugins.kernels.matmul.xla_gradient import input_gradient, weight_gradient
from plugins.kernels.moe.schedule import Schedule
from plugins.kernels.native import ffi
from plugins.kernels.varying import alike, along, axes_of


def grouped(x: Any, chosen: Any, weights: Any, w: Any, *, native: bool = False) -> Any:
    """See the module.

    Args:
        chosen, weights: `[N, k]`, as of `moe`.
        w: array or QTensor `[E, out, in]`.
        native: by the C++ of the backend `native`; gradients are the same.
    """
    return _grouped(native, *alike(jnp.asarray(x), chosen, lax.stop_gradient(weights) != 0, w))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _grouped(native: bool, x: Any, chosen: Any, live: Any, w: Any) -> Any:
    if native:
        expert = jnp.where(live, chosen, -1).reshape(-1).astype(jnp.int32)
        return ffi.grouped(x, expert, [w])[0]
    schedule, each = Schedule.of(chosen, live, w.shape[0]), chosen.size // x.shape[0]

    def tile(i: Any, out: Any) -> Any:
        t = schedule.tile(i)
        # Rows that are not its own are the next expert's, whose tile writes them again, later.
        y = product(x[t.assignment // each], w, t.expert)
        return lax.dynamic_update_slice_in_dim(out, y, t.start, 0)

    room = along(axes_of(x, live, w), schedule.padded(w.shape[1], jnp.float32))
    out = schedule.unsorted(lax.fori_loop(0, schedule.tiles, tile, room))
    return jnp.where(live.reshape(-1, 1), out, 0.0)


def _forward(native: bool, *args: Any) -> tuple[Any, Any]:
    x, _, _, w = args
    return _grouped(native, *given(args)), (given(args), wanted(x, w))


@once
def _backward(native: bool, kept: Any, dy: Any) -> tuple[Any, ...]:
    (x, chosen, live, w), asked = kept
    for_x, for_w = asked.flags
    dy = cotangent(dy).astype(jnp.float32)
    schedule, each = Schedule.of(chosen, live, w.shape[0]), chosen.size // x.shape[0]
    begin = (
        schedule.padded(x.shape[1], jnp.float32) if for_x else None,
        jnp.zeros(w.shape, jnp.float32) if for_w else None,
    )

    def tile(i: Any, so_far: Any) -> Any:
        dx, dw = so_far
        t = schedule.tile(i)
        own = t.own[:, None]
        of = jnp.where(own, dy[t.assignment], 0)
        if dx is not None:
            dx = lax.dynamic_update_slice_in_dim(dx, input_gradient(of, w, x.dtype, t.expert), t.start, 0)
        if dw is not None:
            rows = jnp.where(own, x[t.assignment // each], 0)  # padding may be NaN, and 0 · NaN is that too
            dw = dw.at[t.expert].add(weight_gradient(of, rows))
        return dx, dw

    dx, dw = lax.fori_loop(0, schedule.tiles, tile, along(axes_of(x, live, w, dy), begin))
    if dx is not None:
        dx = jnp.where(live.reshape(-1, 1), schedule.unsorted(dx), 0)
        dx = dx.reshape(x.shape[0], each, -1).sum(axis=1).astype(x.dtype)
    return dx, None, None, None if dw is None else dw.astype(w.dtype)


_grouped.defvjp(_forward, _backward, symbolic_zeros=True)
