"""moe as Pallas kernels: one launch for each projection, over all experts, whose weights stay packed.

How assignments become tiles of one expert each is in `tiled.py`; an expert that nobody chose is not read. A point of
the grid is a tile and some rows of its expert's weights, which it decodes as `matmul` does
(`plugins/kernels/pallas/decode.py`). Gradients are XLA's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from plugins.kernels.matmul.pallas import FEW, OUT, ROWS, added
from plugins.kernels.moe.tiled import Products, finished, tiled
from plugins.kernels.pallas.blocks import power
from plugins.kernels.pallas.decode import Tiles
from plugins.kernels.pallas.launch import Device, everywhere


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
    args = (x, chosen, weights, w_in, b_in, w_out, b_out)
    return tiled(PRODUCTS, *args, activation=activation, out_dtype=out_dtype)


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


def _product(high: int, expert: Any, x: Any, w: Any, b: Any, dtype: Any) -> Any:
    return finished(high, expert, everywhere(_grouped, high, expert, x, w)[0], b, dtype)


PRODUCTS = Products(_product, FEW, ROWS)
