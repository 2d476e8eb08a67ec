"""One block of the definition of `quantize`: what its values share, and the code of each."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pipeline.tensors.scheme import SCALE_DTYPES, Scheme
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.codecs import scales
from plugins.kernels.codecs.elements import Element, element
from plugins.kernels.codecs.mx import E8M0_BIAS, E8M0_MAX
from plugins.kernels.dequantize.reference import value_of
from plugins.kernels.quantize.reach import unstorable
from plugins.kernels.quantize.recipe import Recipe

F32: Any = np.float32


@dataclass(frozen=True, slots=True)
class Shared:
    """What the values of a block share: scale and zero as stored, and what codes are made with.

    Attributes:
        scale, zero: as stored.
        total: the decoder's factor.
        divisor: what values are divided by, or with quotient=reciprocal multiplied by; 0: every code stands for 0.
        minimum: subtracted first.
    """

    scale: Any
    total: Any
    divisor: Any
    zero: Any = None
    minimum: Any = None


def shared_of(
    block: list[float], ends: Any, scheme: Scheme, recipe: Recipe, second: Any, weights: list[float] | None = None
) -> Shared | None:
    """What a block's values share; None if one of them is not finite.

    With a search, the candidates are tried in order and the first with the least sum of squared errors wins,
    each by the weight of its column where they have any. One that cannot be stored, or that decodes to what is not
    finite, loses more than any other.
    """
    options = candidates(block, ends, scheme, recipe, second)
    if options is None:
        return None
    best = options[0]
    if len(options) > 1:
        errors = [_error(block, option, scheme, recipe, weights) for option in options]
        best = options[errors.index(min(errors))]
    refuse_unstorable(best, ends, scheme)
    return best


def candidates(block: list[float], ends: Any, scheme: Scheme, recipe: Recipe, second: Any) -> list[Shared] | None:
    """What a block's values may share: what a search tries, the usual scale first; without a search that alone. None if
    one of the values is not finite."""
    low, high = ends
    amax = max(abs(low), abs(high))
    if not math.isfinite(amax):
        return None
    if scheme.scale == "e8m0":
        base = scale_byte(amax, scheme.element, recipe.scale_rule)
        steps = [0]
        for k in range(1, recipe.search_steps + 1) if recipe.search == "mse" else ():
            steps += [-k, k]
        return [_power(min(max(base + s, 0), E8M0_MAX), recipe) for s in steps]
    raw = _raw(block, low, high, scheme, recipe.scale_rule)
    if scheme.second == "f32":
        raw = raw / second
    elif scheme.second == "inverse_f32":
        raw = raw * second
    factors = (1.0, *recipe.search_grid) if recipe.search == "mse" else (1.0,)
    return [_real(F32(raw * F32(f)), low, scheme, recipe, second) for f in factors]


def refuse_unstorable(shared: Shared, ends: Any, scheme: Scheme) -> None:
    """Refuse a block with these extremes of which scale or minimum is past its encoding."""
    amax = max(map(abs, ends))
    if not _is_stored(shared.scale):
        raise unstorable(amax, "scales", scheme)
    if not _is_stored(shared.zero):
        raise unstorable(amax, "zeros", scheme)


def _is_stored(part: Any) -> bool:
    return part is None or bool(np.isfinite(part))


def _error(block: list[float], option: Shared, scheme: Scheme, recipe: Recipe, weights: list[float] | None) -> float:
    """The sum of squared errors of a block under these scales, infinite if it is not a number."""
    if not _is_stored(option.scale) or not _is_stored(option.zero):
        return math.inf
    error = 0.0
    for v, weight in zip(block, weights or [1.0] * len(block), strict=True):
        y = F32(value_of(code_of(v, option, scheme, recipe), option.total, option.zero, scheme))
        error += (v - float(y)) ** 2 * weight
    return math.inf if math.isnan(error) else error


def scale_byte(amax: float, name: str, rule: str) -> int:
    """E8M0 byte (OCP MX v1.0, section 5.4.1) of a block with this finite amax; 0 if it is all zero."""
    if amax == 0:
        return 0
    e = element(name)
    mantissa, exponent = math.frexp(amax)
    mantissa, exponent = mantissa * 2, exponent - 1  # amax = mantissa · 2^exponent, 1 ≤ mantissa < 2
    if rule == "even":
        up = mantissa >= scales.threshold(name, rule)  # nearer to 2 than to the value before it, half up
    else:  # floor, section 6.3: the largest power of two ≤ amax; rceil: past the largest element
        up = {"floor": False, "ceil": mantissa > 1, "rceil": mantissa * 2.0**e.emax > e.max}[rule]
    # Section 6.3: divided by the largest power of two of the element, then clamped to what E8M0 can say.
    return min(max(exponent + up - e.emax + E8M0_BIAS, 0), E8M0_MAX)


def _power(byte: int, recipe: Recipe) -> Shared:
    used = byte
    if recipe.tiny == "torchao" and byte == 0:
        used = E8M0_BIAS if recipe.scale_rule == "rceil" else 1
    return Shared(byte, 2.0 ** (byte - E8M0_BIAS), 2.0 ** (used - E8M0_BIAS))


def _raw(block: list[float], low: float, high: float, scheme: Scheme, rule: str) -> Any:
    """float32 scale of a block before it is rounded."""
    e = element(scheme.element)
    amax = F32(max(abs(low), abs(high)))
    if rule == "amax":
        return amax / F32(e.max)
    if rule == "half_range":  # half the distance between the smallest and the largest value
        least = e.least * e.unit if e.family == "fixed" else -e.max
        return amax / F32((e.max - least) / 2)
    if rule == "signed":  # the first value of largest magnitude becomes the most negative code
        return F32(max(block, key=abs, default=0.0)) / F32(e.least * e.unit)
    if scheme.zero == "int":
        low, high = min(low, 0.0), max(high, 0.0)  # zero has a code of its own
    return (F32(high) - F32(low)) / F32(e.most)


def _real(raw: Any, low: float, scheme: Scheme, recipe: Recipe, second: Any) -> Shared:
    e = element(scheme.element)
    rounded = max(raw, F32(recipe.least_scale)) if recipe.least_scale else raw
    if scheme.scale == "e4m3":
        rounded = min(rounded, F32(448))
    stored = F32(F32(rounded).astype(numpy_dtype("F32" if scheme.scale == "dynamic8" else SCALE_DTYPES[scheme.scale])))
    if stored == 0 and recipe.zero_scale:
        stored = F32(F32(recipe.zero_scale).astype(numpy_dtype(SCALE_DTYPES[scheme.scale])))
    total = stored
    if scheme.second == "f32":
        total = stored * second
    elif scheme.second == "inverse_f32":
        total = stored / second
    used = raw if recipe.codes_from == "unrounded" else total
    divisor = used
    if recipe.quotient == "reciprocal" and used != 0:
        if scheme.second == "f32":
            divisor = (F32(1) / second) / stored
        elif scheme.second == "inverse_f32":
            divisor = second / stored
        else:
            divisor = F32(1) / used
    zero: Any = None
    minimum: Any = None
    if scheme.zero == "int":
        half = F32(1 << (e.bits - 1))
        point = np.rint(-half - F32(min(low, 0.0)) / stored) + half if stored else F32(0)
        zero = int(min(max(point, F32(0)), F32(e.most)))
        if recipe.zero_block == "middle" and raw == 0:
            zero = e.most if low < 0 else int(half)
    elif scheme.zero == "min_f16":
        zero = np.float16(F32(low))
        minimum = F32(low) if recipe.codes_from == "unrounded" else F32(zero)
    return Shared(stored, total, divisor, zero, minimum)


def code_of(v: float, shared: Shared, scheme: Scheme, recipe: Recipe, random: float | None = None) -> int:
    """The code of one value; past the ends it saturates."""
    e = element(scheme.element)
    if shared.minimum is not None:
        v = F32(v) - shared.minimum
    if shared.divisor == 0:
        u = math.copysign(0.0, v)
    elif scheme.scale == "e8m0":
        u = v / shared.divisor
    elif recipe.quotient == "reciprocal":
        u = float(F32(v) * shared.divisor)
    else:
        u = float(F32(v) / shared.divisor)
    if math.isnan(u):
        u = 0.0
    if scheme.zero == "int":
        half = F32(1 << (e.bits - 1))  # the codes of compressed-tensors are signed
        w = min(max(F32(u) + (F32(shared.zero) - half), -half), half - 1)
        u = float(np.rint(w) + half if recipe.ties == "even" and random is None else w + half)
    return element_code(u, e, recipe, random)


@cache
def _grid(name: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Magnitudes of a float element, or values of a table, in order, with their codes."""
    e = element(name)
    finite = [(float(v), c) for c, v in enumerate(e.values) if np.isfinite(v)]
    if e.family == "float":
        finite = [(v, c) for v, c in finite if c < 1 << (e.bits - 1)]
    finite.sort()
    return tuple(v for v, _ in finite), tuple(c for _, c in finite)


