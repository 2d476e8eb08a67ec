"""matmul in C++, for weights in any format: activations are exact, float32 or bfloat16, and so are weights; sums are
float32.

For a few rows each byte of the weights is read once, from where it lies, and nothing is written but the result: what a
step of decoding is. For many, strips of weights are decoded into cache, where all rows meet them. The gradient is C++
too for plain weights (`native_gradient.py`).
"""

from collections.abc import Sequence
from typing import Any

from plugins.kernels.matmul import native_gradient, xla_gradient
from plugins.kernels.matmul.xla import with_products
from plugins.kernels.native import ffi


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_products(_products, x, [(w, bias)], out_dtype, native_gradient)[0]


def together(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """matmul of one `x` and several weights, `(x, w, bias)` each, in one call of the C++."""
    return joined(_products, calls, native_gradient)


def joined(products: Any, calls: Sequence[tuple[Any, ...]], gradients: Any = xla_gradient) -> list[Any]:
    """`together`, for whatever makes products of one x with several weights.

    Args:
        products: (x, weights) → float32, one for each.
        gradients: as for `with_products`.
    """
    x = calls[0][0]
    if any(other is not x for other, *_ in calls):
        return [with_products(products, own, [(w, bias)], gradients=gradients)[0] for own, w, bias in calls]
    return with_products(products, x, [(w, bias) for _, w, bias in calls], gradients=gradients)


def _products(x: Any, ws: Sequence[Any]) -> list[Any]:
    return ffi.grouped(x, None, ws)
