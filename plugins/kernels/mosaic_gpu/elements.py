"""How a thread makes of codes, several in a 32-bit word, two bfloat16 at a time: a few lines for each element.

Pair n of a word has code n of its lower half and that of its upper half, so that one shift and one mask are of both.

E2M1 is what bfloat16's exponents have below 2^-124, and its subnormal is bfloat16's: with sign, exponent and mantissa
at their places in a word a code is 2^-126 times what it says. Integers are the last bits of a bfloat16 between 128 and
255, of which 128 is taken away; one of eight bits, whose first bit is no place there, is 128 and the other seven, less
128 or 256 by that bit. Both are exact. FP8 the device makes float16 itself, NaN too; as float32 it is a bfloat16 and
zeros. Counted on sm_90a: docs/kernels.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from plugins.kernels.mosaic_gpu import words
from plugins.kernels.mosaic_gpu.words import BOTH, arith, masked, number, shifted, twice

ONES: Final = 128  # from it on a bfloat16 of that exponent, 0x4300, counts ones
COUNTS: Final = 0x4300


@dataclass(frozen=True)
class Element:
    """How codes become values.

    Attributes:
        bits: of a code.
        pairs: of a word, one for each code of its half, 2^-`power` times what codes say less `offset`.
    """

    bits: int
    pairs: Callable[[Any], list[Any]]
    power: int = 0
    offset: int = 0


def _e2m1(word: Any) -> list[Any]:
    found = []
    for n in range(4):
        sign = masked(shifted(word, 12 - 4 * n), 0x8000)
        found.append(arith.ori(sign, masked(shifted(word, 6 - 4 * n), 0x01C0)))
    return found


def _counted(word: Any, flipped: int) -> list[Any]:
    return [arith.xori(masked(shifted(word, -4 * n), 0x000F), number((COUNTS | flipped) * BOTH)) for n in range(4)]


def _int4(word: Any) -> list[Any]:
    from_least = 8  # which makes of two's complement what counts from -8
    return [words.less(ones, number((COUNTS | from_least) * BOTH)) for ones in _counted(word, from_least)]


def _eight_bits(word: Any, signed: bool) -> list[Any]:
    flipped = 0 if signed else 0x80
    found = []
    for n in range(2):
        half = shifted(word, -8 * n)
        ones = arith.ori(masked(half, 0x007F), number(COUNTS * BOTH))
        first = arith.xori(masked(half, 0x0080), number((COUNTS | flipped) * BOTH))
        found.append(words.less(ones, first))
    return found


def _float8(word: Any, kind: str) -> list[Any]:
    both = [words.of_float8(kind, word, upper=upper) for upper in (False, True)]
    return [words.highs(*(words.of_float16(two, upper=upper) for two in both)) for upper in (False, True)]


ELEMENTS: Final = {
    "e2m1": Element(4, _e2m1, power=126),
    "int4": Element(4, _int4),
    "uint4": Element(4, partial(_counted, flipped=0), offset=-ONES),
    "int8": Element(8, partial(_eight_bits, signed=True)),
    "uint8": Element(8, partial(_eight_bits, signed=False), offset=ONES),
    "mxint8": Element(8, partial(_eight_bits, signed=True), power=-6),
    "e4m3": Element(8, partial(_float8, kind="e4m3")),
    "e5m2": Element(8, partial(_float8, kind="e5m2")),
}


def without_zeros(element: Element, pairs: list[Any], zeros: list[Any]) -> list[Any]:
    """Pairs of what codes say less their zero points, as many of each of `zeros`, which are bytes."""

    def less(them: list[Any], each: list[Any]) -> list[Any]:
        return [words.less(pair, each[n * len(each) // len(them)]) for n, pair in enumerate(them)]

    less_ones = [_eight_bits(twice(byte), signed=False)[0] for byte in zeros]
    if element.offset == ONES:
        return less(pairs, less_ones)

    def of_large() -> list[Any]:
        ones, minus_ones = number(COUNTS * BOTH), number((COUNTS | 0x8000) * BOTH)
        return less(less(pairs, [ones]), [words.less(zero, minus_ones) for zero in less_ones])

    # 128 more than a zero point is a bfloat16 if that is less than 128, and codes of four bits have none of more.
    large = [words.above(byte, ONES - 1) for byte in zeros]
    return words.if_any(
        large, len(pairs), of_large, lambda: less(pairs, [twice(arith.ori(byte, number(COUNTS))) for byte in zeros])
    )
