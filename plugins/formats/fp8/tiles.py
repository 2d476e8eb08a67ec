"""Scales of tiles of which the last in a row is cut."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline.tensors.steps import Box, Grain


@dataclass(frozen=True, slots=True)
class CutTiles:
    """The scale of each block of columns [down, count] ↔ that of each tile [down, ⌈count / times⌉], whose blocks have
    the same one: schemes know no cut tiles, but narrower ones of which as many as there are columns are whole.

    Attributes:
        times: blocks that a whole tile has.
        count: blocks of a row.
    """

    times: int
    count: int
    dtype: ClassVar[None] = None

    def box(self, box: Box) -> Box:
        """
        Raises:
            IndexError: it is not of whole rows.
        """
        rows, across = box
        if (across.start, across.stop) != (0, self.count):
            raise IndexError(f"{across.start}:{across.stop} of {self.count} blocks, whose last tile is cut")
        return rows, slice(0, -(-self.count // self.times))

    def pack(self, value: Any) -> Any:
        return value[..., :: self.times]

    def unpack(self, array: Any) -> Any:
        return np.repeat(array, self.times, axis=-1)[..., : self.count]

    def grain(self, inner: Grain) -> Grain:
        return inner[0], self.count
