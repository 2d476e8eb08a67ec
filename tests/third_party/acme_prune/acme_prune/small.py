"""PruneSmall: what is smaller than a threshold becomes zero."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pipeline.stage import Checkpoint, Context


@dataclass(frozen=True)
class PruneSmall:
    """Zero every |w| below the threshold. Elementwise, so it runs in as many tasks as the writer likes.

    Attributes:
        threshold: smallest magnitude that stays.
        select: which tensors, as a shell pattern.
    """

    threshold: float
    select: str = "*.weight"

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise ValueError(f"threshold {self.threshold}: 0 or more is needed")

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint.map(partial(prune, threshold=self.threshold), self.select)


def prune(x: Any, threshold: float) -> Any:
    """`x` with 0 where |x| < threshold, both as float32; NaN stays."""
    return np.where(np.abs(x.astype(np.float32)) < np.float32(threshold), np.zeros((), x.dtype), x)