def element_code(u: float, e: Element, recipe: Recipe, random: float | None = None) -> int:
    """The code nearest to `u`."""
    if e.family in ("fixed", "unsigned"):
        return _integer_code(u / e.unit, e, recipe, random)
    values, codes = _grid(e.name)
    v = abs(u) if e.family == "float" else u
    v = min(max(v, values[0]), values[-1])
    k = min(bisect_right(values, v) - 1, len(values) - 2)
    low, high = values[k], values[k + 1]
    negative = math.copysign(1, u) < 0 and e.family == "float"
    if random is not None:
        up = (v - low) > random * (high - low)
    elif v - low != high - v:
        up = v - low > high - v
    else:
        smaller_is_low = abs(low) < abs(high)
        up = {"even": codes[k] % 2 == 1, "zero": not smaller_is_low, "away": smaller_is_low, "down": negative,
              "up": not negative}[recipe.ties]  # fmt: skip
    code = codes[k + up]
    if e.family == "table":
        return code
    if (negative and (code or recipe.zero != "positive")) or (u == 0 and recipe.zero == "minus"):
        return code | 1 << (e.bits - 1)
    return code


def _integer_code(u: float, e: Element, recipe: Recipe, random: float | None) -> int:
    low = -e.most if e.family == "fixed" and recipe.is_narrow else e.least
    u = min(max(u, low), e.most)
    if recipe.ties == "up" and random is None:  # ggml adds in float32 and cuts off
        whole = math.floor(F32(u) + F32(0.5 - e.least)) + e.least
    else:
        whole = math.floor(abs(u))
        rest = abs(u) - whole
        tie = {"even": whole % 2 == 1, "zero": False, "away": True, "down": u < 0, "up": u > 0}[recipe.ties]
        whole += rest > random if random is not None else rest > 0.5 or (rest == 0.5 and tie)
        whole = -whole if u < 0 else whole
    return int(min(max(whole, low), e.most)) & ((1 << e.bits) - 1)
