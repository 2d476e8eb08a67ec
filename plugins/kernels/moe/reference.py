"""moe, the definition: one token and one of its experts at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.matmul.reference import matmul, rounded


def moe(
    x: Any,
    chosen: Any,
    weights: Any,
    w_in: Sequence[Any],
    b_in: Sequence[Any],
    w_out: Any,
    b_out: Any,
    *,
    activation: Callable[..., Any],
    out_dtype: Any = None,
) -> Any:
    """See the op's docstring."""
    x, chosen, weights = np.asarray(x), np.asarray(chosen), np.asarray(weights).astype(np.float64)
    out = np.zeros((len(x), w_out.shape[1]))
    dtype = np.dtype(x.dtype if out_dtype is None else out_dtype)
    for n, j in np.ndindex(*chosen.shape):
        if weights[n, j] == 0:
            continue
        e = int(chosen[n, j])
        hidden = [matmul(x[n], of(w, e), of(b, e)) for w, b in zip(w_in, b_in, strict=True)]
        y = matmul(np.asarray(activation(*hidden)), of(w_out, e), of(b_out, e), out_dtype=dtype)
        out[n] += weights[n, j] * y.astype(np.float64)
    return rounded(out, dtype)


def of(stack: Any, e: int) -> Any:
    """Entry `e` of a stack that may be packed, or None."""
    if not isinstance(stack, QTensor):
        return None if stack is None else np.asarray(stack)[e]
    if stack.scheme.whole_only:  # its scales are coded across all experts: decoded whole, then one taken
        from plugins.kernels.matmul.reference import values

        return values(stack, np.float32)[e]
    return QTensor(scheme=stack.scheme, **{name: np.asarray(a)[e] for name, a in stack.components.items()})
