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
        product: `product(rows, expert, x, w, b, dtype)`, `[N, out]` of dtype of `x` `[N, in]`, `rows` rows after `rows`
            rows times the weights `[E, out, in]` of their expert, int32 `[N / rows]`, and its bias of `[E, out]` or
            None; those past the last expert give anything.
        least, most: rows of a tile, powers of two.
        prepared: `prepared(x, w)`, rows as `product` wants them with such weights: of few tokens, before each is there
            for every expert that it chose.
    """

    product: Callable[..., Any]
    least: int
    most: int
    prepared: Callable[[Any, Any], Any] = lambda x, _: x


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
    tiles = (_apart if total <= experts // 2 else _sorted)(products, chosen, weights, experts)

    def projected(x: Any, w: Any, b: Any, dtype: Any) -> Any:
        return products.product(tiles.rows, tiles.expert, x, w, None if b is None else jnp.asarray(b), dtype)

    def of_tiles(x: Any) -> Any:
        return jnp.where(tiles.own[:, None], x[tiles.assignment // chosen.shape[1]], 0)  # padding may be NaN

    hidden = [projected(of_tiles(products.prepared(x, w)), w, b, x.dtype) for w, b in zip(w_in, b_in, strict=True)]
    y = projected(products.prepared(activation(*hidden), w_out), w_out, b_out, dtype)
    y = y[tiles.place].reshape(*chosen.shape, d_out).astype(jnp.float32)
    return jnp.sum(jnp.where(weights[:, :, None] == 0, 0.0, y * weights[:, :, None]), axis=1).astype(dtype)


def finished(rows: int, expert: Any, y: Any, b: Any, dtype: Any) -> Any:
    """What a `Products.product` gives, of float32 products `y` `[N, out]`."""
    if b is not None:
        y = y + jnp.repeat(b.astype(jnp.float32)[expert], rows, axis=0)
    return y.astype(dtype)


@dataclass(frozen=True)
class _Tiles:
    """Which rows are multiplied together.

    Attributes:
        rows: of a tile, static.
        expert: int32 `[tiles]`, that after the last for a tile that is none.
        assignment, own: `[tiles · rows]`, which assignment a row is, and whether it is one.
        place: int32 `[N · k]`, the row of each assignment; of one of weight 0 any.
    """

    rows: int
    expert: Any
    assignment: Any
    own: Any
    place: Any


def _apart(products: Products, chosen: Any, weights: Any, experts: int) -> _Tiles:
    """Each assignment by itself: of few, hardly two are of one expert, and sorting takes longer than multiplying."""
    rows, total = products.least, chosen.size
    expert = jnp.where(weights == 0, experts, chosen).reshape(-1).astype(jnp.int32)
    row = jnp.arange(total * rows, dtype=jnp.int32)
    own = (row % rows == 0) & (jnp.repeat(expert, rows) < experts)
    return _Tiles(rows, expert, row // rows, own, jnp.arange(total, dtype=jnp.int32) * rows)


def _sorted(products: Products, chosen: Any, weights: Any, experts: int) -> _Tiles:
    total = chosen.size
    schedule = Schedule.of(chosen, weights, experts, products.least, products.most)

    def one(i: Any) -> tuple[Any, Any, Any]:
        tile = schedule.tile(i)
        return tile.expert, tile.assignment, tile.own & (tile.expert < experts)

    expert, assignment, own = jax.vmap(one)(jnp.arange(total // schedule.rows + min(experts, total)))
    assignment, own = assignment.reshape(-1), own.reshape(-1)
    # On GPUs rows are gathered in a tenth of the time in which they are scattered.
    place = jnp.arange(len(own), dtype=jnp.int32)
    place = jnp.zeros(total, jnp.int32).at[jnp.where(own, assignment, total)].set(place, mode="drop")
    return _Tiles(schedule.rows, expert.astype(jnp.int32), assignment, own, place)


def _forward(how: tuple[Any, Any, Products], *args: Any) -> tuple[Any, Any]:
    x, _, weights, w_in, b_in, w_out, b_out = args
    asked = wanted(x, weights, *w_in, *b_in, w_out, b_out)
    return _moe(how, *given(args)), (given(args), asked)


@once
def _backward(how: tuple[Any, Any, Products], kept: Any, dy: Any) -> tuple[Any, ...]:
    args, asked = kept
    return gradients(how[0], how[1], project, args, asked.flags, cotangent(dy))


_moe.defvjp(_forward, _backward, symbolic_zeros=True)
