"""How a thread makes of scales what two bfloat16 of codes are multiplied by, and multiplies them: rounded as the
definition rounds a code times its scale.

A power of two, an E4M3 under E2M1, and a bfloat16 are one factor: a product is rounded once. Where a scale times what
codes lack (`Element.power`) is no bfloat16, powers above 2^127 are multiplied with afterwards: those of E8M0, which no
published model has, in a branch, and of E4M3 2^8 of all, once a row (`later`). Scales of more bits than bfloat16's
eight are the sum of two of it: a code times the second, rounded, is added to its product with the first, which is
rounded then. Of F16 nothing is left out, of float32 what lies 2^-17 below it.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from plugins.kernels.codecs.mx import E8M0_NAN
from plugins.kernels.mosaic_gpu import words
from plugins.kernels.mosaic_gpu.elements import Element
from plugins.kernels.mosaic_gpu.words import BOTH, INFINITY, NAN, arith, chosen, multiplied, number, power, twice

NBYTES: Final = {"e8m0": 1, "e4m3": 1, "bf16": 2, "f16": 2, "f32": 4}
MOST_OF_E4M3: Final = 118  # 2^118 times 448 is a bfloat16, 2^119 times it is none


def later(element: Element, kind: str | None) -> Any:
    """What products are multiplied by afterwards."""
    return np.float32(2.0 ** (element.power - MOST_OF_E4M3 if kind == "e4m3" else 0))


def scaled(element: Element, kind: str | None, pairs: list[Any], scales: Sequence[Any]) -> list[Any]:
    """`pairs`, as many of each scale.

    Args:
        scales: a word of what each is in memory.
    """
    if kind in ("e8m0", "e4m3"):
        of = [_e4m3(word) if kind == "e4m3" else _e8m0(word, element.power) for word in scales]
        pairs = [multiplied(pair, of[n * len(of) // len(pairs)]) for n, pair in enumerate(pairs)]
        return _enlarged(element.power, pairs, scales) if kind == "e8m0" and element.power > 0 else pairs
    if element.power:
        pairs = [multiplied(pair, power(element.power)) for pair in pairs]
    if kind is None:
        return pairs
    two = [_factors(kind, word) for word in scales]
    found = []
    for n, pair in enumerate(pairs):
        high, low = two[n * len(two) // len(pairs)]
        found.append(multiplied(pair, high) if low is None else words.added_product(pair, high, multiplied(pair, low)))
    return found


def _factors(kind: str, word: Any) -> tuple[Any, Any]:
    """Two bfloat16 each, alike, whose sum is a scale; None where the first is all of it."""
    if kind == "bf16":
        return twice(word), None
    whole = words.of_float16(word, upper=False) if kind == "f16" else word
    high = words.rounded(whole)
    left = words.less_by_float32(whole, arith.andi(high, number(0xFFFF0000)))
    finite = arith.cmpi(arith.CmpIPredicate.ne, arith.andi(high, number(INFINITY)), number(INFINITY))
    return high, arith.select(finite, words.rounded(left), number(0))


def _most(lacking: int) -> int:
    """The largest E8M0 byte whose power, times 2^`lacking`, is a bfloat16."""
    return 254 - max(0, lacking)


def _e8m0(byte: Any, lacking: int) -> Any:
    """2^`lacking` times the power of two of an E8M0 byte, and at most 2^127."""
    if lacking > 0:
        exponent = arith.addi(arith.minsi(byte, number(_most(lacking))), number(lacking))
        return twice(chosen(byte, E8M0_NAN, number(NAN), arith.shli(exponent, number(7))))
    two = twice(chosen(byte, E8M0_NAN, number(NAN), arith.shli(byte, number(7))))
    two = chosen(byte, 0, number(0x0040 * BOTH), two)  # 2^-127, which is subnormal
    return multiplied(two, power(lacking)) if lacking else two


def _enlarged(lacking: int, pairs: list[Any], scales: Sequence[Any]) -> list[Any]:
    """`pairs`, as many of each scale, with what `_e8m0` leaves out, if any thread of a warp has such a scale."""
    most = _most(lacking)
    large = [words.above(byte, most) for byte in scales]

    def more() -> list[Any]:
        # NaN is a product already, and stays one.
        factors = [
            twice(arith.select(is_large, arith.shli(arith.subi(byte, number(most - 127)), number(7)), number(127 << 7)))
            for is_large, byte in zip(large, scales, strict=True)
        ]
        return [multiplied(pair, factors[n * len(factors) // len(pairs)]) for n, pair in enumerate(pairs)]

    return words.if_any(large, len(pairs), more, lambda: pairs)


def _e4m3(byte: Any) -> Any:
    """Two bfloat16, alike: 2^118 times what an E4M3 byte says."""
    # Of E4M3 as of E2M1: its bits in a bfloat16's place are 2^-120 times what they say, subnormals too.
    magnitude = twice(arith.shli(arith.andi(byte, number(127)), number(4)))
    magnitude = multiplied(multiplied(magnitude, power(119)), power(119))
    two = arith.ori(magnitude, twice(arith.shli(arith.andi(byte, number(128)), number(8))))
    for value in (127, 255):
        two = chosen(byte, value, number(NAN * BOTH), two)
    return two
