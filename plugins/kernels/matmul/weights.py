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
from plugins.facts.codebooks import dynamic8
from plugins.kernels.dequantize.traced import decode

# Bytes of decoded weights at a time. On CPUs a few times a core's L2: smaller bands pay more for starting the threads
# than larger ones do for L3. Elsewhere enough to keep the device busy.
CPU_BAND_NBYTES = 4 << 20
BAND_NBYTES = 64 << 20


def decoded(w: Any, dtype: Any) -> Any:
    """An array or a QTensor as an array of `dtype`."""
    if not isinstance(w, QTensor):
        return jnp.asarray(w).astype(dtype)
    direct = jnp.dtype(dtype) in (jnp.float32, jnp.bfloat16)
    return decode(w, dtype) if direct else decode(w, jnp.float32).astype(dtype)


def needs_decoding(w: Any, dtype: Any) -> bool:
    """Whether `decoded` makes something new."""
    return isinstance(w, QTensor) or w.dtype != dtype


def row_grain(w: Any) -> int:
    """Bands of rows start at multiples of this."""
    return w.scheme.block_rows or 1 if isinstance(w, QTensor) else 1


def band_rows(w: Any, dtype: Any, nbytes: int) -> int:
    """Rows of a band of `w` that has at most about `nbytes` in `dtype`; bands of even size where that is near."""
    n_out, n_in = w.shape[-2:]
    grain = row_grain(w)
    most = max(1, nbytes // max(1, n_in * jnp.dtype(dtype).itemsize * grain)) * grain
    if most >= n_out:
        return int(n_out)
    return next((r for r in range(most, most // 2, -grain) if n_out % r == 0), most)


def band(w: Any, start: Any, rows: int, at: Any = None) -> Any:
    """`rows` rows of a matrix `[out, n]` from row `start` (traced, a multiple of `row_grain`).

    Args:
        at: which matrix (traced) of a stack `[E, out, n]`, when `w` is one.
    """

    def cut(array: Any, start: Any, rows: int) -> Any:
        if at is None:
            return lax.dynamic_slice_in_dim(array, start, rows, 0)
        return lax.dynamic_slice(array, (at, start, 0), (1, rows, array.shape[2]))[0]

    if not isinstance(w, QTensor):
        return _band_of_array(cut, w, start, rows, at)
    per = w.scheme.block_rows

    def scales(array: Any) -> Any:
        return cut(array, start // per, -(-rows // per)) if per else cut(array, 0, array.shape[-2])

    def second(array: Any) -> Any:
        return cut(array, 0, 1)

    return _pick(w, lambda a: cut(a, start, rows), scales, second)


def _band_of_array(cut: Any, w: Any, start: Any, rows: int, at: Any) -> Any:
    """`cut(w, start, rows)`, for 16-bit floats by way of integers, tied to where in a loop it happens.

    XLA's CPU backend slices such floats in a loop as float32: it widens the whole array before the loop, which makes
    2 GB of a stack of gpt-oss's experts. As integers they are sliced as they are, unless XLA moves the change of type
    before the loop, and copies them all; the barrier keeps it inside.
    """
    if w.dtype not in (jnp.bfloat16, jnp.float16):
        return cut(w, start, rows)
    w, start, at = lax.optimization_barrier((w, start, at))  # type: ignore[no-untyped-call]
    return lax.bitcast_convert_type(cut(lax.bitcast_convert_type(w, jnp.uint16), start, rows), w.dtype)


def rows_at(w: Any, ids: Any) -> Any:
    """The rows `ids` `[n]` (traced, clipped to what there is) of a matrix; each has scales of its own."""
    if not isinstance(w, QTensor):
        return jnp.take(w, ids, axis=0, mode="clip")
    per = w.scheme.block_rows or w.shape[0]
    found = _pick(
        w, lambda a: jnp.take(a, ids, axis=0, mode="clip"), lambda a: jnp.take(a, ids // per, axis=0, mode="clip")
    )
    return replace(found, scheme=replace(found.scheme, block_rows=1))


def _pick(w: QTensor, codes: Any, scales: Any, second: Any = lambda a: a) -> QTensor:
    """`w` with functions applied to its codes, to what goes by blocks, and to what goes by matrices.

    Scales that are coded across the whole tensor are decoded where they are picked, into float32 scales.
    """
    if w.scheme.is_struct:
        return replace(w, codes=codes(w.codes))
    picked, scheme, other = scales(w.scales), w.scheme, w.second
    if scheme.second == "dynamic8":
        flat = jnp.arange(w.scales.size, dtype=jnp.int32).reshape(w.scales.shape)
        group = jnp.take(other, scales(flat) // DYNAMIC8_BLOCK)
        picked = jnp.take(jnp.asarray(dynamic8()), picked.astype(jnp.int32)) * group + other[-1]
        scheme, other = replace(scheme, scale="f32", second=None), None
    elif other is not None:
        other = second(other)
    return QTensor(codes(w.codes), picked, scheme, None if w.zeros is None else scales(w.zeros), other)
