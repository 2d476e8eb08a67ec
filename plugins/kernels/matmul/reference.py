"""matmul, the definition: every weight decoded, float64 sums, one rounding; see the op's docstring."""

from typing import Any

import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import dtype_name
from plugins.kernels.dequantize.numpy import dequantize


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    x = np.asarray(x)
    with np.errstate(invalid="ignore"):  # 0 times an infinity is NaN
        y = x.astype(np.float64) @ values(w, x.dtype).astype(np.float64).T
    if bias is not None:
        y = y + np.asarray(bias).astype(np.float64)
    return rounded(y, x.dtype if out_dtype is None else out_dtype)


def values(w: Any, dtype: Any) -> Any:
    """An array or a QTensor as an array of `dtype`."""
    if not isinstance(w, QTensor):
        return np.asarray(w).astype(dtype)
    packed = QTensor(scheme=w.scheme, **{name: np.asarray(array) for name, array in w.components.items()})
    return dequantize(packed, dtype_name(np.dtype(dtype)), overflow="clamp")


def rounded(y: Any, dtype: Any) -> Any:
    """float64 `y` in `dtype`, by way of float32, in which backends sum."""
    return y.astype(np.float32).astype(np.dtype(dtype))
