"""matmul in C++, for weights in any format: activations are exact, float32 or bfloat16, and so are weights; sums are
float32.

For a few rows each byte of the weights is read once, from where it lies, and nothing is written but the result: what a
step of decoding is. For many, strips of weights are decoded into cache, where all rows meet them. The gradient is
XLA's.
"""

from typing import Any

from plugins.kernels.matmul.xla import with_product
from plugins.kernels.native import ffi


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_product(_product, x, w, bias, out_dtype)


def _product(x: Any, w: Any) -> Any:
    return ffi.grouped(x, None, [w])[0]
