"""AutoAWQ's words: eight columns of 4 bits each, in the order in which its kernel takes them apart."""

from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar

import numpy as np

from pipeline.tensors.steps import Box, Grain

COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight, the one in each nibble of a word, the lowest first
WIDE = len(COLUMNS)


@dataclass(frozen=True, slots=True)
class AwqCodes:
    """4-bit codes in words of eight rows: uint8 [out, in / 2], the first of two in the low nibble ↔ I32 [out / 8, in].

    Codes of a byte lie in two words, so both words' low nibbles make bytes, and both high ones: no code lies alone on
    the way.
    """

    dtype: ClassVar[str] = "I32"

    def box(self, box: Box) -> Box:
        """
        Raises:
            IndexError: the rows cut a word.
        """
        rows, last = box
        return _words(rows), slice(2 * last.start, 2 * last.stop)

    def pack(self, value: Any) -> Any:
        rows = np.asarray(value).reshape(len(value) // WIDE, WIDE, -1)
        low, high = (rows[:, nibbles].transpose(2, 0, 1) for nibbles in (COLUMNS[::2], COLUMNS[1::2]))
        nbytes = np.empty((2 * len(low), *low.shape[1:]), np.uint8)
        nbytes[::2] = (low & 15) | (high << np.uint8(4))
        nbytes[1::2] = (low >> 4) | (high & 0xF0)
        return nbytes.reshape(len(nbytes), -1).view("<i4").T

    def unpack(self, array: Any) -> Any:
        nbytes = np.ascontiguousarray(array.T).view(np.uint8).reshape(array.shape[1], -1, WIDE // 2)
        even, odd = nbytes[::2], nbytes[1::2]
        low, high = (even & 15) | (odd << np.uint8(4)), (even >> 4) | (odd & 0xF0)
        rows = np.empty((nbytes.shape[1], WIDE, len(even)), np.uint8)
        for i, (first, second) in enumerate(zip(COLUMNS[::2], COLUMNS[1::2], strict=True)):
            rows[:, first], rows[:, second] = low[..., i].T, high[..., i].T
        return rows.reshape(-1, len(even))

    def grain(self, inner: Grain) -> Grain:
        return inner[0] * WIDE, inner[1] // gcd(inner[1], 2)


@dataclass(frozen=True, slots=True)
class AwqWords:
    """Values of 4 bits, each in a byte, in words of eight columns: uint8 [n, out] ↔ I32 [n, out / 8]."""

    dtype: ClassVar[str] = "I32"

    def box(self, box: Box) -> Box:
        """
        Raises:
            IndexError: the columns cut a word.
        """
        rows, last = box
        return rows, _words(last)

    def pack(self, value: Any) -> Any:
        columns = np.ascontiguousarray(value).reshape(len(value), -1, WIDE)[..., COLUMNS]
        nbytes = columns[..., ::2] | (columns[..., 1::2] << np.uint8(4))
        return np.ascontiguousarray(nbytes).reshape(len(value), -1).view("<i4")

    def unpack(self, array: Any) -> Any:
        nbytes = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1, WIDE // 2)
        columns = np.empty((*nbytes.shape[:2], WIDE), np.uint8)
        columns[..., COLUMNS[::2]] = nbytes & 15
        columns[..., COLUMNS[1::2]] = nbytes >> 4
        return columns.reshape(len(array), -1)

    def grain(self, inner: Grain) -> Grain:
        return inner[0], inner[1] * WIDE


def _words(of: slice) -> slice:
    if of.start % WIDE or of.stop % WIDE:
        raise IndexError(f"{of.start}:{of.stop} cuts a word of {WIDE} outputs")
    return slice(of.start // WIDE, of.stop // WIDE)
