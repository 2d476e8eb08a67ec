"""Codes nearest to float32 values, in place and in SIMD: no temporaries, no look-up per element.

A float32 sum is rounded once, to nearest even. Added to a power of two whose last place is the spacing of the element's
values, a magnitude comes out as that power's pattern plus the number of spacings: rounding and coding in one addition.
Elements of few values count the boundaries that a value passes instead. Rules that are not worth a path of their own
look at the distance from the floor, which is exact in float32, where adding a half would not be.
"""

from functools import cache
from typing import Any

import numpy as np

from plugins.kernels.codecs.elements import FLOATS, Element
from plugins.kernels.codecs.scratch import floats, octets


def encode(
    e: Element, v: Any, ties: str, zero: str, narrow: bool = False, uniform: Any = None, *, zeros: Any = None
) -> Any:
    """uint8 codes (one a byte) of float32 `v`, in any shape; saturating.

    Args:
        v: contiguous and free of NaN; it is the callee's to overwrite.
        ties: see the `quantize` op.
        zero: what becomes of a zero's sign; see the `quantize` op.
        narrow: leave the smallest code of a `fixed` element out, so that codes are symmetric.
        uniform: float32 in [0, 1) of v's shape: round up with the probability of the distance, not to the nearest.
        zeros: which values count as 0 for `zero="minus"`; by default those of `v` that are.
    """
    if e.family == "table":
        return _table(e, v, ties, uniform)
    if e.family != "float":
        return _integers(e, v, ties, narrow, uniform)
    negative = np.signbit(v, out=octets(0, v.shape).view(np.bool_))
    np.abs(v, out=v)
    if zero == "minus" and zeros is None:
        zeros = v == 0
    if uniform is None and e.name == "e2m1" and ties != "down":
        code = _passed(v, boundaries(e, ties))
    elif uniform is None and ties == "even":
        code = _summed(e, v)
    else:
        code = _floored(e, v, negative, ties, uniform)
    if zero == "positive":
        np.logical_and(negative, code, out=negative)
    elif zero == "minus":
        negative |= zeros
    sign = negative.view(np.uint8)
    np.multiply(sign, 1 << (e.bits - 1), out=sign)  # NumPy shifts bytes one at a time, but multiplies them in SIMD
    return np.bitwise_or(code, sign, out=code)


def _integers(e: Element, v: Any, ties: str, narrow: bool, uniform: Any) -> Any:
    low = -e.most if narrow and e.family == "fixed" else e.least
    if e.unit != 1:
        np.multiply(v, np.float32(1 / e.unit), out=v)
    np.clip(v, np.float32(low), np.float32(e.most), out=v)
    if uniform is None and ties == "up":
        np.add(v, np.float32(0.5 - e.least), out=v)
        np.floor(v, out=v)
        np.add(v, np.float32(e.least), out=v)
        np.clip(v, np.float32(low), np.float32(e.most), out=v)
    elif uniform is None and ties == "even":
        np.rint(v, out=v)
    else:
        v = np.copysign(_rounded(np.abs(v), v < 0, ties, uniform), v)
    code = np.empty(v.shape, np.uint8 if e.family == "unsigned" else np.int8)
    np.copyto(code, v, casting="unsafe")
    code = code.view(np.uint8)
    return code if e.bits == 8 else np.bitwise_and(code, e.mask, out=code)


def _summed(e: Element, v: Any) -> Any:
    """Codes of magnitudes `v`, ties to even."""
    mantissa, bias, _ = FLOATS[e.name]
    np.clip(v, np.float32(0), np.float32(e.max), out=v)
    power = floats(2, v.shape)
    whole, unit = v.view(np.int32), power.view(np.int32)
    np.bitwise_and(whole, 0x7F800000, out=unit)
    np.clip(unit, (128 - bias) << 23, 0x7F800000, out=unit)  # subnormals are spaced like the smallest normal binade
    np.add(unit, (23 - mantissa) << 23, out=unit)
    np.add(v, power, out=v)
    np.subtract(whole, unit, out=whole)  # spacings: with the implicit bit 1 … 2 times 2^mantissa
    np.right_shift(unit, 23 - mantissa, out=unit)
    np.add(whole, unit, out=whole)
    code = np.empty(v.shape, np.uint8)
    np.copyto(code, whole, casting="unsafe")
    # The binade's field, shifted, still has the biases in it; the top of a byte is cut off either way.
    return np.subtract(code, np.uint8(((128 - bias + 23 - mantissa) << mantissa) & 0xFF), out=code)


