"""Extremes and codes of blocks in jnp, by integers: what the host's backend compiles, and what traced programs contain.

See the package for why. Patterns are the uint32 of float32 values.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import FLOATS, element
from plugins.kernels.codecs.jax_float import bits_of, divided, float_of, multiplied, parts, subtracted
from plugins.kernels.quantize.recipe import Recipe

INFINITY, NAN = 0x7F800000, 0x7FC00000  # of float32
SIGN = np.uint32(0x80000000)


@partial(jax.jit, static_argnums=1)
def ends_of(blocks: Any, rule: str) -> tuple[Any, ...]:
    """Patterns `[down, 1, across, 1]` of the least and greatest values of each block, NaN if one is not finite.

    Args:
        rule: `minmax`; `first`: of zeros as the least the first, whatever their signs; `signed`: also the first value
            of largest magnitude; any other: ± the largest magnitude.
    """
    down, r, across, e = blocks.shape
    flat = blocks.transpose(0, 2, 1, 3).reshape(down, across, r * e)
    magnitude = (flat & jnp.uint32(0x7FFFFFFF)).astype(jnp.int32)
    largest = magnitude.max(axis=-1)
    if rule in ("minmax", "first"):
        order = jnp.where(flat >> 31 == 1, -magnitude, magnitude)
        least, most = order.min(axis=-1), order.max(axis=-1)
        ends = [jnp.where(v < 0, (-v).astype(jnp.uint32) | SIGN, v.astype(jnp.uint32)) for v in (least, most)]
        if rule == "first":
            ends[0] = _at(flat, order.argmin(axis=-1))
    else:
        high = largest.astype(jnp.uint32)
        ends = [high | SIGN, high]
        if rule == "signed":
            ends.append(_at(flat, magnitude.argmax(axis=-1)))
    return tuple(jnp.where(largest >= INFINITY, jnp.uint32(NAN), v).reshape(down, 1, across, 1) for v in ends)


def _at(flat: Any, index: Any) -> Any:
    return jnp.take_along_axis(flat, index[..., None], axis=-1)[..., 0]


def shifts(scheme: Scheme, recipe: Recipe) -> bool:
    """Whether exponents say all there is to say about scales. (Rounding up adds to a float32; a table compares one.)"""
    return scheme.scale == "e8m0" and recipe.ties != "up" and element(scheme.element).family != "table"


@partial(jax.jit, static_argnums=(5, 6))
def codes_of(pattern: Any, by: Any, minimum: Any, zeros: Any, poisoned: Any, scheme: Scheme, recipe: Recipe) -> Any:
    """uint8 codes of blocks `[down, r, across, e]` under what they share, `[down, 1, across, 1]`.

    Args:
        by: what values are divided by, or multiplied by; of powers of two the exponent to add.
    """
    e = element(scheme.element)
    if shifts(scheme, recipe):
        significand, exponent = parts(pattern)
        significand, exponent = significand.astype(jnp.int32), exponent + by
    else:
        v = float_of(pattern)
        if minimum is not None:
            v = subtracted(v, minimum)
        multiply = recipe.quotient == "reciprocal" or scheme.scale == "e8m0"
        v = multiplied(v, by) if multiply else divided(v, by)
        v = jnp.where(jnp.isnan(v), jnp.float32(0), v)
        if zeros is not None:
            half = jnp.float32(1 << (e.bits - 1))
            v = jnp.clip(v + (zeros - half), -half, half - 1)
            v = (jnp.round(v) if recipe.ties == "even" else v) + half
        if recipe.ties == "up":
            low = -e.most if recipe.is_narrow and e.family == "fixed" else e.least
            v = jnp.clip(v * jnp.float32(1 / e.unit), low, e.most)
            v = (jnp.floor(v + jnp.float32(0.5 - e.least)) + jnp.float32(e.least)) * jnp.float32(e.unit)
        if e.family == "table":
            return jnp.where(poisoned, 0, _nearest(v, e, recipe.ties)).astype(jnp.uint8)
        pattern = bits_of(v)
        significand, exponent = parts(pattern)
        significand = significand.astype(jnp.int32)
    exponent = jnp.where(significand > 0, exponent + 23, -999)
    negative = (pattern >> 31).astype(bool)
    code: Any = _code(significand, exponent, negative, scheme.element, recipe)
    if e.family == "float":
        if recipe.zero == "positive":
            negative &= code != 0
        elif recipe.zero == "minus":
            negative |= significand == 0
        code |= jnp.where(negative, 1 << (e.bits - 1), 0)
    else:
        code = jnp.where(negative, -code, code) & e.mask
    return jnp.where(poisoned, 0, code).astype(jnp.uint8)


def _nearest(v: Any, e: Any, ties: str) -> Any:
    from plugins.kernels.codecs.rounding import boundaries

    code = jnp.zeros(v.shape, jnp.uint8)
    for passes, edge in boundaries(e, ties):
        code += (v >= edge if passes is np.greater_equal else v > edge).astype(jnp.uint8)
    return code


def _code(significand: Any, exponent: Any, negative: Any, name: str, recipe: Recipe) -> Any:
    """Unsigned codes of significand · 2^(exponent - 23), of which the significand has 24 bits or is 0."""
    e = element(name)
    if e.family == "float":
        top: Any
        mantissa, bias, top = FLOATS[name]
        least = 1 - bias
        binade = jnp.clip(exponent, least, e.emax + 1)
        unit = binade - mantissa
    else:
        # Two's complement has one more on its negative side; unsigned elements have none there.
        below: int = 0 if e.family == "unsigned" else e.most if recipe.is_narrow else e.most + 1
        top = jnp.where(negative, below, e.most)
        binade, least, mantissa = jnp.zeros_like(exponent), 0, 0
        unit = jnp.full_like(exponent, int(np.log2(e.unit)))
    saturated = exponent > (e.emax if e.family == "float" else e.emax + 1)
    drop = jnp.clip(unit - exponent + 23, 1, 30)
    whole, rest, half = significand >> drop, significand & ((1 << drop) - 1), 1 << (drop - 1)
    tie = {"even": whole % 2 == 1, "zero": False, "away": True, "down": negative, "up": ~negative}[recipe.ties]
    whole += (rest > half) | ((rest == half) & tie)
    code = whole + ((binade - least) << mantissa)
    return jnp.where(saturated, top, jnp.minimum(code, top))
