"""AutoAWQ's words: eight columns of 4 bits each, in the order in which its kernel takes them apart."""

from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar

import numpy as np

from pipeline.tensors.steps import Box, Grain

COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight, the one in each nibble of a word, the lowest first
WIDE = len(COLUMNS)


@dataclass(frozen=True, slots=True)
class Nibbles:
    """One code a byte: uint8 [out, in / 2] of packed 4-bit codes, the first in the low nibble ↔ uint8 [out, in]."""

    dtype: ClassVar[None] = None

    def box(self, box: Box) -> Box:
        rows, last = box
        return rows, slice(2 * last.start, 2 * last.stop)

    def pack(self, value: Any) -> Any:
        codes = np.ascontiguousarray(value)
        return np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), 2 * codes.shape[1])

    def unpack(self, array: Any) -> Any:
        return np.ascontiguousarray(array[:, ::2] | (array[:, 1::2] << np.uint8(4)))

    def grain(self, inner: Grain) -> Grain:
        return inner[0], inner[1] // gcd(inner[1], 2)


@dataclass(frozen=True, slots=True)
class AwqWords:
    """Values of 4 bits in words of eight columns: uint8 [n, out] ↔ I32 [n, out / 8]."""

    dtype: ClassVar[str] = "I32"

    def box(self, box: Box) -> Box:
        """
        Raises:
            IndexError: the columns cut a word.
        """
        rows, last = box
        if last.start % WIDE or last.stop % WIDE:
            raise IndexError(f"columns {last.start}:{last.stop} cut a word of {WIDE}")
        return rows, slice(last.start // WIDE, last.stop // WIDE)

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
