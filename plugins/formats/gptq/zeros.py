"""Zero points that lie one lower than they are."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline.tensors.steps import Box, Grain


@dataclass(frozen=True, slots=True)
class OneLess:
    """uint8 zero points ↔ one less, of as many bits: 0 lies there as the largest.

    Attributes:
        bits: of one.
    """

    bits: int
    dtype: ClassVar[None] = None

    def box(self, box: Box) -> Box:
        return box

    def pack(self, value: Any) -> Any:
        return (np.asarray(value) - np.uint8(1)) & self._mask

    def unpack(self, array: Any) -> Any:
        return (array + np.uint8(1)) & self._mask

    def grain(self, inner: Grain) -> Grain:
        return inner

    @property
    def _mask(self) -> Any:
        return np.uint8((1 << self.bits) - 1)
