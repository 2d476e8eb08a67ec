"""moe as a Mosaic GPU kernel for Hopper: one launch for each projection, over all experts, whose weights stay packed.

How assignments become tiles of one expert each is in `tiled.py`, and what is done with a tile in
`plugins/kernels/mosaic_gpu/packed.py`: a block of the grid reads which expert its tile is of, and then that one's
codes; an expert that nobody chose is not read. Gradients are XLA's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from plugins.kernels.matmul.mosaic_gpu import FEW, MANY
from plugins.kernels.moe.tiled import Products, finished, tiled
from plugins.kernels.mosaic_gpu import by_bits
from plugins.kernels.mosaic_gpu.coding import coding_of
from plugins.kernels.mosaic_gpu.launch import Device, everywhere
from plugins.kernels.mosaic_gpu.packed import prepared, products


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


def _product(high: int, expert: Any, x: Any, w: Any, b: Any, dtype: Any) -> Any:
    coding = coding_of(w.scheme, x.dtype, *w.shape[-2:])
    whole = coding is not None and coding.scale is not None and w.second is None  # nothing comes after
    if whole and high > by_bits.FEW and dtype == jnp.bfloat16:
        return everywhere(_finished, high, expert, x, w, b)[0]
    return finished(high, expert, everywhere(_grouped, high, expert, x, w)[0], b, dtype)


def _grouped(high: int, device: Device, expert: Any, x: Any, w: Any) -> tuple[Any]:
    return (products(device, x, w, high, expert),)


def _finished(high: int, device: Device, expert: Any, x: Any, w: Any, b: Any) -> tuple[Any]:
    coding = coding_of(w.scheme, x.dtype, *w.shape[-2:])
    assert coding is not None
    return (by_bits.products(device, x, w, coding, high, expert, b, rounded=True),)


PRODUCTS = Products(_product, FEW, MANY, prepared)