def _floored(e: Element, v: Any, negative: Any, ties: str, uniform: Any) -> Any:
    """Codes of magnitudes `v` by any rule."""
    mantissa, bias, top = FLOATS[e.name]
    np.clip(v, np.float32(0), np.float32(e.max), out=v)
    # Biased float32 exponent of the binade, never below that of the smallest normal value.
    binade = np.maximum(v.view(np.int32) >> 23, np.int32(128 - bias))
    v *= ((254 + mantissa - binade) << 23).view(np.float32)  # units in the last place: exact
    code = _rounded(v, negative, ties, uniform).astype(np.int32)
    code += (binade - (128 - bias)) << mantissa  # monotone: a carry moves on to the next binade
    return np.minimum(code, top).astype(np.uint8)


def _rounded(magnitude: Any, negative: Any, ties: str, uniform: Any) -> Any:
    """Whole float32 numbers near the nonnegative `magnitude`, which is the caller's to lose."""
    if uniform is None and ties == "even":
        return np.rint(magnitude, out=magnitude)
    whole = np.floor(magnitude)
    magnitude -= whole
    if uniform is not None:
        up = magnitude > uniform
    elif ties == "zero":
        up = magnitude > 0.5
    elif ties == "away":
        up = magnitude >= 0.5
    else:  # toward minus infinity: "down"
        up = (magnitude > 0.5) | (negative & (magnitude == 0.5))
    whole += up
    return whole


@cache
def boundaries(e: Element, ties: str) -> tuple[tuple[Any, Any], ...]:
    """(comparison, float32) that each boundary of an element, halfway between neighbours, is passed by, in order.

    Of a float, boundaries between magnitudes.
    """
    values = e.values[: FLOATS[e.name][2] + 1] if e.family == "float" else e.values
    found = []
    for k, (low, high) in enumerate(zip(values[:-1].tolist(), values[1:].tolist(), strict=True)):
        middle = (low + high) / 2
        # The largest float32 that is not past the middle: no float32 lies between them.
        edge = np.float32(middle)
        edge = np.nextafter(edge, np.float32(-2)) if float(edge) > middle else edge
        at_tie = float(edge) == middle and _up_on_tie(ties, k, low, high)
        found.append((np.greater_equal if at_tie else np.greater, edge))
    return tuple(found)


def _passed(v: Any, boundaries: tuple[tuple[Any, Any], ...]) -> Any:
    """For each value the number of boundaries that it passes."""
    code, hit = np.empty(v.shape, np.uint8), octets(1, v.shape)
    (passes, edge), *more = boundaries
    passes(v, edge, out=code.view(np.bool_))
    for passes, edge in more:
        passes(v, edge, out=hit.view(np.bool_))
        np.add(code, hit, out=code)
    return code


def _up_on_tie(ties: str, k: int, low: float, high: float) -> bool:
    """Whether a value halfway between code k and code k + 1 takes code k + 1."""
    return {
        "even": k % 2 == 1, "down": False, "up": True, "zero": abs(high) < abs(low), "away": abs(high) > abs(low),
    }[ties]  # fmt: skip


def _table(e: Element, v: Any, ties: str, uniform: Any) -> Any:
    if uniform is None:
        return _passed(v, boundaries(e, ties))
    values = e.values.astype(np.float64)
    low = np.clip(np.searchsorted(values, v, side="right") - 1, 0, len(values) - 2)
    up = (v - values[low]) > uniform * (values[low + 1] - values[low])
    return (low + up).astype(np.uint8)
