"""Made-up documents to train toys on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tests.cases import trained

LENGTH = 12


@dataclass
class Rows:
    """A `pipeline.training.Examples`.

    Attributes:
        broken: example → factor on its weights.
        asked: sizes of the batches so far.
        dies_after: so many of them.
    """

    count: int = 20
    seed: int = 0
    broken: Mapping[int, float] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    dies_after: int | None = None

    def __len__(self) -> int:
        return self.count

    @property
    def specs(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {n: (a.shape[2:], a.dtype.name) for n, a in self._all.items()}

    @property
    def _all(self) -> dict[str, np.ndarray]:
        return trained.batches(1, self.count, LENGTH, self.seed)

    def batch(self, at: np.ndarray) -> dict[str, np.ndarray]:
        self.asked.append(len(at))
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            raise RuntimeError("killed")
        found = {n: a[0][at] for n, a in self._all.items()}
        for row, value in self.broken.items():
            found["weights"][at == row] *= value
        return found
