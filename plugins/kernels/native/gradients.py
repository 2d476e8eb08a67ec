"""The products of gradients in C++ (src/gradient.h), for plain weights: float32 sums of float32 or bfloat16 numbers, in
an order that does not depend on threads."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.native import ffi, library

_NONE = np.zeros(0, np.int32)


def takes(*arrays: Any, dtype: Any) -> bool:
    """Whether all of these are arrays of one dtype, which the C++ reads."""
    return dtype in (jnp.float32, jnp.bfloat16) and not any(isinstance(a, QTensor) or a.dtype != dtype for a in arrays)


def input_gradient(dys: Sequence[Any], ws: Sequence[Any], expert: Any = None) -> Any:
    """float32 `[A, in]`: the sum of `dy · w[expert]` over pairs of `dy` `[N, out]` and `w` `[E, out, in]`.

    Args:
        expert: int32 `[A]`, A a multiple of N: assignment a is of row a / (A / N); a negative one gives zeros. None:
            A is N, and weights are `[out, in]`.
    """
    count = dys[0].shape[0] if expert is None else expert.shape[0]
    stacks = [w[None] if expert is None else w for w in ws]
    result = jax.ShapeDtypeStruct((count, ws[0].shape[-1]), jnp.float32)  # type: ignore[no-untyped-call]
    pairs = [array for pair in zip(dys, stacks, strict=True) for array in pair]
    product = ffi.call("gradient", "wm_input_gradient", result)
    return product(_NONE if expert is None else expert, *pairs, isa=np.int64(library.isa()))


def weight_gradient(dy: Any, x: Any, expert: Any = None, experts: int = 1) -> tuple[Any, Any]:
    """float32 `[E, out, in]` and `[E, out]`: of each expert the sums of `dyᵀ · x`, and of `dy`, over its assignments.

    Args:
        dy, x: `[M, out]` and `[N, in]`, where A is a multiple of M and of N.
        expert: as above; None: A is M and N, and there is one expert.
        experts: E.
    """
    out, n = dy.shape[-1], x.shape[-1]
    shapes = [(experts, out, n), (experts, out)]
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]  # type: ignore[no-untyped-call]
    product = ffi.call("gradient", "wm_weight_gradient", results)
    dw, db = product(dy, x, _NONE if expert is None else expert, isa=np.int64(library.isa()))
    return dw, db
