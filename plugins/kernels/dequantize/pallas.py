"""dequantize as a Pallas kernel, for the MX formats and NVFP4: bytes and scales are read once, and values written.

Real scales come as float32 factors, one for each block, which XLA makes; products are in integers, as the host's bits
are, subnormals too.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pipeline.tensors.pytree  # noqa: F401
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.jax_float import bits_of, multiplied
from plugins.kernels.codecs.mx import E8M0_BIAS
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
        parts = groups.taken_apart([plane.astype(jnp.int32) for plane in groups.read(octets, groups.nbytes)])
        groups.write(out, patterns_of(parts, factors, scheme, itemsize, device))

    (found,) = device.call(
        kernel, [(groups.shape(groups.values), PATTERNS[itemsize])],
        [groups.laid(codes, groups.nbytes), groups.laid(scales, 0)], grid=groups.grid,
        in_specs=[groups.spec(groups.nbytes), groups.spec(0)], out_specs=[groups.spec(groups.values)],
    )  # fmt: skip
    return (groups.flat(found, (-1,)),)


def patterns_of(codes: list[Any], factors: Any, scheme: Scheme, itemsize: int, device: Device) -> list[Any]:
    """Inside a kernel: bits of bfloat16 or float32 values of int32 planes of codes, under their blocks' E8M0 scales or
    float32 factors.

    Whether a value is subnormal, NaN or, in bfloat16, infinite depends on its block's E8M0 scale. Where no block that a
    point of the grid has is like that, as is so of weights, two or three operations for each value do.
    """

    def any_value() -> list[Any]:
        return [_pattern_of(plane, factors, scheme, itemsize) for plane in codes]

    def ordinary() -> list[Any]:
        if scheme.element == "e2m1" and itemsize == 2:
            return _pairs_of_e2m1(codes, scales)
        power = lax.bitcast_convert_type(scales << 23, jnp.float32)
        found = [bits_of(values(plane, scheme.element) * power) for plane in codes]
        found = [f >> 16 if itemsize == 2 else f for f in found]  # has all bits that a value has
        return [f.astype(PATTERNS[itemsize]) for f in found]

    if scheme.scale != "e8m0" or device.overhangs or scheme.element in ("e4m3", "e5m2"):  # the last two have NaN
        return any_value()
    scales = factors.astype(jnp.int32)
    low, high = _ordinary_scales(scheme.element)
    strange = ((scales < low) | (scales > high)).astype(jnp.int32)
    return list(lax.cond(jnp.max(strange.reshape(-1)) == 0, ordinary, any_value))


def _ordinary_scales(name: str) -> tuple[int, int]:
    """Bytes of E8M0 scales, from and to, under which no element is subnormal or infinite."""
    magnitudes = np.abs(element(name).values)
    least, most = magnitudes[magnitudes > 0].min(), magnitudes.max()
    return E8M0_BIAS - 126 - math.floor(math.log2(least)), E8M0_BIAS + 127 - math.floor(math.log2(most))


def _pairs_of_e2m1(codes: list[Any], scales: Any) -> list[Any]:
    """Bits of bfloat16 under ordinary scales, of two planes at once, in halves of 32-bit integers.

    But for 0 and the subnormal 0.5, a magnitude of E2M1 is a bfloat16 with fewer bits, of another bias.
    """
    both = codes[0] | codes[1] << 16
    magnitude = both & 0x00070007
    some, normal = ((magnitude + more >> 3) & 0x00010001 for more in (0x00070007, 0x00060006))  # at least 1, at least 2
    word = some * (scales - 1 << 7) + (magnitude - some + normal << 6) | both << 12 & np.int32(-0x7FFF8000)
    return [word.astype(jnp.int16), (word >> 16).astype(jnp.int16)]


def _pattern_of(codes: Any, factors: Any, scheme: Scheme, itemsize: int) -> Any:
    v = values(codes, scheme.element)
    if scheme.scale == "e8m0":
        y = traced.under_power(v, *traced.powers(factors.astype(jnp.int32)), name=scheme.element)
    else:
        y = multiplied(v, factors)
    # A product that is NaN has a pattern of the device's own, on NVIDIA's GPUs 0x7FFFFFFF: the op's is that of a quiet
    # NaN without payload, with the sign of a code that is NaN.
    sign = jnp.where(jnp.isnan(v), bits_of(v) & np.uint32(0x80000000), np.uint32(0))
    bits = jnp.where(jnp.isnan(y), np.uint32(0x7FC00000) | sign, bits_of(y))
    if itemsize == 2:
        bits = traced.bfloat16_bits(lax.bitcast_convert_type(bits, jnp.float32))
    return bits.astype(PATTERNS[itemsize])
