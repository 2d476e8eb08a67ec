"""Scales of inputs by what calibration has seen of them: the largest value, or one that few are larger than."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.calibration import LinearStatistics, Statistics
from pipeline.errors import StageError
from pipeline.method import Method
from pipeline.tensors.inputs import InputScales, as_one


@dataclass(frozen=True)
class Calibrated(Mapping[str, float]):
    """Tensor → scale of its inputs, made when asked.

    Attributes:
        statistics: of inputs.
        names: the tensors that have any.
        method: what inputs are rounded to: makes a scale of a largest value.
        quantile: the share of sampled values that lie within; None: all that were seen.
    """

    statistics: Statistics
    names: tuple[str, ...]
    method: Method
    quantile: float | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> float:
        """NaN in a plan.

        Raises:
            KeyError: nothing is known of the inputs of this tensor.
            StageError: a quantile is wanted, and no inputs were kept.
        """
        if name not in self.names:
            raise KeyError(name)
        found = self.statistics.of(name)
        return float("nan") if found is None else scale(self.method, self._most(name, found))

    def _most(self, name: str, found: LinearStatistics) -> Any:
        if self.quantile is None:
            return found.absmax.max()
        if found.sample is None:
            text = "no inputs were kept, of which calibrate.quantile could be taken; calibrate.samples=256 keeps some"
            raise StageError(f"{name}: {text}")
        tokens = np.asarray(found.tokens)
        rows = [found.sample(*expert) for expert in np.ndindex(*tokens.shape) if tokens[expert]]
        sizes = np.abs(np.concatenate(rows)) if rows else np.zeros(1, np.float32)
        return min(np.float32(np.quantile(sizes, self.quantile)), found.absmax.max())


def calibrated(
    statistics: Statistics, names: tuple[str, ...], method: Method, quantile: float | None = None
) -> InputScales:
    """
    Raises:
        ConfigError: inputs of this method have scales of blocks alone.
    """
    assert method.scheme is not None
    known = tuple(name for name in names if name in statistics)
    return InputScales(as_one(method.scheme), Calibrated(statistics, known, method, quantile))


def scale(method: Method, most: Any) -> float:
    """What `method` makes the scale of a row, or the second-level scale of a matrix, whose largest value is `most`; of
    nothing but zeros as if it were 1."""
    probe = np.zeros((1, 16), np.float32)
    probe[0, 0] = most if most > 0 else 1
    q = method.encode(probe)
    return float(np.asarray(q.scales if q.second is None else q.second, np.float32).reshape(-1)[0])
