"""matmul as a Mosaic GPU kernel for Hopper: packed weights times many rows of 16-bit floats, decoded in registers.

What a kernel does is in `plugins/kernels/mosaic_gpu/packed.py`; here all rows are multiplied with one matrix. A product
of a few rows reads weights once too, but multiplies 64 rows for them. The gradients are XLA's.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from plugins.kernels.matmul.xla import with_products
from plugins.kernels.mosaic_gpu.launch import Device, everywhere
from plugins.kernels.mosaic_gpu.packed import prepared, products
from plugins.kernels.pallas.blocks import padded, power

FEW, MANY = 8, 128  # rows of x that a block has, at least and at most


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_products(_products, x, [(w, bias)], out_dtype)[0]


def _products(x: Any, ws: Sequence[Any]) -> list[Any]:
    return [product(x, w) for w in ws]


def product(x: Any, w: Any) -> Any:
    """float32 `[N, out]`: `x` `[N, in]` of 16-bit floats times a QTensor `[out, in]`, transposed."""
    if not x.size or not w.shape[-2]:
        return jnp.zeros((len(x), w.shape[-2]), jnp.float32)
    return everywhere(_product, None, x, w)[0]


def _product(how: None, device: Device, x: Any, w: Any) -> tuple[Any]:
    high = min(MANY, max(FEW, power(len(x))))
    rows = padded(prepared(x, w), {0: high})
    return (products(device, rows, w, high, jnp.zeros(len(rows) // high, jnp.int32))[: len(x)],)
