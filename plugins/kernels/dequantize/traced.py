"""Decoding of packed weights inside a traced JAX program, for every scheme: what models, matmul and moe call.

    decode(q, dtype) -> array [..., n] of float32 or bfloat16

The op's backends take NumPy arrays and answer with them; this takes whatever a jitted function holds and is fused into
it. Values are those of the op, bit for bit, with two exceptions, both below 2^-126, the smallest normal number: under
real scales (anything but E8M0) a device that flushes subnormals, as XLA does on CPUs, takes such factors and such
products for zero, unless `exact` is asked for. Under E8M0 scales subnormals come out right everywhere: they are
assembled from integers. A NaN is a NaN; its payload is the device's own.

Elements are computed from their bits, not looked up: gathers cost more than a handful of shifts, on CPUs and on GPUs.
Codes are taken out of their bytes by shifting each byte (or group of three) by all its places at once, which XLA fuses
and vectorizes, where stacking low and high halves makes it write both first.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import DYNAMIC8_BLOCK, Scheme
from plugins.facts.codebooks import dynamic8
from plugins.kernels.codecs.elements import FLOATS, element
from plugins.kernels.codecs.jax_float import added, bits_of, divided, float_of, multiplied
from plugins.kernels.codecs.mx import E8M0_BIAS, E8M0_NAN
from plugins.kernels.dequantize import structs
from plugins.kernels.gradients import given, wanted

_DTYPES = {"float32": "F32", "bfloat16": "BF16"}
_SMALLEST = np.float32(2.0**-126)


def decode(q: Any, dtype: Any = jnp.bfloat16, exact: bool = False) -> Any:
    """The values of `q`, a QTensor of traced or concrete arrays, as `[*q.shape]` of `dtype`.

    Args:
        q: of any scheme; its components may have leading batch axes.
        dtype: jnp.float32 or jnp.bfloat16, the former rounded to nearest even. Past the range: the IEEE infinity.
        exact: below 2^-126 too, under real scales, by integer arithmetic, which takes longer.

    Raises:
        ConfigError: another dtype. (float16 would need an error for values past its range, which a traced program
            cannot raise.)
        Unsupported: a gradient with respect to `q` is asked for; see `plugins/kernels/gradients.py`.
    """
    name = jnp.dtype(dtype).name
    if name not in _DTYPES:
        raise ConfigError(f"decode gives {' or '.join(_DTYPES)} inside jit, not {name}; cast what it gives")
    return _decode(q, name, exact)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _decode(q: Any, name: str, exact: bool) -> Any:
    if q.scheme.is_struct:
        y = structs.decode(q.scheme.element, q.codes)
    else:
        y = scaled(unpacked(q.codes, q.scheme.element_bits), q, exact)
    return y if name == "float32" else to_bfloat16(y)


def _forward(q: Any, name: str, exact: bool) -> tuple[Any, None]:
    wanted(q)
    return _decode(given(q), name, exact), None


def _backward(name: str, exact: bool, kept: None, dy: Any) -> tuple[None]:
    return (None,)


_decode.defvjp(_forward, _backward, symbolic_zeros=True)


def unpacked(packed: Any, bits: int) -> Any:
    """uint8 codes `[..., n]` of the little-endian bit stream `[..., n * bits / 8]`."""
    *lead, nbytes = packed.shape
    if bits == 8:
        return packed
    if 8 % bits == 0:
        places = _along_last(np.arange(0, 8, bits, dtype=np.uint8), packed.ndim + 1)
        return ((packed[..., None] >> places) & np.uint8((1 << bits) - 1)).reshape(*lead, nbytes * 8 // bits)
    # 3 and 6 bits fill bytes by threes. Halves of 12 bits are spread over the bytes of a word, and those are the codes;
    # written this way, of what was tried, XLA's loops on CPUs are the quickest (several times).
    if bits == 6:
        a, b, c = (packed.reshape(*lead, nbytes // 3, 3).astype(jnp.uint16)[..., k] for k in range(3))
        half = jnp.stack([a | (b & np.uint16(15)) << 8, b >> 4 | c << 4], axis=-1)
        word = (half & np.uint16(0x3F)) | (half & np.uint16(0xFC0)) << 2
    else:
        a, b, c = (packed.reshape(*lead, nbytes // 3, 3).astype(jnp.uint32)[..., k] for k in range(3))
        three = a | b << 8 | c << 16
        half = jnp.stack([three & np.uint32(0xFFF), three >> 12], axis=-1)
        word = half & np.uint32(7)
        for k in range(1, 4):
            word |= (half & np.uint32(7 << 3 * k)) << np.uint32(5 * k)
    return jax.lax.bitcast_convert_type(word, jnp.uint8).reshape(*lead, nbytes * 8 // bits)


def _along_last(places: Any, rank: int) -> Any:
    return places.reshape(*(1,) * (rank - 1), -1)


def values(codes: Any, name: str) -> Any:
    """float32 of unpacked codes of element `name`; none of them is subnormal."""
    e = element(name)
    if e.family == "table":
        return jnp.take(jnp.asarray(e.values), codes.astype(jnp.int32), mode="clip")
    if e.family == "unsigned":
        return codes.astype(jnp.float32)
    if e.family == "fixed":
        up = 8 - e.bits
        whole = (codes << np.uint8(up)).astype(jnp.int8) >> np.int8(up) if up else codes.astype(jnp.int8)
        found = whole.astype(jnp.float32)
        return found if e.unit == 1 else found * np.float32(e.unit)
    return _float_values(codes, name)


def _float_values(codes: Any, name: str) -> Any:
    """A small float is a float32 with fewer bits, but for the subnormals, which are integers of one unit."""
    mantissa, bias, top = FLOATS[name]
    bits = element(name).bits
    wide = codes.astype(jnp.uint32)
    magnitude = wide & np.uint32((1 << (bits - 1)) - 1)
    sign = (wide >> np.uint32(bits - 1)) << np.uint32(31)
    normal = (magnitude << np.uint32(23 - mantissa)) + np.uint32((127 - bias) << 23)
    unit = np.float32(2.0 ** (1 - bias - mantissa))
    if mantissa == 1:
        small = magnitude * bits_constant(unit)  # 0 or one unit: no conversion
    else:
        small = bits_of(magnitude.astype(jnp.int32).astype(jnp.float32) * unit)
    found = jnp.where(magnitude < np.uint32(1 << mantissa), small, normal)
    if name == "e5m2":  # OFP8, section 5: infinity and NaN as IEEE 754 has them
        found = jnp.where(magnitude > np.uint32(top), magnitude << np.uint32(21) | np.uint32(0x7F800000), found)
    elif top < (1 << (bits - 1)) - 1:
        found = jnp.where(magnitude > np.uint32(top), np.uint32(0x7FC00000), found)
    return float_of(found | sign)


def bits_constant(x: Any) -> Any:
    return np.float32(x).view(np.uint32)


def scaled(codes: Any, q: Any, exact: bool = False) -> Any:
    """float32 `[..., n]` of unpacked codes under the scales of their blocks in `q`, whose own codes are left alone."""
    scheme: Scheme = q.scheme
    v = values(codes, scheme.element)
    if scheme.scale == "e8m0":
        return _under_powers(v, q.scales, scheme)
    zeros = None if q.zeros is None else q.zeros.astype(jnp.float32)
    if scheme.zero == "int":
        v = spread(v, (zeros,), scheme, lambda v, zero: v - zero)
    total = factors(q)
    if exact:
        v = spread(v, (total,), scheme, multiplied)
        return spread(v, (zeros,), scheme, added) if scheme.zero == "min_f16" else v
    if scheme.zero != "min_f16":
        return spread(v, (total,), scheme, lambda v, f: v * f)
    # Both halves of a factor give exact products with elements of 8 bits: a fused multiply-add has nothing to change.
    high = float_of(bits_of(total) & np.uint32(0xFFFFF000))
    low = jnp.where(jnp.isinf(total), 0, total - high)
    return spread(v, (high, low, zeros), scheme, lambda v, a, b, least: (v * a + v * b) + least)


def factors(q: Any) -> Any:
    """float32 factors of all blocks, `[..., down, across]`; not of E8M0 scales."""
    scheme: Scheme = q.scheme
    if scheme.second == "dynamic8":
        flat = jnp.take(jnp.asarray(dynamic8()), q.scales.astype(jnp.int32).reshape(-1), mode="clip")
        largest = jnp.repeat(q.second[:-1], DYNAMIC8_BLOCK)[: flat.size]
        return added(multiplied(flat, largest), q.second[-1]).reshape(q.scales.shape)
    scales = q.scales
    if scheme.scale == "bf16":  # in integers, as the conversion may flush
        bits = jax.lax.bitcast_convert_type(jnp.asarray(scales), jnp.uint16)
        scales = float_of(bits.astype(jnp.uint32) << np.uint32(16))
    scales = scales.astype(jnp.float32)
    if scheme.second == "f32":
        return multiplied(scales, q.second)
    return divided(scales, q.second) if scheme.second == "inverse_f32" else scales


def _under_powers(v: Any, scales: Any, scheme: Scheme) -> Any:
    """v · 2^(scale - 127), exact or rounded once, subnormal results included; 0xFF is NaN."""
    return spread(v, powers(scales.astype(jnp.int32)), scheme, partial(under_power, name=scheme.element))


def powers(byte: Any) -> tuple[Any, Any, Any]:
    """What `under_power` multiplies by, of int32 E8M0 scales."""
    power = float_of((jnp.maximum(byte, 1) << 23).astype(jnp.uint32))
    half = jnp.where(byte == 0, np.float32(0.5), np.float32(1))  # 2^-127 itself would be subnormal
    power = jnp.where(byte == E8M0_NAN, np.float32(np.nan), power)
    # A subnormal's pattern is its number of units of 2^-149. Factors for blocks that hold none are of no account.
    units = float_of((jnp.minimum(byte - E8M0_BIAS + 149 + 127, 254) << 23).astype(jnp.uint32))
    return half, power, units


def under_power(v: Any, half: Any, power: Any, units: Any, name: str) -> Any:
    """float32 of values `v` of element `name` under a power of two, as `powers` has it."""
    large = (v * half) * power
    pattern = bits_of(v)
    whole = jnp.abs(v) * units
    if name == "nf4":  # the only elements with more bits than 2^-149 can hold
        whole = jnp.round(whole)
    small = float_of(whole.astype(jnp.int32).astype(jnp.uint32) | (pattern & np.uint32(0x80000000)))
    return jnp.where(jnp.abs(large) < _SMALLEST, small, large)


def spread(v: Any, shared: tuple[Any, ...], scheme: Scheme, apply: Any) -> Any:
    """`apply(v, *shared)` with arrays `[..., down, across]` spread over the blocks of `v` `[..., rows, n]`."""
    *lead, n = v.shape
    across = shared[0].shape[-1]
    if scheme.block_rows != 1 and lead:
        rows = lead[-1]
        if scheme.block_rows == 0 or rows <= scheme.block_rows:  # one band
            return _with_columns(v, shared, across, apply)
        if rows % scheme.block_rows == 0:
            bands = v.reshape(*lead[:-1], rows // scheme.block_rows, scheme.block_rows, n)
            found = _with_columns(bands, tuple(s[..., None, :] for s in shared), across, apply)
            return found.reshape(v.shape)
        shared = tuple(jnp.repeat(s, scheme.block_rows, axis=-2)[..., :rows, :] for s in shared)
    return _with_columns(v, shared, across, apply)


def _with_columns(v: Any, shared: tuple[Any, ...], across: int, apply: Any) -> Any:
    blocks = v.reshape(*v.shape[:-1], across, v.shape[-1] // across if across else 0)
    return apply(blocks, *(s[..., None] for s in shared)).reshape(v.shape)


def to_bfloat16(x: Any) -> Any:
    """float32 to nearest even bfloat16, in integers: conversions flush subnormals on some devices, and are slower."""
    return jax.lax.bitcast_convert_type(bfloat16_bits(x).astype(jnp.uint16), jnp.bfloat16)


def bfloat16_bits(x: Any) -> Any:
    """uint32 patterns of the same."""
    bits = bits_of(x)
    kept = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> 16
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return jnp.where(nan, (bits >> 16) | np.uint32(0x40), kept)
