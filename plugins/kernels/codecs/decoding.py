"""Packed codes as float32, in place and mostly in SIMD: what elements are worth before their scale.

Integers are converted. Pairs of 4- and 6-bit codes are one look-up, of two values at once. An 8-bit float is a float32
with fewer bits, but for subnormals, infinities and NaN, which are few and looked up.
"""

from functools import cache
from typing import Any

import numpy as np

from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import FLOATS, Element


def decode(e: Element, packed: Any, out: Any) -> Any:
    """`out`, contiguous float32 `[rows, n]`, filled with the values of codes `[rows, n * bits / 8]`."""
    if e.bits == 4:
        np.take(_pairs(e), packed, out=out.view(np.uint64), mode="clip")
    elif e.bits == 6:
        index = np.empty((*packed.shape[:-1], packed.shape[-1] * 2 // 3), np.uint16)
        first, second, third = (packed[..., k::3].astype(np.uint16) for k in range(3))
        index[..., 0::2] = first | (second & 15) << 8
        index[..., 1::2] = second >> 4 | third << 4
        np.take(_pairs(e), index, out=out.view(np.uint64), mode="clip")
    elif e.family == "float":
        _small_floats(e, packed, out)
    else:
        code = bits.unpack(packed, e.bits)
        if e.family == "fixed":
            code = code.view(np.int8) if e.bits == 8 else (code ^ (e.mask // 2 + 1)).view(np.int8) - (e.mask // 2 + 1)
        np.copyto(out, code)
        if e.unit != 1:
            np.multiply(out, np.float32(e.unit), out=out)
    return out


@cache
def _pairs(e: Element) -> Any:
    """uint64 `[2 ** (2 * bits)]`: patterns of both float32 values of neighbouring codes."""
    both = np.arange(1 << (2 * e.bits))
    return np.stack([e.values[both & e.mask], e.values[both >> e.bits]], axis=-1).view(np.uint64).reshape(-1)


def _small_floats(e: Element, codes: Any, out: Any) -> None:
    mantissa, bias, top = FLOATS[e.name]
    whole = out.view(np.int32)
    np.copyto(whole, codes.view(np.int8))  # the sign fills the upper bits
    np.left_shift(whole, 23 - mantissa, out=whole)
    np.bitwise_and(whole, np.int32(-(1 << 31)) | np.int32(0x7F << (23 - mantissa)), out=whole)
    np.add(whole, np.int32((127 - bias) << 23), out=whole)
    magnitude = codes & 0x7F
    odd = np.flatnonzero((magnitude < 1 << mantissa) | (magnitude > top))
    if odd.size > codes.size // 4:
        np.take(e.values, codes, out=out, mode="clip")
    else:
        out.reshape(-1)[odd] = e.values[codes.reshape(-1)[odd]]
