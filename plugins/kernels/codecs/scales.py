"""Block scales: from a block's extremes to what is stored, and from what is stored to the float32 that multiplies.

All arithmetic is IEEE float32, one rounding an operation, in the order written: that is what makes codes comparable,
bit for bit, between backends and with other libraries. Powers of two are exact either way.
"""

from functools import cache
from typing import Any, Final

import numpy as np

from pipeline.tensors.scheme import SCALE_DTYPES, Scheme
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.codecs import dynamic8
from plugins.kernels.codecs.elements import Element, element
from plugins.kernels.codecs.mx import E8M0_BIAS, E8M0_MAX, E8M0_NAN

# Largest value of a scale encoding that a second-level scale maps onto.
SCALE_MAX: Final = {"e4m3": 448.0, "f16": 65504.0}


@cache
def powers() -> Any:
    """float32 `[256]`: what each E8M0 byte is worth (OCP MX v1.0, section 5.4.1).

    Made as patterns: threads of XLA flush what is subnormal, as 2^-127 is, and a table outlives the first who asks.
    """
    patterns = np.arange(256, dtype=np.uint32) << 23  # a byte is the exponent of a float32, with the same bias
    patterns[0], patterns[E8M0_NAN] = 1 << 22, 0x7FC00000
    return patterns.view(np.float32)


def threshold(name: str, rule: str) -> float:
    """The mantissa of amax, in [1, 2), past which `rule` takes the next power of two; at it too when `even`."""
    e = element(name)
    if rule == "even":
        assert e.mantissa_bits is not None
        return 2 - 2.0 ** -(e.mantissa_bits + 1)
    return {"floor": 2.0, "ceil": 1.0, "rceil": e.max / 2.0**e.emax}[rule]


def carry(name: str, rule: str) -> int:
    """What, added to the pattern of a float32 magnitude, carries into the exponent exactly when `rule` rounds up."""
    return max(round((2 - threshold(name, rule)) * (1 << 23)) - (rule != "even"), 0)


def e8m0_bytes(amax: Any, name: str, rule: str) -> Any:
    """uint8 E8M0 scales of float32 maxima: 0 where amax is 0, 0xFF where it is not finite."""
    emax = element(name).emax
    pattern = np.abs(amax).view(np.int32)
    if emax == 0 and (pattern < 1 << 23).any():  # a subnormal that is rounded up has byte 1
        return _e8m0_bytes(amax, name, rule)
    byte = (pattern + np.int32(carry(name, rule))) >> 23
    byte = np.clip(byte - emax, 0, E8M0_MAX).astype(np.uint8)
    broken = pattern >= 0x7F800000
    if broken.any():
        byte[broken] = E8M0_NAN
    return byte


def _e8m0_bytes(amax: Any, name: str, rule: str) -> Any:
    """The same by arithmetic."""
    finite = np.isfinite(amax)
    mantissa, exponent = np.frexp(np.where(finite, amax, np.float32(1)))
    mantissa = mantissa * 2
    limit = threshold(name, rule)
    up = mantissa >= limit if rule == "even" else mantissa > limit
    byte = np.clip(exponent - 1 + up - element(name).emax + E8M0_BIAS, 0, E8M0_MAX)
    byte = np.where(amax == 0, 0, byte)
    return np.where(finite, byte, E8M0_NAN).astype(np.uint8)


def matrix_scale(amax: Any, scheme: Scheme) -> Any:
    """The stored second-level scale, float32, of matrices with these maxima; 1 where it would be 0 or infinite."""
    top = np.float32(SCALE_MAX[scheme.scale] * element(scheme.element).max)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        found = top / amax if scheme.second == "inverse_f32" else amax / top
    return np.where((found == 0) | np.isinf(found), np.float32(1), found).astype(np.float32)


def unrounded(extremes: Any, scheme: Scheme, rule: str) -> Any:
    """float32 scales before they are rounded to their encoding.

    Args:
        extremes: (low, high) of every block, float32; for `signed`, of those the value of largest magnitude is taken,
            and low when they are equally far from zero, unless a third array says what came first.
        rule: amax, half_range, signed or minmax; see the `quantize` op.
    """
    low, high = extremes[:2]
    by = span(element(scheme.element), rule)
    if rule == "signed":
        return extremes[2] / by
    if rule != "minmax":
        return np.maximum(np.abs(low), np.abs(high)) / by
    with np.errstate(over="ignore"):
        return (high - low + np.float32(0)) / by  # zeros of whatever sign are no distance apart


def span(e: Element, rule: str) -> Any:
    """float32 that amax, the value of largest magnitude or the distance of the extremes is divided by."""
    if rule == "half_range":
        return np.float32((e.max - float(np.nanmin(e.values[np.isfinite(e.values)]))) / 2)
    return np.float32({"amax": e.max, "signed": e.least * e.unit, "minmax": e.most}[rule])


def store(raw: Any, scheme: Scheme, least: float = 0.0, instead_of_zero: float = 0.0) -> Any:
    """`raw` rounded to nearest even in the scale's encoding; E4M3 saturates, NaN stays NaN."""
    if least:
        raw = np.maximum(raw, np.float32(least))
    if scheme.scale == "e4m3":
        raw = np.minimum(raw, np.float32(448))
    with np.errstate(over="ignore"):
        stored = raw.astype(numpy_dtype("F32" if scheme.scale == "dynamic8" else SCALE_DTYPES[scheme.scale]))
    if instead_of_zero:
        stored = np.where(stored == 0, np.asarray(instead_of_zero, stored.dtype), stored)
    return stored


def load(scales: Any, scheme: Scheme) -> Any:
    """float32 values of stored block scales (not of `dynamic8`, which `totals` decodes)."""
    if scheme.scale == "e8m0":
        return powers()[scales]
    return np.asarray(scales).astype(np.float32)


def combined(scales: Any, second: Any, scheme: Scheme) -> Any:
    """float32 factor of a block from its scale's float32 value and its matrix's second-level scale, if any."""
    if scheme.second == "f32":
        with np.errstate(over="ignore", under="ignore"):
            return scales * second
    if scheme.second == "inverse_f32":
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            return scales / second
    return scales


def totals(q: Any) -> Any:
    """float32 factors of all blocks of a QTensor, of its scales' shape."""
    if q.scheme.second == "dynamic8":
        return dynamic8.decode(q.scales, q.second)
    return combined(load(np.asarray(q.scales), q.scheme), q.second, q.scheme)
