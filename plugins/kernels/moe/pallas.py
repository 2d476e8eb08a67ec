"""moe as Pallas kernels: one launch for each projection, over all experts, whose weights stay packed.

Assignments are sorted by expert and cut into tiles of one expert each (`schedule.py`); a last tile of an expert is
made up with rows of zeros. There is room for as many tiles as there may be, A / rows + min(E, A) of A assignments, and
those that turn out to be none do nothing: an expert that nobody chose is not read. A point of the grid is a tile and
some rows of its expert's weights, which it decodes as `matmul` does (`plugins/kernels/pallas/decode.py`). Gradients
are XLA's.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.matmul.pallas import FEW, OUT, ROWS, added
from plugins.kernels.moe.schedule import Schedule
from plugins.kernels.moe.xla import project
from plugins.kernels.moe.xla_gradient import gradients
from plugins.kernels.pallas.blocks import power
from plugins.kernels.pallas.decode import Tiles
from plugins.kernels.pallas.launch import Device, everywhere
from plugins.kernels.varying import alike


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
    how = (activation, jnp.dtype(x.dtype if out_dtype is None else out_dtype))
    return _moe(how, *alike(x, chosen, weights, tuple(w_in), tuple(b_in), w_out, b_out))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _moe(how: tuple[Any, Any], x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any) -> Any:
    activation, dtype = how
    (experts, d_out), total = w_out.shape[:2], chosen.size
    if not x.size:
        return jnp.zeros((len(x), d_out), dtype)
    schedule = Schedule.of(chosen, weights, experts, FEW, ROWS)
    expert, assignment, own = _tiles(schedule, total // schedule.rows + min(experts, total))

    def projected(x: Any, w: Any, b: Any, dtype: Any) -> Any:
        (y,) = everywhere(_grouped, schedule.rows, expert, x, w)
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


def _grouped(high: int, device: Device, expert: Any, x: Any, w: Any) -> tuple[Any]:
    """float32 `[N, out]` of `x` `[N, in]`, `high` rows after `high` rows times the weights of their `expert`; those
    past the last expert give anything."""
    experts, n_out = w.shape[:2]
    wide = max(device.lanes, FEW if high <= FEW else min(OUT, power(n_out)))
    tiles = Tiles.of(w, 1 if device.overhangs else wide)
    planes = tiles.planes(x)
    across = tiles.arrays[0].shape[-2]

    def kernel(expert: Any, x: Any, *refs: Any) -> None:
        *weights, y = refs
        mine = expert[pl.program_id(1)]

        @pl.when(mine < experts)
        def _() -> None:
            at = (slice(None),) if device.picks else (mine, slice(None))

            def more(k: Any, total: Any) -> Any:
                return added(tiles, x, weights, at, k, total)

            y[...] = lax.fori_loop(0, tiles.steps, more, jnp.zeros((high, wide), jnp.float32))

    def block(array: Any) -> Any:
        columns = array.shape[-1]
        if device.picks:  # a tile that is none has the last expert's, and leaves them alone
            return pl.BlockSpec((None, wide, columns), lambda o, n, e: (jnp.minimum(e[n], experts - 1), o, 0))
        return pl.BlockSpec((experts, wide, columns), lambda o, n: (0, o, 0))

    (y,) = device.call(
        kernel, [((planes.shape[1], across), jnp.float32)], [expert, planes, *tiles.arrays], scalars=1,
        grid=(pl.cdiv(across, wide), len(expert)),
        in_specs=[
            pl.BlockSpec((tiles.count, high, planes.shape[2]), lambda o, n, *_: (0, n, 0)), *map(block, tiles.arrays),
        ],
        out_specs=[pl.BlockSpec((high, wide), lambda o, n, *_: (n, o))],
    )  # fmt: skip
    y = y[:, :n_out]
    return (y if tiles.after is None else y * jnp.repeat(tiles.after[expert], high, axis=0),)


def _forward(how: tuple[Any, Any], *args: Any) -> tuple[Any, Any]:
    x, _, weights, w_in, b_in, w_out, b_out = args
    asked = wanted(x, weights, *w_in, *b_in, w_out, b_out)
    return _moe(how, *given(args)), (given(args), asked)


@once
def _backward(how: tuple[Any, Any], kept: Any, dy: Any) -> tuple[Any, ...]:
    args, asked = kept
    return gradients(how[0], how[1], project, args, asked.flags, cotangent(dy))


_moe.defvjp(_forward, _backward, symbolic_zeros=True)
