"""matmul as a Pallas kernel: plain weights, and packed ones that are decoded in registers, tile by tile.

A point of the grid makes a tile of the result, reads all columns of its rows of x and of the weights, and adds up in
float32. Of packed weights it reads the bytes and nothing else is read or written for them: no array of decoded weights
exists, of whatever size. A step of decoding (few rows of x) has tiles with few rows of weights, so that all of a
device's cores read. The gradients are XLA's.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from plugins.kernels.matmul.xla import with_products
from plugins.kernels.pallas.blocks import padded, power
from plugins.kernels.pallas.decode import Tiles
from plugins.kernels.pallas.launch import Device, everywhere

FEW = 16  # rows of x that a matrix unit multiplies at least, and of weights where there are few of x
ROWS, OUT = 64, 64  # of a tile of the result, at most


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_products(_products, x, [(w, bias)], out_dtype)[0]


def _products(x: Any, ws: Sequence[Any]) -> list[Any]:
    return [product(x, w) for w in ws]


def product(x: Any, w: Any) -> Any:
    """float32 `[N, out]`: `x` `[N, in]` times an array or QTensor `[out, in]`, transposed."""
    if not x.size or not w.shape[-2]:
        return jnp.zeros((len(x), w.shape[-2]), jnp.float32)
    return everywhere(_product, None, x, w)[0]


def _product(how: None, device: Device, x: Any, w: Any) -> tuple[Any]:
    rows, n_out = len(x), w.shape[-2]
    high = min(ROWS, max(FEW, power(rows)))
    wide = max(device.lanes, FEW if rows <= FEW else min(OUT, power(n_out)))
    tiles = Tiles.of(w, 1 if device.overhangs else wide)
    planes = padded(tiles.planes(x), {1: high})
    columns, across = planes.shape[2], tiles.arrays[0].shape[0]

    def kernel(x: Any, *refs: Any) -> None:
        *weights, y = refs

        def more(k: Any, total: Any) -> Any:
            return added(tiles, x, weights, (slice(None),), k, total)

        y[...] = lax.fori_loop(0, tiles.steps, more, jnp.zeros((high, wide), jnp.float32))

    (y,) = device.call(
        kernel, [((planes.shape[1], across), jnp.float32)], [planes, *tiles.arrays],
        grid=(pl.cdiv(across, wide), planes.shape[1] // high),
        in_specs=[
            pl.BlockSpec((tiles.count, high, columns), lambda o, n: (0, n, 0)),
            *(pl.BlockSpec((wide, a.shape[1]), lambda o, n: (o, 0)) for a in tiles.arrays),
        ],
        out_specs=[pl.BlockSpec((high, wide), lambda o, n: (n, o))],
    )  # fmt: skip
    y = y[:rows, :n_out]
    return (y if tiles.after is None else y * tiles.after[None],)


def added(tiles: Tiles, x: Any, weights: Any, at: tuple[Any, ...], k: Any, total: Any) -> Any:
    """Inside a kernel: `total` with the products of step `k`, of references to planes of x and to `tiles.arrays`."""
    columns = pl.ds(pl.multiple_of(k * tiles.step, tiles.step), tiles.step)
    for p, plane in enumerate(tiles.tile(weights, at, k, x.dtype)):
        total = total + dot(x[p, :, columns], plane)
    return total


def dot(a: Any, b: Any) -> Any:
    """float32 `[N, M]` of `[N, K]` and `[M, K]`, with full products for float32."""
    full = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=full, preferred_element_type=jnp.float32)
