"""The arithmetic of one tile of MXFP4: bfloat16 magnitude patterns in, codes and scales out.

Magnitudes of floats are ordered like their bit patterns, so a code is the number of thresholds that its pattern passes,
and dividing by a power of two is subtracting from the exponent field. The arrays are small enough to stay in cache and
every operation is one that NumPy runs in SIMD: `out=` everywhere, int16 and uint8 lanes, no `where`, no
look-up per element. Layout, rounding to 16 bits and the loop over tiles are the callers' business.

A *group* array is `[k, e, c]`: element e of the block (k, c). Rows of a plain tensor are c = 1; the columns of a
transposed one keep c contiguous, which makes the work on blocks SIMD too.
"""

from functools import cache
from typing import Any, Final

import numpy as np

from pipeline import subnormals
from plugins.kernels.codecs.mx import E2M1_BOUNDARIES, E8M0_BIAS, E8M0_NAN
from plugins.kernels.quantize import ScaleRule, Ties, Tiny, Zero

# Elements. Each NumPy call costs about a microsecond, and threads hand each other the interpreter lock at every call:
# measured on two cores, 2^17 (which fits L2) is a fifth slower on one thread and does not scale to two, this does.
TILE: Final = 3 << 18
INFINITY: Final = 0x7F80  # bfloat16
# What, added to a magnitude, carries into the exponent exactly when the rule rounds amax up: mantissas above 1, from
# 1.75, above 1.5 (7 mantissa bits).
CARRY: Final = {"floor": 0x00, "ceil": 0x7F, "even": 0x20, "rceil": 0x3F}
_UP_ON_TIE: Final = {"even": (0, 1, 0, 1, 0, 1, 0), "zero": (0,) * 7, "away": (1,) * 7}
# From this scale byte on, the lowest boundary 2^(byte - 127) / 4 is a normal bfloat16: exponents just subtract, and
# any subnormal magnitude is below every boundary.
_LINEAR: Final = 3


class Scratch:
    """Buffers of one thread, reused from tile to tile: 6 bytes an element."""

    def __init__(self, elems: int):
        self.magnitude = np.empty(elems, np.int16)
        self.shifted = np.empty(elems, np.int16)
        self.hit = np.empty(elems, np.bool_)
        self.code = np.empty(elems, np.uint8)


@cache
@subnormals.kept()
def thresholds(ties: Ties) -> Any:
    """int16 `[256, 7]`: for each scale byte, the least bfloat16 magnitude pattern that codes past boundary k."""
    units = np.ldexp(1.0, np.arange(256) - E8M0_BIAS)[:, None]
    with np.errstate(over="ignore"):
        exact = (units * np.array(E2M1_BOUNDARIES)).astype(np.float32)  # at least 2^-129: all even bfloat16 patterns
    return (exact.view(np.uint32) >> 16).astype(np.int16) + (1 - np.array(_UP_ON_TIE[ties], np.int16))


@cache
def exponent_shift(copies: int) -> Any:
    """int16 `[256, copies]`: what to subtract from a pattern to divide by the scale.

    Byte 0 subtracts nothing, which leaves zero blocks zero (other blocks of byte 0 are coded by `_exactly`); byte 0xFF
    subtracts enough for code 0.
    """
    shift = ((np.arange(256) - E8M0_BIAS) << 7).astype(np.int16)
    shift[0], shift[E8M0_NAN] = 0, np.iinfo(np.int16).max
    return np.repeat(shift[:, None], copies, axis=1)


