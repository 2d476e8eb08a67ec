"""dequantize as a Pallas kernel, for the MX formats and NVFP4: bytes and scales are read once, and values written.

Real scales come as float32 factors, one for each block, which XLA makes; products are in integers, as the host's bits
are, subnormals too.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pipeline.tensors.pytree  # noqa: F401
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.jax_float import bits_of, multiplied
from plugins.kernels.dequantize import Overflow, check, traced
from plugins.kernels.dequantize.xla import DTYPES, PIECE
from plugins.kernels.pallas.decode import values
from plugins.kernels.pallas.groups import Groups
from plugins.kernels.pallas.launch import Device, everywhere
from plugins.kernels.pieces import dequantized

PATTERNS = {2: jnp.int16, 4: jnp.int32}  # bits of values of so many bytes


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    return dequantized(_dequantize, q, dtype, PIECE, overflow=overflow)


def _dequantize(q: Any, dtype: str, *, overflow: Overflow) -> Any:
    return np.asarray(_decoded(QTensor(scheme=q.scheme, **q.components), DTYPES[dtype]))


def decoded(q: Any, dtype: Any) -> Any:
    """The values of `q`, a QTensor on a device with elements, `[*q.shape]`, inside compiled programs too: bits are the
    op's.

    Args:
        dtype: jnp.float32 or jnp.bfloat16.
    """
    scales = jnp.asarray(q.scales) if q.scheme.scale == "e8m0" else traced.factors(q)
    (found,) = everywhere(_on, (q.scheme, jnp.dtype(dtype).itemsize), jnp.asarray(q.codes), scales)
    return lax.bitcast_convert_type(found, dtype).reshape(q.shape)


_decoded = jax.jit(decoded, static_argnums=1)


def _on(how: tuple[Scheme, int], device: Device, codes: Any, scales: Any) -> tuple[Any, ...]:
    scheme, itemsize = how
    groups = Groups(device, scheme.element_bits, scheme.block_elems, scales.size)

    def kernel(octets: Any, scales: Any, out: Any) -> None:
        factors = scales[...]
        parts = groups.taken_apart([octets[groups.at(k)].astype(jnp.int32) for k in range(groups.nbytes)])
        for p, part in enumerate(parts):
            out[groups.at(p)] = pattern_of(part, factors, scheme, itemsize)

    (found,) = device.call(
        kernel, [(groups.shape(groups.values), PATTERNS[itemsize])],
        [groups.laid(codes, groups.nbytes), groups.laid(scales, 0)], grid=groups.grid,
        in_specs=[groups.spec(groups.nbytes), groups.spec(0)], out_specs=[groups.spec(groups.values)],
    )  # fmt: skip
    return (groups.flat(found, (-1,)),)


def pattern_of(codes: Any, factors: Any, scheme: Scheme, itemsize: int) -> Any:
    """Inside a kernel: bits of bfloat16 or float32 values of int32 codes, under their blocks' E8M0 scales or float32
    factors."""
    v = values(codes, scheme.element)
    if scheme.scale == "e8m0":
        y = traced.under_power(v, *traced.powers(factors.astype(jnp.int32)), name=scheme.element)
    else:
        y = multiplied(v, factors)
    return (traced.bfloat16_bits(y) if itemsize == 2 else bits_of(y)).astype(PATTERNS[itemsize])
