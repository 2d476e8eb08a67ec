"""moe as one product for each projection, over tiles of one expert each: what kernels for devices share.

Assignments are sorted by expert and cut into tiles (`schedule.py`); a last tile of an expert is made up with rows of
zeros. There is room for as many tiles as there may be, A / rows + min(E, A) of A assignments; those that turn out to be
none do nothing. Gradients are XLA's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.moe.schedule import Schedule
from plugins.kernels.moe.xla import project
from plugins.kernels.moe.xla_gradient import gradients
from plugins.kernels.varying import alike


@dataclass(frozen=True)
class Products:
    """How a kernel multiplies tiles.

    Attributes:
        product: `product(rows, expert, x, w)`, float32 `[N, out]` of `x` `[N, in]`, `rows` rows after `rows` rows times
            the weights `[E, out, in]` of their expert, int32 `[N / rows]`; those past the last expert give anything.
        least, most: rows of a tile, powers of two.
    """

    product: Callable[..., Any]
    least: int
    most: int


def tiled(
    products: Products, x: Any, chosen: Any, weights: Any, w_in: Sequence[Any], b_in: Sequence[Any], w_out: Any,
    b_out: Any, *, activation: Callable[..., Any], out_dtype: Any = None,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    x, chosen, weights = jnp.asarray(x), jnp.asarray(chosen), jnp.asarray(weights).astype(jnp.float32)
    how = (activation, jnp.dtype(x.dtype if out_dtype is None else out_dtype), products)
    return _moe(how, *alike(x, chosen, weights, tuple(w_in), tuple(b_in), w_out, b_out))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _moe(
    how: tuple[Any, Any, Products], x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any
) -> Any:
    activation, dtype, products = how
    (experts, d_out), total = w_out.shape[:2], chosen.size
    if not x.size:
        return jnp.zeros((len(x), d_out), dtype)
    schedule = Schedule.of(chosen, weights, experts, products.least, products.most)
    expert, assignment, own = _tiles(schedule, total // schedule.rows + min(experts, total))

    def projected(x: Any, w: Any, b: Any, dtype: Any) -> Any:
        y = products.product(schedule.rows, expert, x, w)
        if b is not None:
            y = y + jnp.repeat(jnp.asarray(b).astype(jnp.float32)[expert], schedule.rows, axis=0)
        return y.astype(dtype)

    rows = jnp.where(own[:, None], x[assignment // chosen.shape[1]], 0)  # padding may be NaN
    hidden = [projected(rows, w, b, x.dtype) for w, b in zip(w_in, b_in, strict=True)]
    y = projected(activation(*hidden), w_out, b_out, dtype)
    y = jnp.zeros((total, d_out), dtype).at[jnp.where(own, assignment, total)].set(y, mode="drop")
    y = y.reshape(*chosen.shape, d_out).astype(jnp.float32)
    return jnp.sum(jnp.where(weights[:, :, None] == 0, 0.0, y * weights[:, :, None]), axis=1).astype(dtype)


def _tiles(schedule: Schedule, most: int) -> tuple[Any, Any, Any]:
    """Of `most` tiles, int32 `[most]`: the expert, that after the last for a tile that is none; and of all their rows
    which assignment each is, and whether it is one."""
    experts = len(schedule.count)

    def one(i: Any) -> tuple[Any, Any, Any]:
        tile = schedule.tile(i)
        return tile.expert, tile.assignment, tile.own & (tile.expert < experts)

    expert, assignment, own = jax.vmap(one)(jnp.arange(most))
    return expert.astype(jnp.int32), assignment.reshape(-1), own.reshape(-1)


def _forward(how: tuple[Any, Any, Products], *args: Any) -> tuple[Any, Any]:
    x, _, weights, w_in, b_in, w_out, b_out = args
    asked = wanted(x, weights, *w_in, *b_in, w_out, b_out)
    return _moe(how, *given(args)), (given(args), asked)


@once
def _backward(how: tuple[Any, Any, Products], kept: Any, dy: Any) -> tuple[Any, ...]:
    args, asked = kept
    return gradients(how[0], how[1], project, args, asked.flags, cotangent(dy))


_moe.defvjp(_forward, _backward, symbolic_zeros=True)
