"""matmul in C++, for a few rows of activations and MXFP4 weights: what a step of decoding is.

Each byte of the weights is read once, from where it lies, and nothing is written but the result; activations are
float32, or taken as such, which is exact. More rows are a matter of arithmetic and not of memory: they are left to
others. The gradient is XLA's.
"""

from typing import Any

import jax.numpy as jnp

from plugins.kernels.matmul.xla import with_product
from plugins.kernels.native import ffi


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_product(_product, x, w, bias, out_dtype)


def _product(x: Any, w: Any) -> Any:
    first = jnp.zeros(x.shape[0], jnp.int32)
    return ffi.grouped(x.astype(jnp.float32), first, w.codes[None], w.scales[None])
