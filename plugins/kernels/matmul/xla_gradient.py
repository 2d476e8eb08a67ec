"""The gradients of matmul in jnp: the weights are decoded a second time, band by band; no decoded band is kept.

    dx = dy · w        dw = dyᵀ · x

Sums are float32; who asks rounds them once, to the dtype of x and of w.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from plugins.kernels.matmul import weights
from plugins.kernels.varying import along, axes_of


def input_gradient(dy: Any, w: Any, dtype: Any, at: Any = None) -> Any:
    """float32 `[N, in]`: `dy` `[N, out]` times an array or QTensor `[out, in]`.

    Args:
        dtype: that of x: what `w` is taken in.
        at: which matrix (traced) of a stack `[E, out, in]`, when `w` is one.
    """
    if at is None and not weights.needs_decoding(w, dtype) and dtype == dy.dtype:
        return _times(dy, w)
    return lax.platform_dependent(
        dy, w, at,
        cpu=partial(_banded, weights.CPU_BAND_NBYTES, dtype), default=partial(_banded, weights.BAND_NBYTES, dtype),
    )  # fmt: skip


def input_gradients(dys: Sequence[Any], ws: Sequence[Any], dtype: Any) -> Any:
    """The sum of `input_gradient` over pairs of them."""
    return sum(input_gradient(dy, w, dtype) for dy, w in zip(dys, ws, strict=True))


def weight_gradient(dy: Any, x: Any) -> Any:
    """float32 `[out, in]`: `dy` `[N, out]` transposed, times `x` `[N, in]`."""
    wide = jnp.promote_types(dy.dtype, x.dtype)
    return lax.dot_general(
        dy.astype(wide), x.astype(wide), (((0,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32,
    )  # fmt: skip


def _times(dy: Any, w: Any) -> Any:
    return lax.dot_general(
        dy, w, (((1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _banded(nbytes: int, dtype: Any, dy: Any, w: Any, at: Any) -> Any:
    """The sum over bands of rows of `w` of what each gives."""

    def one(start: Any, rows: int) -> Any:
        band = weights.decoded(weights.band(w, start, rows, at), dtype)
        return _times(lax.dynamic_slice_in_dim(dy, start, rows, 1), band.astype(dy.dtype))

    n_out = w.shape[-2]
    rows = weights.band_rows(w, dy.dtype, nbytes)
    if rows >= n_out:
        return one(0, n_out)
    whole = n_out // rows * rows
    zero = along(axes_of(dy, w), jnp.zeros((dy.shape[0], w.shape[-1]), jnp.float32))
    total = lax.fori_loop(0, whole // rows, lambda i, so_far: so_far + one(i * rows, rows), zero)
    return total if whole == n_out else total + one(whole, n_out - whole)