def block_amax(magnitude: Any, spare: Any) -> Any:
    """int16 `[blocks]`: maxima of 32 neighbours of the contiguous int16 `magnitude`.

    `np.maximum.reduce` over so short an axis costs more than the rest of the codec. Moving the four 16-byte quarters of
    each block into planes leaves whole-array maxima; the last 8 lanes of 16 bits meet by shifting 64-bit words.
    """
    blocks = magnitude.size // 32
    planes = spare[: magnitude.size].view(np.complex128).reshape(4, blocks)  # 16-byte items, never computed with
    np.copyto(planes, magnitude.view(np.complex128).reshape(blocks, 4).T)
    lanes = planes.view(np.int16)  # [4, blocks · 8]
    np.maximum(lanes[0], lanes[1], out=lanes[0])
    np.maximum(lanes[2], lanes[3], out=lanes[2])
    np.maximum(lanes[0], lanes[2], out=lanes[0])
    top, down = lanes[0], lanes[1]
    for distance in (32, 16):
        np.right_shift(top.view(np.uint64), distance, out=down.view(np.uint64))
        np.maximum(top, down, out=top)
    return np.maximum(top[0::8], top[4::8])


def scale_bytes(amax: Any, rule: ScaleRule) -> Any:
    """uint8 E8M0 scales of int16 bfloat16 maxima; 0xFF where the block is not finite."""
    scale = amax + np.int16(CARRY[rule])
    scale >>= 7
    scale -= 2  # emax of E2M1; E8M0's bias is bfloat16's
    np.maximum(scale, np.zeros_like(scale), out=scale)  # an array: NumPy's SIMD maximum wants two
    if amax.max(initial=0) >= INFINITY:
        scale[amax >= INFINITY] = E8M0_NAN
    return scale.astype(np.uint8)


def count_thresholds(shifted: Any, ties: Ties, s: Scratch, twice: Any = None) -> Any:
    """uint8 code magnitudes of a flat tile of exponent-shifted patterns, in `s.code`.

    Args:
        twice: uint8 array to fill with twice the E2M1 magnitudes, 0 1 2 3 4 6 8 12: one for each of the first four
            thresholds, two for each of the next two, four for the last.
    """
    code, hit = s.code[: shifted.size], s.hit[: shifted.size]
    edges = thresholds(ties)[E8M0_BIAS]
    np.greater_equal(shifted, edges[0], out=code.view(np.bool_))
    for edge in edges[1:4]:
        np.greater_equal(shifted, edge, out=hit)
        np.add(code, hit.view(np.uint8), out=code)
    upper = code if twice is None else twice
    np.greater_equal(shifted, edges[4], out=hit if twice is None else twice.view(np.bool_))
    if twice is None:
        np.add(code, hit.view(np.uint8), out=code)
    for edge in edges[5:]:
        np.greater_equal(shifted, edge, out=hit)
        np.add(upper, hit.view(np.uint8), out=upper)
    if twice is not None:
        np.add(code, twice, out=code)
        np.add(twice, code, out=twice)
        np.add(twice, hit.view(np.uint8), out=twice)
        np.add(twice, hit.view(np.uint8), out=twice)
    return code


def mend(code: Any, magnitude: Any, amax: Any, scale: Any, rule: ScaleRule, ties: Ties, tiny: Tiny) -> bool:
    """Recode, in group arrays, the nonzero blocks whose scale is too small for shifting. True if there were any.

    `code` and `magnitude` are `[k, e, c]`, `amax` and `scale` `[k, c]`.
    """
    if scale.min(initial=E8M0_NAN) >= _LINEAR:
        return False
    k, c = np.nonzero((scale < _LINEAR) & (amax > 0))
    if not k.size:
        return False
    unit = scale[k, c]
    if tiny == "torchao":
        unit[unit == 0] = E8M0_BIAS if rule == "rceil" else 1
    blocks, edges = magnitude[k, :, c], thresholds(ties)[unit]
    codes = np.zeros(blocks.shape, np.uint8)
    for i in range(7):
        codes += blocks >= edges[:, i : i + 1]
    code[k, :, c] = codes
    return True


def add_signs(code: Any, bits: Any, zero: Zero, s: Scratch) -> None:
    """Set bit 3 of flat `code` where the pattern is negative."""
    hit = s.hit[: code.size]
    np.less(bits.view(np.int16), 0, out=hit)
    if zero == "positive":
        np.logical_and(hit, code, out=hit)
    sign = hit.view(np.uint8)
    np.multiply(sign, 8, out=sign)  # NumPy shifts bytes one at a time, but multiplies them in SIMD
    np.bitwise_or(code, sign, out=code)
