"""The gradients of matmul in C++ where it reads what they are made of: plain floats. Of others they are XLA's."""

from collections.abc import Sequence
from typing import Any

from plugins.kernels.matmul import xla_gradient
from plugins.kernels.native import gradients


def input_gradients(dys: Sequence[Any], ws: Sequence[Any], dtype: Any) -> Any:
    """See `xla_gradient.input_gradients`."""
    if gradients.takes(*ws, dtype=dtype):
        return gradients.input_gradient(dys, ws)
    return xla_gradient.input_gradients(dys, ws, dtype)


def weight_gradient(dy: Any, x: Any) -> Any:
    """See `xla_gradient.weight_gradient`."""
    if gradients.takes(x, dtype=x.dtype):
        return gradients.weight_gradient(dy, x)[0][0]
    return xla_gradient.weight_gradient(dy, x)
