"""Whether what a converter wrote is what it was to convert: it is opened, and some rows of every tensor are decoded."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import WeightmillError, short, some
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.blocks import Box, common, grain_of, outward
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import TensorStore

# Bits of a code → what packing may change, as a share of the values' size (root of the mean of squares). Normal values
# rounded to the nearest in blocks of 32 with one scale lose a third to a half of it, and rows of a thousand with one
# scale nearly all; a scale that is twice too large, codes in another order or zeros are above 0.5.
MOST = ((8, 0.08), (6, 0.15), (5, 0.2), (4, 0.3), (3, 0.55), (0, 0.9))
PLAIN = 2.0**-7  # of plain values in another dtype: a rounding to bfloat16, which is the coarsest
WHY = 300  # characters of what went wrong


@dataclass(frozen=True)
class Right:
    """What every converter is held to.

    Attributes:
        source: what is converted.
        opener: opens what was written.
        unpack: decodes both.
    """

    source: TensorStore
    opener: Callable[[Path], Checkpoint]
    unpack: Kernel

    def wrong(self, place: Path) -> str:
        """Why what lies below `place` is wrong; empty: it is right."""
        try:
            written = self.opener(_folder(place)).store
        except WeightmillError as fault:
            return short(f"what it wrote cannot be opened: {fault}", WHY)
        if lacking := [name for name in self.source.specs if name not in written.specs]:
            return f"what it wrote lacks {some(lacking)}"
        wrong = {name: why for name in self.source.specs if (why := self._tensor(written, name))}
        first = next(iter(wrong), "")
        return f"{len(wrong)} of {len(self.source.specs)} tensors are wrong: {first} {wrong[first]}" if wrong else ""

    def _tensor(self, written: TensorStore, name: str) -> str:
        was, now = self.source.specs[name], written.specs[name]
        if was.shape != now.shape:
            return f"has the shape {list(now.shape)}, and {list(was.shape)} in the source"
        for box in _ends(was.shape, common(grain_of(self.source, name), grain_of(written, name))):
            before, after = (self._values(store, name, box) for store in (self.source, written))
            if was == now and np.array_equal(before, after, equal_nan=True):
                continue
            size = float(np.sqrt(np.mean(before**2)))
            off = float(np.sqrt(np.mean((after - before) ** 2))) / max(size, 1e-30)
            most = 0.0 if was == now else _most(now)
            if not off <= most:
                allowed = f"{now.encoding} may cost {most:.2g}" if most else "is to be as it was"
                return f"is off by {off:.2g} of its size, and {allowed}"
        return ""

    def _values(self, store: TensorStore, name: str, box: Box) -> Any:
        value = store.read(name, box)
        plain = self.unpack(value, "F32") if isinstance(value, QTensor) else value
        return np.asarray(plain).astype(np.float64)


def _most(spec: TensorSpec) -> float:
    if spec.scheme is None:
        return PLAIN
    columns, nbytes = spec.scheme.period
    return next(most for bits, most in MOST if 8 * nbytes / columns >= bits)


def _ends(shape: tuple[int, ...], grain: tuple[int, ...]) -> Iterator[Box]:
    """The first rows and the last ones that can be read by themselves: of a stack, of its first and its last matrix."""
    whole = slice(0, shape[-1]) if shape else None
    if whole is None or 0 in shape:
        return
    for first in (True, False):
        at = tuple(slice(0, 1) if first else slice(n - 1, n) for n in shape[:-1])
        yield outward((*at, whole), shape, grain)


def _folder(place: Path) -> Path:
    """What was written there: the only folder or file in it, else the folder itself."""
    inside = [*place.iterdir()]
    return inside[0] if len(inside) == 1 else place
