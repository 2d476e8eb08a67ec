"""Pieces of weights that stay packed: one matrix of a stack, a band of rows, rows by number; then decoded.

Everything here is traced: a piece is the same few bytes of each component, sliced or gathered, so that what is decoded
is what is used. An array goes the same way as a QTensor.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

import pipeline.tensors.pytree  # noqa: F401  (QTensors go through jit)
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import DYNAMIC8_BLOCK
from plugins.kernels.codecs import dynamic8
from plugins.kernels.dequantize.jax_decode import decode


def decoded(w: Any, dtype: Any) -> Any:
    """An array or a QTensor as an array of `dtype`."""
    if not isinstance(w, QTensor):
        return jnp.asarray(w).astype(dtype)
    direct = jnp.dtype(dtype) in (jnp.float32, jnp.bfloat16)
    return decode(w, dtype) if direct else decode(w, jnp.float32).astype(dtype)


def needs_decoding(w: Any, dtype: Any) -> bool:
    """Whether `decoded` makes something new."""
    return isinstance(w, QTensor) or w.dtype != dtype


def row_grain(w: Any) -> int | None:
    """Bands of rows start at multiples of this; None: all rows share what decodes them, any start will do."""
    return w.scheme.block_rows or None if isinstance(w, QTensor) else 1


def matrix(w: Any, at: Any) -> Any:
    """Matrix number `at` (traced) of a stack `[E, rows, n]`."""
    if not isinstance(w, QTensor):
        return lax.dynamic_index_in_dim(w, at, 0, keepdims=False)
    return _pick(w, lambda a: lax.dynamic_index_in_dim(a, at, 0, keepdims=False))


def band(w: Any, start: Any, rows: int) -> Any:
    """`rows` rows of a matrix `[out, n]` from row `start` (traced, a multiple of `row_grain`)."""
    if not isinstance(w, QTensor):
        return lax.dynamic_slice_in_dim(w, start, rows, 0)
    per = w.scheme.block_rows

    def scales(array: Any) -> Any:
        return lax.dynamic_slice_in_dim(array, start // per, -(-rows // per), 0) if per else array

    return _pick(w, lambda a: lax.dynamic_slice_in_dim(a, start, rows, 0), scales)


def rows_at(w: Any, ids: Any) -> Any:
    """The rows `ids` `[n]` (traced, clipped to what there is) of a matrix; each has scales of its own."""
    if not isinstance(w, QTensor):
        return jnp.take(w, ids, axis=0, mode="clip")
    per = w.scheme.block_rows or w.shape[0]
    found = _pick(
        w, lambda a: jnp.take(a, ids, axis=0, mode="clip"), lambda a: jnp.take(a, ids // per, axis=0, mode="clip")
    )
    return replace(found, scheme=replace(found.scheme, block_rows=1))


def _pick(w: QTensor, codes: Any, scales: Any = None) -> QTensor:
    """`w` with `codes` applied to its codes and `scales` (by default the same) to what goes by blocks.

    Scales that are coded across the whole tensor are decoded where they are picked, into float32 scales.
    """
    scales = codes if scales is None else scales
    lead = w.codes.ndim - 2
    picked = scales(w.scales)
    zeros = None if w.zeros is None else scales(w.zeros)
    second, scheme = w.second, w.scheme
    if scheme.second == "dynamic8":
        flat = jnp.arange(w.scales.size, dtype=jnp.int32).reshape(w.scales.shape)
        group = jnp.take(second, scales(flat) // DYNAMIC8_BLOCK)
        picked = jnp.take(jnp.asarray(dynamic8.table()), picked.astype(jnp.int32)) * group + second[-1]
        scheme, second = replace(scheme, scale="f32", second=None), None
    elif second is not None and lead:
        second = codes(second)
    return QTensor(codes(w.codes), picked, scheme, zeros, second)
