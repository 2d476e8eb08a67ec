"""matmul in jnp: weights are decoded a band of rows at a time, so that a band is still in cache when it is multiplied.

Compiled for the platform it runs on (`lax.platform_dependent`), because CPUs differ in three things: how large a band
should be, how codes become values (`planes`), and what a product with a single row costs.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.dequantize import is_mxfp4
from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.matmul import weights, xla_gradient
from plugins.kernels.matmul.planes import count, planes
from plugins.kernels.varying import alike


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    return with_products(_products, x, [(w, bias)], out_dtype)[0]


def with_products(
    products: Any, x: Any, weights: Sequence[tuple[Any, Any]], out_dtype: Any = None, gradients: Any = xla_gradient
) -> list[Any]:
    """matmul of `x` and each (weights, bias), around `products(x, ws)`, which gives float32 `[N, out]` of `x` `[N, in]`
    for each of them, and `gradients`."""
    x = jnp.asarray(x)
    lead, n_in = x.shape[:-1], x.shape[-1]
    dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    found = []
    given_x, ws = alike(x.reshape(math.prod(lead), n_in), tuple(w for w, _ in weights))
    ys = _differentiable(given_x, ws, (products, dtype, gradients))
    for y, (_, bias) in zip(ys, weights, strict=True):
        if bias is not None:
            y = y + jnp.asarray(bias).astype(jnp.float32)[None]
        found.append(y.astype(dtype).reshape(*lead, y.shape[-1]))
    return found


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _differentiable(x: Any, ws: tuple[Any, ...], how: tuple[Any, Any, Any]) -> list[Any]:
    """The products; what they are rounded to afterwards: their cotangents are exact in that dtype, so that products
    with them may be taken in it; and who takes those (`input_gradients`, `weight_gradient`)."""
    return list(how[0](x, ws))


def _forward(x: Any, ws: tuple[Any, ...], how: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    asked = wanted(x, *ws)
    x, ws = given(x), given(ws)
    return list(how[0](x, ws)), (x, ws, asked)


@once
def _backward(how: tuple[Any, Any, Any], kept: Any, dys: Any) -> tuple[Any, Any]:
    x, ws, asked = kept
    for_x, *for_ws = asked.flags
    dys = [cotangent(dy).astype(x.dtype if how[1] == x.dtype else jnp.float32) for dy in dys]
    pairs = list(zip(dys, ws, strict=True))
    dx = how[2].input_gradients(dys, ws, x.dtype).astype(x.dtype) if for_x else None
    dws = (
        how[2].weight_gradient(dy, x).astype(w.dtype) if asks else None
        for (dy, w), asks in zip(pairs, for_ws, strict=True)
    )
    return dx, tuple(dws)


_differentiable.defvjp(_forward, _backward, symbolic_zeros=True)


def _products(x: Any, ws: Sequence[Any]) -> list[Any]:
    return [product(x, w) for w in ws]


def product(x: Any, w: Any, at: Any = None) -> Any:
    """float32 `[N, out]`: `x` `[N, in]` times an array or QTensor `[out, in]`, transposed.

    Args:
        at: which matrix (traced) of a stack `[E, out, in]`, when `w` is one.
    """
    return lax.platform_dependent(x, w, at, cpu=_on_cpu, default=_elsewhere)


def contract(x: Any, w: Any) -> Any:
    """float32 `[N, out]` of arrays of one dtype, with full products for float32."""
    return lax.dot_general(
        x, w, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _elsewhere(x: Any, w: Any, at: Any) -> Any:
    def one(start: Any, rows: int) -> Any:
        return contract(x, weights.decoded(weights.band(w, start, rows, at), x.dtype))

    if at is None and not weights.needs_decoding(w, x.dtype):
        return contract(x, w)
    return banded(one, x, w, weights.BAND_NBYTES)


def _on_cpu(x: Any, w: Any, at: Any) -> Any:
    if at is None and not weights.needs_decoding(w, x.dtype):
        return _contract_on_cpu(x, w)
    many = count(w) if isinstance(w, QTensor) else None
    if many is None:

        def plain(start: Any, rows: int) -> Any:
            return _contract_on_cpu(x, weights.decoded(weights.band(w, start, rows, at), x.dtype))

        return banded(plain, x, w, weights.CPU_BAND_NBYTES)
    # A single row is multiplied in float32, for which there are kernels (see below). MXFP4 is made in bfloat16 at once.
    half = x.dtype == jnp.bfloat16 and (x.shape[0] > 1 or is_mxfp4(w.scheme))
    dtype = jnp.bfloat16 if half else jnp.float32
    parts = [x[:, p::many].astype(dtype) for p in range(many)]

    def one(start: Any, rows: int) -> Any:
        found, after = planes(weights.band(w, start, rows, at), dtype)
        y = sum(_contract_on_cpu(part, plane) for part, plane in zip(parts, found, strict=True))
        return y if after is None else y * after[None]

    return banded(one, parts[0], w, weights.CPU_BAND_NBYTES)


def _contract_on_cpu(x: Any, w: Any) -> Any:
    """`contract`. XLA's CPU backend has bfloat16 kernels for two rows and more; for a single row it widens the whole
    matrix first, some ten times slower: so a single row gets company."""
    if x.dtype != jnp.float32 and x.shape[0] == 1:
        return contract(jnp.concatenate([x, x]), w)[:1]
    return contract(x, w)


def banded(one: Any, x: Any, w: Any, nbytes: int) -> Any:
    """`[N, out]` of `one(start, rows)`, over bands of rows whose decoded form has at most about `nbytes`."""
    n_out = w.shape[-2]
    rows = weights.band_rows(w, x.dtype, nbytes)
    if rows >= n_out:
        return one(0, n_out)
    whole = n_out // rows * rows
    y = lax.map(lambda start: one(start, rows), jnp.arange(0, whole, rows))  # [bands, N, rows]
    y = jnp.moveaxis(y, 0, 1).reshape(x.shape[0], whole)
    return y if whole == n_out else jnp.concatenate([y, one(whole, n_out - whole)], axis=1)
