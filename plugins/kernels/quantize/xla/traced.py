"""quantize inside a traced JAX program: codes and what their blocks share, of arrays whose values nobody knows yet.

The host's backend leaves scales, of which there are few, to NumPy. Here they are jnp as well, by `jax_float`: float32
operations in integers, one rounding each, in the order of `codecs/scales.py`, so that the bits are the host's. What
makes the host raise (a value that is not finite, a scale past its encoding) makes a block NaN: programs cannot raise.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import FLOATS, element
from plugins.kernels.codecs.jax_float import added, bits_of, divided, float_of, is_zero, multiplied, parts, subtracted
from plugins.kernels.codecs.mx import E8M0_BIAS, E8M0_MAX, E8M0_NAN
from plugins.kernels.codecs.scales import SCALE_MAX, threshold
from plugins.kernels.dequantize.traced import to_bfloat16, values
from plugins.kernels.quantize.recipe import Recipe
from plugins.kernels.quantize.xla.codes import codes_of, ends_of, shifts

_INFINITY = 0x7F800000
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_F16 = (10, 15, 0x7BFF)  # mantissa bits, bias, largest finite magnitude (IEEE 754 binary16)


@dataclass(frozen=True, slots=True)
class Coded:
    """A quantized array that is not packed.

    Attributes:
        codes: uint8 `[..., n]`.
        shared: scales, zeros and second as a QTensor has them, without codes.
        broken: bool of the shape of the scales: blocks that have no values.
    """

    codes: Any
    shared: QTensor
    broken: Any


def coded(x: Any, scheme: Scheme, recipe: Recipe, scale: float | None = None) -> Coded:
    """Codes of float32 `[..., n]`, which has elements, under one level of scales or a second of float32 ones.

    Args:
        scale: of all blocks, or the second-level one, instead of what `x` would have; see `quantize_dequantize`.
    """
    *lead, n = x.shape
    rows, many = (lead[-1] if lead else 1), math.prod(lead[:-1])
    matrices = bits_of(x).reshape(many, rows, n)
    height, across = scheme.block_rows or rows, scheme.blocks(rows, n)[1]
    whole = None
    if scheme.second is not None or (scheme.block_rows, scheme.block_elems) == (0, 0):
        whole = ends_of(matrices.reshape(many, 1, 1, -1), "minmax")
    second = None if scheme.second is None else second_scale(whole, scheme)
    if second is not None and scale is not None:
        second = jnp.full_like(second, scale)
    how = recipe  # under a given scale values are divided by that, and all codes there are are used
    if scale is not None and second is None:
        how = replace(recipe, scale_rule="half_range", quotient="divide")
    codes, scales, zeros, broken = [], [], [], []
    full = rows // height * height
    for top, bottom in ((0, full), (full, rows)):  # the last band may be lower than a block
        if top == bottom:
            continue
        r, count = min(height, bottom - top), -(-(bottom - top) // height)
        band = matrices[:, top:bottom].reshape(many * count, r, across, n // across)
        if whole is not None and scheme.second is None:
            ends = whole
        else:
            ends = ends_of(band, "first" if scheme.zero == "min_f16" else recipe.scale_rule)
        of = None if second is None else jnp.repeat(second, count, axis=0)
        known = scale if second is None else None
        share = shared_by(ends, scheme, recipe, of) if known is None else _given(ends, known)
        bad = share.broken
        wide = None if scheme.zero != "int" else share.zeros.astype(jnp.float32)
        found = codes_of(band, share.by, share.minimum, wide, bad, scheme, how)
        codes.append(found.reshape(many, bottom - top, n))
        scales.append(share.stored.reshape(many, count, across))
        zeros.append(None if share.zeros is None else share.zeros.reshape(many, count, across))
        broken.append(bad.reshape(many, count, across))
    shapes = scheme.components(x.shape)
    joined = {"codes": codes, "scales": scales, "broken": broken} | ({"zeros": zeros} if scheme.zero else {})
    j = {name: jnp.concatenate(bands, axis=1) for name, bands in joined.items()}
    if scheme.scale == "e4m3":
        j["scales"] = jax.lax.bitcast_convert_type(j["scales"], jnp.float8_e4m3fn)
    shared = QTensor(
        codes=None,
        scales=j["scales"].reshape(shapes["scales"]),
        scheme=scheme,
        zeros=j["zeros"].reshape(shapes["zeros"]) if scheme.zero else None,
        second=None if second is None else second.reshape(shapes["second"]),
    )
    return Coded(j["codes"].reshape(x.shape), shared, j["broken"].reshape(shapes["scales"]))


@dataclass(frozen=True, slots=True)
class Share:
    """Of every block `[down, 1, across, 1]`: what is stored, E4M3 as uint8, and what `codes_of` wants to know."""

    stored: Any
    by: Any
    broken: Any
    zeros: Any = None
    minimum: Any = None


def _largest(ends: Any) -> Any:
    """Patterns of the largest magnitudes, NaN above all."""
    return jnp.maximum(ends[0] & _MAGNITUDE, ends[1] & _MAGNITUDE)


def shared_by(ends: Any, scheme: Scheme, recipe: Recipe, second: Any = None) -> Share:
    """Of blocks, of patterns of their ends as `ends_of` gives them; `second` is that of their matrices."""
    return _powers(ends, scheme, recipe) if scheme.scale == "e8m0" else _real(ends, scheme, recipe, second)


def _powers(ends: Any, scheme: Scheme, recipe: Recipe) -> Share:
    e, amax = element(scheme.element), _largest(ends)
    significand, exponent = parts(amax)
    # As `codecs.scales.e8m0_bytes`: what, added to a fraction, carries exactly when the rule rounds up.
    carry = round((2 - threshold(scheme.element, recipe.scale_rule)) * (1 << 23)) - (recipe.scale_rule != "even")
    up = ((significand & 0x7FFFFF) + max(carry, 0)) >> 23
    byte = jnp.clip(exponent + 23 + E8M0_BIAS + up.astype(jnp.int32) - e.emax, 0, E8M0_MAX)
    byte = jnp.where(significand == 0, 0, byte)
    used = byte
    if recipe.tiny == "torchao":
        used = jnp.where(byte == 0, E8M0_BIAS if recipe.scale_rule == "rceil" else 1, byte)
    by = E8M0_BIAS - used  # the exponent of the reciprocal
    if not shifts(scheme, recipe):
        pattern = jnp.where(by >= -126, (by + 127) << 23, 1 << 22)  # 2^-127 is subnormal
        by = float_of(pattern.astype(jnp.uint32))
    broken = amax >= _INFINITY
    return Share(jnp.where(broken, E8M0_NAN, byte).astype(jnp.uint8), by, broken)


def _given(ends: Any, scale: float) -> Share:
    """A scale that was made before."""
    all_of_them = jnp.full(ends[0].shape, scale, jnp.float32)
    return Share(all_of_them, all_of_them, _largest(ends) >= _INFINITY)


def second_scale(ends: Any, scheme: Scheme) -> Any:
    """The second-level scale of matrices, of patterns of their ends; 1 where it would be 0 or infinite."""
    top = jnp.float32(SCALE_MAX[scheme.scale] * element(scheme.element).max)
    amax = float_of(_largest(ends))
    found = divided(top, amax) if scheme.second == "inverse_f32" else divided(amax, top)
    return jnp.where(is_zero(found) | jnp.isinf(found), jnp.float32(1), found)


def _real(ends: Any, scheme: Scheme, recipe: Recipe, second: Any) -> Share:
    """As `_real` of quantize/numpy/scale.py, operation by operation."""
    e, amax = element(scheme.element), _largest(ends)
    low, high = (float_of(v) for v in ends[:2])
    if scheme.zero == "int":  # zero has a code of its own
        low = jnp.where((ends[0] >> 31 == 1) | (amax >= _INFINITY), low, jnp.float32(0))
        high = jnp.where((ends[1] >> 31 == 0) | (amax >= _INFINITY), high, jnp.float32(0))
    raw = _unrounded(low, high, amax, ends, scheme, recipe.scale_rule)
    if second is not None:
        raw = multiplied(raw, second) if scheme.second == "inverse_f32" else divided(raw, second)
    stored, value = _stored(raw, scheme, recipe)
    total = value
    if second is not None:
        total = divided(value, second) if scheme.second == "inverse_f32" else multiplied(value, second)
    used = raw if recipe.codes_from == "unrounded" else total
    nothing = is_zero(used)
    if recipe.quotient == "reciprocal":
        one = jnp.float32(1)
        inverse = one if second is None else second if scheme.second == "inverse_f32" else divided(one, second)
        by = jnp.where(nothing, jnp.float32(0), divided(inverse, used if second is None else value))
    else:
        by = jnp.where(nothing, jnp.float32(np.inf), used)
    broken = (amax >= _INFINITY) | ~jnp.isfinite(value)
    if second is not None:
        broken |= ~jnp.isfinite(second)
    if scheme.zero == "min_f16":
        code = _rounded(low, *_F16, 16)
        sixteen = jax.lax.bitcast_convert_type(code.astype(jnp.uint16), jnp.float16)
        minimum = low if recipe.codes_from == "unrounded" else sixteen.astype(jnp.float32)
        return Share(stored, by, broken | ~jnp.isfinite(sixteen), sixteen, minimum)
    if scheme.zero == "int":
        return Share(stored, by, broken, _zero_points(low, raw, value, e, recipe))
    return Share(stored, by, broken)


def _unrounded(low: Any, high: Any, amax: Any, ends: Any, scheme: Scheme, rule: str) -> Any:
    e = element(scheme.element)
    if rule == "amax":
        return divided(float_of(amax), jnp.float32(e.max))
    if rule == "half_range":
        least = float(np.nanmin(e.values[np.isfinite(e.values)]))
        return divided(float_of(amax), jnp.float32((e.max - least) / 2))
    if rule == "signed":
        return divided(float_of(ends[2]), jnp.float32(e.least * e.unit))
    return divided(added(subtracted(high, low), jnp.float32(0)), jnp.float32(e.most))


def _stored(raw: Any, scheme: Scheme, recipe: Recipe) -> tuple[Any, Any]:
    """(as stored, float32): rounded to nearest even in the encoding; E4M3, as uint8, saturates, NaN stays NaN."""
    if recipe.least_scale:
        least = jnp.float32(recipe.least_scale)
        bits = bits_of(raw)
        raw = jnp.where((bits >> 31 == 1) | (bits < bits_of(least)), least, raw)
    if scheme.scale == "e4m3":
        code = _rounded(raw, *FLOATS["e4m3"], 8)
        bits = bits_of(raw)
        largest = FLOATS["e4m3"][2]
        code = jnp.where(code & 0x7F > largest, jnp.where(bits >> 31 == 1, code, largest), code)
        code = jnp.where(bits & _MAGNITUDE > _INFINITY, 0x7F, code)
        if recipe.zero_scale:
            instead = int(np.asarray(recipe.zero_scale, np.float32).astype(jnp.float8_e4m3fn).view(np.uint8))
            code = jnp.where(code & 0x7F == 0, instead, code)
        octets = code.astype(jnp.uint8)
        return octets, values(octets, "e4m3")
    stored: Any
    if scheme.scale == "f16":
        code = _rounded(raw, *_F16, 16)
        stored = jax.lax.bitcast_convert_type(code.astype(jnp.uint16), jnp.float16)
        value = stored.astype(jnp.float32)
    elif scheme.scale == "bf16":
        stored = to_bfloat16(raw)
        bits = jax.lax.bitcast_convert_type(stored, jnp.uint16).astype(jnp.uint32)
        value = float_of(bits << np.uint32(16))
    else:
        stored = value = raw
    if recipe.zero_scale:
        nothing, least = is_zero(value), jnp.asarray(recipe.zero_scale, stored.dtype)
        stored, value = jnp.where(nothing, least, stored), jnp.where(nothing, least.astype(jnp.float32), value)
    return stored, value


def _rounded(v: Any, mantissa: int, bias: int, top: int, width: int) -> Any:
    """The code of `width` bits of float32 `v` in a small float, to nearest even; past `top` one more, NaN two more."""
    bits = bits_of(v)
    significand, exponent = parts(bits)
    significand, exponent = significand.astype(jnp.int32), exponent + 23
    least = 1 - bias
    binade = jnp.maximum(exponent, least)
    drop = jnp.clip(binade - mantissa - exponent + 23, 1, 30)
    whole, rest, half = significand >> drop, significand & ((1 << drop) - 1), 1 << (drop - 1)
    whole += ((rest > half) | ((rest == half) & (whole % 2 == 1))).astype(jnp.int32)
    code = jnp.where(significand == 0, 0, whole + ((jnp.minimum(binade, 128) - least) << mantissa))
    code = jnp.minimum(code, top + 1)
    code = jnp.where(bits & _MAGNITUDE > _INFINITY, top + 2, jnp.where(bits & _MAGNITUDE == _INFINITY, top + 1, code))
    return code | ((bits >> 31).astype(jnp.int32) << (width - 1))


def _zero_points(low: Any, raw: Any, value: Any, e: Any, recipe: Recipe) -> Any:
    half = jnp.float32(1 << (e.bits - 1))  # compressed-tensors' zero points are those of signed codes
    nothing = is_zero(value)
    point = jnp.where(nothing, jnp.float32(0), subtracted(-half, divided(low, value)))
    point = jnp.clip(jnp.round(added(point, half)), 0, e.most)
    point = jnp.where(jnp.isnan(point) | nothing, jnp.float32(0), point)
    if recipe.zero_block == "middle":
        below = (bits_of(low) >> 31 == 1) & ~is_zero(low)
        point = jnp.where(is_zero(raw), jnp.where(below, jnp.float32(e.most), half), point)
    return point.astype(jnp.uint8)
