"""matmul in C++, for a few rows of activations and MXFP4 weights: what a step of decoding is.

Each byte of the weights is read once, from where it lies, and nothing is written but the result; activations are
float32, or taken as such, which is exact. More rows are a matter of arithmetic and not of memory: they are left to
others. The gradient is XLA's.
"""

import math
from typing import Any

import jax.numpy as jnp

from plugins.kernels.matmul.xla import with_product
from plugins.kernels.native import ffi

MOST_ROWS = 8


def declines(request: Any) -> str | None:
    """Why a call is left to others; None when it is not."""
    x, w = request.get("x"), request.get("w")
    if w is not None and (why := not_mxfp4(w)):
        return why
    if x is not None and (rows := math.prod(x.shape[:-1])) > MOST_ROWS:
        return f"{rows} rows; the native kernel is for {MOST_ROWS} at most"
    return None


def not_mxfp4(w: Any) -> str | None:
    """Why weights are not what the native kernels read; None when they are."""
    s = w.scheme
    if s is None or (s.element, s.scale, s.block_elems, s.block_rows) != ("e2m1", "e8m0", 32, 1):
        return f"{'plain' if s is None else s.element} weights; the native kernel is for MXFP4 in blocks of 32"
    return None


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_product(_product, x, w, bias, out_dtype)


def _product(x: Any, w: Any) -> Any:
    first = jnp.zeros(x.shape[0], jnp.int32)
    return ffi.grouped(x.astype(jnp.float32), first, w.codes[None], w.scales[None])
