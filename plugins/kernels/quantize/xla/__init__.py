"""quantize with XLA: extremes and codes on the device, scales, of which there are few, by NumPy between the two.

XLA flushes subnormal floats on some devices, CPUs among them, fuses products into sums, and need not divide exactly. A
float32 is a sign, a 24-bit significand and an exponent; here they are integers: extremes are those of patterns,
quotients come from `jax_float`, dividing by a power of two subtracts exponents, and rounding is a shift that looks at
what it drops. So bytes do not depend on how a device treats floats.

What it leaves to others (`declines.py`): search=mse, whose sums of errors are defined by an order that devices do not
keep; stochastic rounding, whose random numbers come from 64-bit integers that JAX lacks by default; empty arrays.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs import bits, dynamic8, scales
from plugins.kernels.codecs.blocks import floats
from plugins.kernels.codecs.elements import FLOATS, element
from plugins.kernels.codecs.jax_float import bits_of, divided, float_of, multiplied, parts, subtracted
from plugins.kernels.pieces import quantized
from plugins.kernels.quantize.numpy import empty, measured, refuse_unstorable
from plugins.kernels.quantize.numpy.scale import Found, block_scales
from plugins.kernels.quantize.reach import refuse_infinities
from plugins.kernels.quantize.recipe import Recipe, checked

PIECE = 1 << 18  # elements: some forty bytes for each are a task's scratch
_INFINITY = 0x7F800000
_SIGN = np.uint32(0x80000000)


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    return quantized(
        _quantize, x, scheme, PIECE, cuts_rows=recipe.cuts_rows(scheme), measure=measure, observed=observed, rows=rows,
        place=None, recipe=recipe,
    )  # fmt: skip


def _quantize(x: Any, scheme: Scheme, *, measure: bool, observed: Any, rows: Any, place: Any, recipe: Recipe) -> Any:
    values = floats(np.asarray(x))
    if recipe.nonfinite == "error" and not np.isfinite(_most(values.view(np.uint32))):
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueRangeError(f"flat index {at}: {values.flat[at]} has no {scheme.element.upper()} value")
    q = empty(x.shape, scheme)
    bands_of = rows
    rows, n = (x.shape[-2] if x.ndim > 1 else 1), x.shape[-1]
    matrices = values.view(np.uint32).reshape(-1, rows, n)
    whole = _whole(matrices, scheme, observed)
    second = None
    if scheme.second in ("f32", "inverse_f32"):
        assert whole is not None
        largest = np.maximum(*map(np.abs, whole))
        if not np.isfinite(largest).all():
            raise ValueRangeError("another part of this matrix holds a value that is not finite")
        second = scales.matrix_scale(largest, scheme)
        q.second[...] = second.reshape(q.second.shape)
    codes, height = np.empty(matrices.shape, np.uint8), scheme.block_rows or rows
    down, across = scheme.blocks(rows, n)
    scale = q.scales.reshape(-1, down, across)
    zeros = None if q.zeros is None else q.zeros.reshape(scale.shape)
    full = rows // height * height
    for top, bottom in ((0, full), (full, rows)):  # the last band may be lower than a block
        if top == bottom:
            continue
        r = min(height, bottom - top)
        band = matrices[:, top:bottom].reshape(-1, r, across, n // across)
        bands = slice(top // height, -(-bottom // height))
        count = len(band) // len(matrices)
        ends = whole if bands_of is None else _of_rows(bands_of, len(matrices), bands)
        found, coded = _band(band, ends, second, count, scheme, recipe, given=bands_of is not None)
        codes[:, top:bottom] = coded.reshape(len(matrices), bottom - top, n)
        scale[:, bands] = found.stored.reshape(len(matrices), count, across)
        if zeros is not None:
            zeros[:, bands] = found.zeros.reshape(len(matrices), count, across)
    q.codes[...] = bits.pack(codes.reshape(x.shape), scheme.element_bits)
    if scheme.second == "dynamic8":
        stored, second = dynamic8.encode(q.scales)
        q = QTensor(q.codes, stored, scheme, second=second)
    if recipe.overflow == "error":
        refuse_infinities(x, q)
    return (q, measured(x, q)) if measure else q


def _most(patterns: Any) -> Any:
    """The largest magnitude, NaN above all."""
    return np.asarray(_largest(patterns)).view(np.float32)


@jax.jit
def _largest(patterns: Any) -> Any:
    return (patterns & jnp.uint32(0x7FFFFFFF)).max()


def _whole(matrices: Any, scheme: Scheme, observed: Any) -> Any:
    """(low, high) float32 `[matrices]`, or None where no scale needs them."""
    if observed is not None:
        return tuple(np.asarray(v, np.float32).reshape(-1) for v in (observed.low, observed.high))
    if scheme.second in ("f32", "inverse_f32") or (scheme.block_rows, scheme.block_elems) == (0, 0):
        ends = _ends(matrices.reshape(len(matrices), 1, 1, -1), "minmax")
        return tuple(np.asarray(v).view(np.float32).reshape(-1) for v in ends)
    return None


def _of_rows(rows: Any, matrices: int, bands: slice) -> tuple[Any, ...]:
    """(low, high) float32 of some bands of every matrix."""
    return tuple(np.asarray(v, np.float32).reshape(matrices, -1)[:, bands] for v in (rows.low, rows.high))


def _band(
    band: Any, whole: Any, second: Any, count: int, scheme: Scheme, recipe: Recipe, *, given: bool
) -> tuple[Found, Any]:
    """(scales, uint8 codes) of `count` bands of blocks of every matrix, `[matrices · count, r, across, e]`.

    Args:
        whole: extremes of the matrices, or (`given`) of the rows that these bands are a part of.
    """
    if given or (scheme.block_rows == 0 and scheme.block_elems == 0):
        ends = tuple(v.reshape(-1, 1, 1, 1) for v in whole)
    else:
        rule = "first" if scheme.zero == "min_f16" else recipe.scale_rule
        ends = tuple(np.asarray(v).view(np.float32) for v in _ends(band, rule))
    shared = None if second is None else np.repeat(second, count).reshape(-1, 1, 1, 1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        found = block_scales(None, ends, scheme, recipe, shared)
    refuse_unstorable(found, np.maximum(np.abs(ends[0]), np.abs(ends[1])), scheme)
    by = np.frexp(found.divisor)[1] - 1 if _shifts(scheme, recipe) else found.divisor
    poisoned = np.zeros(found.total.shape, bool) if found.poisoned is None else found.poisoned
    zeros = None if scheme.zero != "int" else found.zeros.astype(np.float32)
    return found, np.asarray(_codes(band, by, found.minimum, zeros, poisoned, scheme, recipe))


@partial(jax.jit, static_argnums=1)
def _ends(blocks: Any, rule: str) -> tuple[Any, ...]:
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
        ends = [jnp.where(v < 0, (-v).astype(jnp.uint32) | _SIGN, v.astype(jnp.uint32)) for v in (least, most)]
        if rule == "first":
            ends[0] = _at(flat, order.argmin(axis=-1))
    else:
        high = largest.astype(jnp.uint32)
        ends = [high | _SIGN, high]
        if rule == "signed":
            ends.append(_at(flat, magnitude.argmax(axis=-1)))
    return tuple(jnp.where(largest >= _INFINITY, jnp.uint32(0x7FC00000), v).reshape(down, 1, across, 1) for v in ends)


def _at(flat: Any, index: Any) -> Any:
    return jnp.take_along_axis(flat, index[..., None], axis=-1)[..., 0]


def _shifts(scheme: Scheme, recipe: Recipe) -> bool:
    """Whether exponents say all there is to say about scales. (Rounding up adds to a float32; a table compares one.)"""
    return scheme.scale == "e8m0" and recipe.ties != "up" and element(scheme.element).family != "table"


@partial(jax.jit, static_argnums=(5, 6))
def _codes(pattern: Any, by: Any, minimum: Any, zeros: Any, poisoned: Any, scheme: Scheme, recipe: Recipe) -> Any:
    """uint8 codes of blocks `[down, r, across, e]` under what they share, `[down, 1, across, 1]`.

    Args:
        by: what values are divided by, or multiplied by; of powers of two the exponent to add.
    """
    e = element(scheme.element)
    if _shifts(scheme, recipe):
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
