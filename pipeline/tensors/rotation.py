"""Orthogonal matrices that channels are rotated by, and which tensors are so that models have a part in it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np


class Rotation(Protocol):
    """A plugin node under `calibrate.rotate`, or of `activations_rotate`."""

    def __hash__(self) -> int:
        """Of what programs that rotate have as a constant."""
        ...

    @property
    def block(self) -> int | None:
        """How many channels are rotated together, each such block by itself; None: all."""
        ...

    def problem(self, width: int) -> str | None:
        """Why vectors of `width` cannot be rotated; None: they can."""
        ...

    def apply(self, x: Any) -> Any:
        """fp32 `[..., width]` times an orthogonal matrix, the same for every width at every call."""
        ...


@dataclass(frozen=True, slots=True)
class Turned:
    """Matrices whose columns are rotated in blocks, so that models rotate what they multiply by them, too.

    Attributes:
        rotation: which, in blocks.
        names: of these matrices.
    """

    rotation: Rotation
    names: frozenset[str]


@lru_cache(maxsize=64)
def blocks(rotation: Rotation, width: int) -> Any:
    """The matrices of `rotation` that blocks of vectors of `width` are multiplied by, fp32 [width / block, block,
    block]."""
    size = rotation.block
    assert size is not None
    each = np.tile(np.eye(size, dtype=np.float32), width // size)
    return rotation.apply(each).reshape(size, -1, size).swapaxes(0, 1)
