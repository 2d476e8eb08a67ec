"""matmul in jnp: weights are decoded a band of rows at a time, so that a band is still in cache when it is multiplied.

Compiled for the platform it runs on (`lax.platform_dependent`), because two things differ: how large a band should be,
and, on CPUs, what a product with a single row costs.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from plugins.kernels.matmul import weights

# Bytes of decoded weights at a time: a core's share of L2 on CPUs; elsewhere large enough to keep the device busy.
CPU_BAND_NBYTES = 1 << 20
BAND_NBYTES = 64 << 20


def matmul(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """See the op's docstring."""
    x = jnp.asarray(x)
    lead, n_in = x.shape[:-1], x.shape[-1]
    y = product(x.reshape(-1, n_in), w)
    if bias is not None:
        y = y + jnp.asarray(bias).astype(jnp.float32)[None]
    return y.astype(x.dtype if out_dtype is None else out_dtype).reshape(*lead, w.shape[0])


def product(x: Any, w: Any) -> Any:
    """float32 `[N, out]`: `x` `[N, in]` times an array or QTensor `[out, in]`, transposed."""

    def on(contract: Callable[[Any, Any], Any], nbytes: int) -> Callable[[Any, Any], Any]:
        return lambda x, w: banded(x, w, contract, nbytes)

    return lax.platform_dependent(x, w, cpu=on(contract_on_cpu, CPU_BAND_NBYTES), default=on(contract, BAND_NBYTES))


def contract(x: Any, w: Any) -> Any:
    """float32 `[N, out]` of arrays of one dtype, with full products for float32."""
    return lax.dot_general(
        x, w, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def contract_on_cpu(x: Any, w: Any) -> Any:
    """The same. XLA's CPU backend has bfloat16 kernels for two rows and more; for a single row it widens the whole
    matrix first, some fifteen times slower: so a single row gets company."""
    if x.dtype != jnp.float32 and x.shape[0] == 1:
        return contract(jnp.concatenate([x, x]), w)[:1]
    return contract(x, w)


def banded(x: Any, w: Any, contract: Callable[[Any, Any], Any], nbytes: int) -> Any:
    """`contract` over bands of rows whose decoded form has about `nbytes`; one band where nothing is to be decoded."""
    n_out, n_in = w.shape
    if not weights.needs_decoding(w, x.dtype):
        return contract(x, w)
    grain = weights.row_grain(w) or 1
    rows = max(1, nbytes // (max(1, n_in) * x.dtype.itemsize * grain)) * grain
    if rows >= n_out:
        return contract(x, weights.decoded(w, x.dtype))
    whole = n_out // rows * rows

    def one(start: Any) -> Any:
        return contract(x, weights.decoded(weights.band(w, start, rows), x.dtype))

    y = lax.map(one, jnp.arange(0, whole, rows))  # [bands, N, rows]
    y = jnp.moveaxis(y, 0, 1).reshape(x.shape[0], whole)
    if whole < n_out:
        rest = contract(x, weights.decoded(weights.band(w, whole, n_out - whole), x.dtype))
        y = jnp.concatenate([y, rest], axis=1)
    return y
