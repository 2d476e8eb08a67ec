"""quantize for power-of-two scales as one XLA program, in integers.

XLA flushes subnormal floats on some devices, CPUs among them, and may reorder float arithmetic. A float32 is a sign, a
24-bit significand and an exponent; dividing by a power of two subtracts exponents, and rounding is a shift that looks
at what it drops. So nothing here depends on how a device treats floats.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import Unsupported, ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs import bits, scales
from plugins.kernels.codecs.blocks import floats
from plugins.kernels.codecs.elements import FLOATS, element
from plugins.kernels.elements import E8M0_BIAS, E8M0_MAX, E8M0_NAN
from plugins.kernels.quantize.recipe import Recipe, checked


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, place: Any = None, **options: Any
) -> Any:
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    if scheme.scale != "e8m0" or scheme.block_rows != 1 or element(scheme.element).family == "table":
        raise Unsupported(f"xla codes float and integer elements under e8m0 scales within a row, not {scheme}")
    if recipe.search != "none" or recipe.stochastic or recipe.ties == "up":
        raise Unsupported("xla neither searches nor rounds at random, nor up as ggml does")
    values = floats(np.asarray(x))
    block = scheme.block_elems or x.shape[-1]
    coded, scale = (np.asarray(a) for a in _coded(values.view(np.uint32).reshape(-1, block), scheme.element, recipe))
    if recipe.nonfinite == "error" and (scale == E8M0_NAN).any():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueRangeError(f"flat index {at}: {values.flat[at]} has no {scheme.element.upper()} value")
    shapes = scheme.components(x.shape)
    packed = bits.pack(coded.reshape(x.shape), scheme.element_bits)
    q = QTensor(packed, scale.reshape(shapes["scales"]), scheme)
    if not measure:
        return q
    from plugins.kernels.quantize.blockwise import measured

    return q, measured(x, q)


@partial(jax.jit, static_argnums=(1, 2))
def _coded(pattern: Any, name: str, recipe: Recipe) -> tuple[Any, Any]:
    """(codes `[blocks, n]`, E8M0 bytes `[blocks]`), uint8, of float32 patterns."""
    magnitude = (pattern & 0x7FFFFFFF).astype(jnp.int32)
    negative = (pattern >> 31).astype(bool)
    amax = magnitude.max(axis=1)
    scale = _scale(amax, name, recipe.scale_rule)
    used = scale
    if recipe.tiny == "torchao":
        used = jnp.where(scale == 0, E8M0_BIAS if recipe.scale_rule == "rceil" else 1, scale)
    significand, exponent = _parts(magnitude)
    code = _code(significand, exponent - (used[:, None] - E8M0_BIAS), negative, name, recipe)
    if element(name).family == "float":
        if recipe.zero == "positive":
            negative &= code != 0
        elif recipe.zero == "minus":
            negative |= magnitude == 0
        code |= jnp.where(negative, 1 << (element(name).bits - 1), 0)
    else:
        code = jnp.where(negative, -code, code) & element(name).mask
    code = jnp.where(scale[:, None] == E8M0_NAN, 0, code)
    return code.astype(jnp.uint8), scale.astype(jnp.uint8)


def _parts(magnitude: Any) -> tuple[Any, Any]:
    """(24-bit significand with its top bit set unless zero, exponent of that bit) of float32 magnitude patterns."""
    stored = magnitude >> 23
    significand = jnp.where(stored > 0, magnitude & 0x7FFFFF | 0x800000, magnitude)
    shift = jnp.where(significand > 0, jax.lax.clz(significand) - 8, 0)
    exponent = jnp.maximum(stored, 1) - 127 - shift
    return significand << shift, jnp.where(significand > 0, exponent, -999)


def _scale(amax: Any, name: str, rule: str) -> Any:
    significand, exponent = _parts(amax)
    limit = int(scales.threshold(name, rule) * (1 << 23))
    up = significand >= limit if rule == "even" else significand > limit
    byte = jnp.clip(exponent + up - element(name).emax + E8M0_BIAS, 0, E8M0_MAX)
    return jnp.where(amax >= 0x7F800000, E8M0_NAN, jnp.where(amax == 0, 0, byte))


def _code(significand: Any, exponent: Any, negative: Any, name: str, recipe: Recipe) -> Any:
    """Unsigned codes of significand · 2^(exponent - 23)."""
    e = element(name)
    if e.family == "float":
        mantissa, bias, top = FLOATS[name]
        least = 1 - bias
        binade = jnp.clip(exponent, least, e.emax + 1)
        unit = binade - mantissa
    else:
        top = e.most
        binade, least, mantissa = jnp.zeros_like(exponent), 0, 0
        unit = jnp.full_like(exponent, int(np.log2(e.unit)))
    saturated = exponent > e.emax
    drop = jnp.clip(unit - exponent + 23, 1, 30)
    whole, rest, half = significand >> drop, significand & ((1 << drop) - 1), 1 << (drop - 1)
    tie = {"even": whole % 2 == 1, "zero": False, "away": True, "down": negative}[recipe.ties]
    whole += (rest > half) | ((rest == half) & tie)
    code = whole + ((binade - least) << mantissa)
    return jnp.where(saturated, top, jnp.minimum(code, top))
