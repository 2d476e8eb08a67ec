"""moe in jnp: a loop over the tiles there are (`schedule.py`), each the rows of one expert.

How many tiles there are is known on the device only, so the loop is a `while`; what a tile needs has a static shape.
Work grows with tokens, not with experts: an expert that nobody chose costs nothing, and one that many chose is decoded
once for `tile_rows` of its tokens. (`jax.lax.ragged_dot` would want the weights decoded, and multiplies every token by
every expert on CPUs.)

JAX cannot run a `while` backwards, so the gradient is written out in `xla_gradient.py`: the same tiles once more.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.matmul.xla import product
from plugins.kernels.moe.pairs import apart
from plugins.kernels.moe.schedule import Schedule
from plugins.kernels.moe.xla_gradient import gradients
from plugins.kernels.varying import alike, along, axes_of


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
    out_dtype: Any = None,
) -> Any:
    """See the op's docstring."""
    x, chosen, weights = jnp.asarray(x), jnp.asarray(chosen), jnp.asarray(weights).astype(jnp.float32)
    activation, w_in, b_in = apart(activation, w_in, b_in, chosen.size)
    how = (activation, jnp.dtype(x.dtype if out_dtype is None else out_dtype))
    return _moe(how, *alike(x, chosen, weights, tuple(w_in), tuple(b_in), w_out, b_out))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _moe(how: tuple[Any, Any], x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any) -> Any:
    activation, dtype = how
    experts, d_out = w_out.shape[:2]
    schedule = Schedule.of(chosen, weights, experts)

    def tile(i: Any, out: Any) -> Any:
        t = schedule.tile(i)
        hidden = [project(x[t.assignment // chosen.shape[1]], w, b, t.expert) for w, b in zip(w_in, b_in, strict=True)]
        # Rows that are not its own are the next expert's, whose tile writes them again, later.
        y = project(activation(*hidden), w_out, b_out, t.expert, dtype)
        return lax.dynamic_update_slice_in_dim(out, y, t.start, 0)

    room = along(axes_of(x, weights, w_in, b_in, w_out, b_out), schedule.padded(d_out, dtype))
    out = lax.fori_loop(0, schedule.tiles, tile, room)
    y = schedule.unsorted(out).reshape(*chosen.shape, d_out).astype(jnp.float32)
    # What no tile wrote is 0, but what a tile wrote past its expert may be anything.
    y = jnp.where(weights[:, :, None] == 0, 0.0, y * weights[:, :, None])
    return jnp.sum(y, axis=1).astype(dtype)


def project(x: Any, w: Any, b: Any, e: Any, dtype: Any = None) -> Any:
    """`matmul` with expert `e` (traced) of a stack of weights and biases; of `dtype`, by default that of x."""
    y = product(x, w, e)
    if b is not None:
        y = y + lax.dynamic_index_in_dim(jnp.asarray(b), e, 0).astype(jnp.float32)
    return y.astype(x.dtype if dtype is None else dtype)


def _forward(how: tuple[Any, Any], *args: Any) -> tuple[Any, Any]:
    x, _, weights, w_in, b_in, w_out, b_out = args
    asked = wanted(x, weights, *w_in, *b_in, w_out, b_out)
    return _moe(how, *given(args)), (given(args), asked)


@once
def _backward(how: tuple[Any, Any], kept: Any, dy: Any) -> tuple[Any, ...]:
    args, asked = kept
    return gradients(how[0], how[1], project, args, asked.flags, cotangent(dy))


_moe.defvjp(_forward, _backward, symbolic_zeros=True)
