"""matmul in C++, for a few rows of activations and weights in any format: what a step of decoding is.

Each byte of the weights is read once, from where it lies, and nothing is written but the result; activations are exact,
float32 or bfloat16, and sums float32. More rows are a matter of arithmetic and not of memory: they are left to others.
The gradient is XLA's.
"""

from typing import Any

from plugins.kernels.matmul.xla import with_product
from plugins.kernels.native import ffi


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_product(_product, x, w, bias, out_dtype)


def _product(x: Any, w: Any) -> Any:
    return ffi.grouped(x, None, [w])[0]
