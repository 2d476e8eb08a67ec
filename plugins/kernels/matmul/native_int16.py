"""matmul in C++, over integers of 16 bits: not exact, for prefill, and only where it is named.

As `native_int8` of more than a few rows, with integers of -32767 … 32767 for activations and -2047 … 2047 for weights
whose elements are no integers, so that 32 products fit 32 bits; E3M2 and UINT8 are exact too. A few rows are exact, and
so are fewer than 48 with weights whose codes are not integers of four bits.

Error of a product relative to its root mean square, normally distributed activations, against float64: 0.00003 with
exact weights, 0.0002 to 0.001 with others (tests/unit/kernels/test_native_gemm.py holds it to 0.00006 and 0.0015).
"""

from collections.abc import Sequence
from typing import Any

from plugins.kernels.matmul.native import joined
from plugins.kernels.matmul.xla import with_products
from plugins.kernels.native import ffi


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_products(_products, x, [(w, bias)], out_dtype)[0]


def together(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """See `native.together`."""
    return joined(_products, calls)


def _products(x: Any, ws: Sequence[Any]) -> list[Any]:
    return ffi.grouped(x, None, ws, bits=16)
