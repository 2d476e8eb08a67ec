"""PruneFraction: the smallest part of every tensor becomes zero.

Where to cut depends on a whole tensor. So the stage has a `plan`, which promises what comes out, and `run` is called in
the graph: it reads one tensor at a time, keeps one number for each, and hands on a lazy view as other stages do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from acme_prune.small import prune
from pipeline.errors import ConfigError, did_you_mean
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec
from pipeline.tensors.store import Index
from pipeline.tensors.views import MappedStore

WIDE_NBYTES = 12  # a value as float32, its magnitude, and what `np.partition` makes of that


@dataclass(frozen=True)
class PruneFraction:
    """Zero the given fraction of each tensor's weights, those of least magnitude.

    Attributes:
        fraction: from 0, nothing, to 1, everything.
        select: which tensors, as a shell pattern; packed tensors and integers are left alone.
    """

    fraction: float
    select: str = "*.weight"

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction {self.fraction}: between 0 and 1 is needed")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        """The same tensors, for which the largest is held whole; a pattern without a match is found before reading."""
        chosen = [checkpoint.store.specs[name] for name in self._chosen(checkpoint)]
        if not chosen:
            hint = did_you_mean(self.select, checkpoint.store.specs)
            raise ConfigError(f"select={self.select!r} matches no tensor of floats{hint}")
        largest = max(spec.nbytes + WIDE_NBYTES * spec.size for spec in chosen)
        return Prediction(checkpoint, Footprint(host_nbytes=largest, moved_nbytes=sum(spec.nbytes for spec in chosen)))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        thresholds = {}
        for name in self._chosen(checkpoint):
            magnitudes = np.abs(checkpoint.store.read(name).astype(np.float32)).reshape(-1)
            cut = round(self.fraction * magnitudes.size)
            kept = magnitudes.size - cut
            thresholds[name] = float(np.partition(magnitudes, cut)[cut]) if cut and kept else np.inf if cut else 0.0
        return replace(checkpoint, store=MappedStore(checkpoint.store, Below(thresholds)))

    def _chosen(self, checkpoint: Checkpoint) -> list[str]:
        specs = checkpoint.store.specs.items()
        return [
            n
            for n, s in specs
            if fnmatchcase(n, self.select) and s.scheme is None and s.dtype in FLOAT_DTYPES and s.size
        ]


@dataclass(frozen=True, slots=True)
class Below:
    """The view: zero below each tensor's own threshold."""

    thresholds: Mapping[str, float]

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return spec

    def apply(self, name: str, value: Any, index: Index) -> Any:
        return prune(value, self.thresholds[name]) if name in self.thresholds else value
