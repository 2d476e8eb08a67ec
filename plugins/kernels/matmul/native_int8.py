"""matmul in C++, over integers of 8 bits: not exact, and only where it is named.

Activations are rounded to integers of -127 … 127 in blocks of 32 columns, each with a float32 scale of its own, and
multiplied as such: 24 rows or more (`scheme.ROUNDED_ROWS`, a matrix) with weights in any format; any number of them
with those whose elements are integers of four or eight bits in some unit (E2M1, INT4, UINT4, INT8, UINT8, MXINT8) in
blocks of multiples of 8 or 4 or of whole rows (src/gemv_rounded.h, gemm_int.h); and more than a few (`scheme.FEW_ROWS`)
with ggml's structs but Q2_K. All others are exact, as in `native`, which is faster there. Where one call multiplies
weights of several kinds, all are rounded or none.

Of 24 rows or more weights are exact where elements are small integers in some unit and blocks hold whole 32s or whole
rows: E2M1, E2M3, MXINT8, INT2 to INT8, UINT2 to UINT4 with their zero points or minimums, and ggml's Q3_K to Q6_K,
Q5_0, Q5_1 and IQ4_NL; all others are rounded as activations are. Of fewer, weights are exact. Sums within a block are
exact; blocks are summed in float32. The gradient is XLA's, of the exact weights.

Error of a product relative to its root mean square, normally distributed activations, against float64: 0.0057 with
exact weights, 0.007 to 0.012 with others (tests/unit/kernels/test_native_gemm.py holds it to 0.0075 and 0.02).
Perplexity of the embedded model, as MXFP4, on its two texts: 71.077 and 66.279 where exact products give 71.088 and
66.276; in bfloat16 70.858 and 65.791 for 70.860 and 65.759.
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
    return ffi.grouped(x, None, ws, bits=8)
