"""Packed weights as the CPU backend multiplies them: decoded, but not put back in order.

A byte of 4-bit codes holds two neighbours. Putting them next to each other again takes XLA's CPU backend longer than
multiplying them. The low halves of all bytes are one matrix and the high halves another, each computed from bytes in
place, and x has the same two halves: every second element. So x · wᵀ is the sum of two products. 2-bit codes make four
planes, 8-bit codes one.

A scale that a whole row shares is left for after the product.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.codecs.jax_float import bits_of, float_of
from plugins.kernels.codecs.mx import E8M0_NAN
from plugins.kernels.dequantize.traced import to_bfloat16, values


def count(q: Any) -> int | None:
    """How many planes a QTensor has; None when its codes straddle bytes, or its blocks do, or are structs."""
    if q.scheme.is_struct:
        return None
    bits = q.scheme.element_bits
    return 8 // bits if 8 % bits == 0 and q.scheme.block_elems * bits % 8 == 0 else None


def planes(q: QTensor, dtype: Any) -> tuple[list[Any], Any]:
    """The planes of a matrix, `[rows, n / count]` of `dtype` each; and float32 `[rows]` to multiply with afterwards.

    Plane p holds columns p, p + count, … There is no factor (None) where planes are scaled already. Values are
    those of `dequantize`, except that those below 2^-126 count as zero, as they do in XLA's CPU arithmetic anyway.

    Args:
        q: `[rows, n]`, its scales not coded across other matrices (`weights.band` sees to that).
        dtype: jnp.float32 or jnp.bfloat16, rounded to nearest even.
    """
    scheme, bits = q.scheme, q.scheme.element_bits
    rows, across = q.codes.shape[0], q.scales.shape[-1]
    codes = q.codes.reshape(rows, across, -1)
    many = 8 // bits
    parts = [(codes >> np.uint8(p * bits)) & np.uint8((1 << bits) - 1) if many > 1 else codes for p in range(many)]
    after = None
    if scheme.scale == "e8m0":
        scales = by_row(q.scales, scheme, rows)
        assemble = _e2m1 if scheme.element == "e2m1" else _under_powers
        found = [assemble(part, scales, scheme.element, dtype) for part in parts]
    elif scheme.block_elems == 0 and scheme.zero is None:
        after = by_row(block_factors(q), scheme, rows)[:, 0]
        found = [_narrowed(values(part, scheme.element), dtype, exact=scheme.element != "nf4") for part in parts]
    else:
        total = by_row(block_factors(q), scheme, rows)[:, :, None]
        zero = None if q.zeros is None else by_row(q.zeros, scheme, rows).astype(jnp.float32)[:, :, None]
        found = []
        for part in parts:
            v = values(part, scheme.element)
            v = (v - zero if scheme.zero == "int" else v) * total
            found.append(_narrowed(v + zero if scheme.zero == "min_f16" else v, dtype, exact=False))
    return [part.reshape(rows, -1) for part in found], after


def block_factors(q: QTensor) -> Any:
    """float32 factors of all blocks. XLA fuses them into every element they are for, so they have to be cheap: its own
    conversion of E4M3 scales makes NVFP4 three times slower."""
    scales = q.scales
    if q.scheme.scale == "e4m3":
        scales = values(lax.bitcast_convert_type(scales, jnp.uint8), "e4m3")
    scales = scales.astype(jnp.float32)
    if q.scheme.second == "f32":
        return scales * q.second
    return scales / q.second if q.scheme.second == "inverse_f32" else scales


def by_row(scales: Any, scheme: Any, rows: int) -> Any:
    """`[rows, across]` of what rows share by `block_rows`."""
    if scheme.block_rows == 1:
        return scales
    return jnp.repeat(scales, scheme.block_rows or rows, axis=0)[:rows]


def _narrowed(v: Any, dtype: Any, exact: bool) -> Any:
    """float32 as `dtype`; `exact` says that nothing has to be rounded."""
    if dtype == jnp.float32:
        return v
    if not exact:
        return to_bfloat16(v)
    return lax.bitcast_convert_type((bits_of(v) >> np.uint32(16)).astype(jnp.uint16), jnp.bfloat16)


def _under_powers(codes: Any, scales: Any, name: str, dtype: Any) -> Any:
    """Any element under E8M0 scales: exact in bfloat16 but for NF4, whose values have more bits."""
    power = jnp.where(scales == E8M0_NAN, np.uint32(0x7FC00000), jnp.maximum(scales, 1).astype(jnp.uint32) << 23)
    half = jnp.where(scales == 0, np.float32(0.5), np.float32(1))  # 2^-127 itself would be subnormal
    v = values(codes, name) * half[:, :, None] * float_of(power)[:, :, None]
    return _narrowed(v, dtype, exact=name != "nf4")


def _e2m1(codes: Any, scales: Any, name: str, dtype: Any) -> Any:
    """E2M1 under E8M0, in integers of the width of `dtype`: a scale is a number of binades to add to the exponent.

    Code s·ee·m (OCP MX v1.0, section 5.3.3) is the exponent and first fraction bit of a float as it stands; only 0 and
    0.5, code 1, are not.
    """
    wide, fraction, kind = (np.uint16, 7, jnp.bfloat16) if dtype == jnp.bfloat16 else (np.uint32, 23, jnp.float32)
    infinity = wide(0xFF << fraction)
    scale, code = scales.astype(wide), codes.astype(wide)
    half = (jnp.maximum(scale, wide(1)) - wide(1)) << wide(fraction)  # 0.5 · 2^(scale - 127)
    base = (scale - wide(1)) << wide(fraction)  # wraps for scale 0, and back when the code's exponent is added
    nan = jnp.where(scale == E8M0_NAN, wide(infinity | 1 << (fraction - 1)), wide(0))
    magnitude = code & wide(7)
    found = base[:, :, None] + (magnitude << wide(fraction - 1))
    found = jnp.where(magnitude == 1, half[:, :, None], found)
    found = jnp.where(magnitude == 0, wide(0), jnp.minimum(found, infinity))
    found = found | nan[:, :, None] | (code & wide(8)) << wide(fraction + 5)
    return lax.bitcast_convert_type(found, kind)
