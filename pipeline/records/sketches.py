"""Quantiles of a stream in memory that does not grow with it: DDSketch (Masson, Rim, Lee, VLDB 2019), by Datadog.

Every quantile is within `accuracy` of the true one, relative to it, whatever the values are and in whatever order. That
holds always: stores are not collapsed, so there are at most as many bins as doubles have powers of γ, 71,000 of each
sign for 1 %; metrics have some hundreds. Only what is nearer to zero than the least normal double counts as zero. And
it draws no lots: equal values give equal sketches, in whatever order they came and over however many processes, which a
registry that is rebuilt has to. `plugins.bench.sketches` holds it beside KLL and REQ of DataSketches, whose bound is of
ranks, and met with a probability.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, SourceError

ACCURACY = 0.01
LEAST, MOST = 1e-4, 0.5  # of what `accuracy` may be: 7 million bins at most, and a sketch that says little


class Sketch:
    """Values, of which quantiles are asked; finite ones."""

    def __init__(self, accuracy: float = ACCURACY):
        """
        Args:
            accuracy: most error of a quantile, relative to it.

        Raises:
            ConfigError: it is no such share.
        """
        from ddsketch.mapping import LogarithmicMapping
        from ddsketch.store import DenseStore

        if not LEAST <= accuracy <= MOST:
            raise ConfigError(f"accuracy={accuracy}: {LEAST:g} to {MOST:g} is allowed, as a share of the value")
        self.accuracy = accuracy
        self._mapping = LogarithmicMapping(accuracy)
        self._positive, self._negative, self._zeros = DenseStore(), DenseStore(), 0

    @property
    def count(self) -> int:
        return int(self._positive.count + self._negative.count) + self._zeros

    def add(self, values: NDArray[np.float64]) -> None:
        """Take finite values: those of a bin together, where the library takes one after another."""
        least = self._mapping.min_possible
        per_octave = math.log(2) / math.log1p(2 * self.accuracy / (1 - self.accuracy))  # bins, as the mapping has them
        for store, part in ((self._positive, values[values > least]), (self._negative, -values[values < -least])):
            if part.size:
                keys = np.ceil(np.log2(part) * per_octave).astype(np.int64)
                first = int(keys.min())
                counts = np.bincount(keys - first)
                for i in np.flatnonzero(counts).tolist():
                    store.add(first + i, float(counts[i]))
        self._zeros += int(np.count_nonzero(np.abs(values) <= least))

    def quantile(self, q: float) -> float | None:
        """The value of rank `q` (0 … 1), within the accuracy; None: there are no values."""
        from ddsketch.ddsketch import BaseDDSketch

        whole = BaseDDSketch(self._mapping, self._positive, self._negative, float(self._zeros))
        found = whole.get_quantile_value(q)
        return None if found is None else float(found)

    def merge(self, other: "Sketch") -> None:
        """Take the values of another; exact: as if this one had seen them.

        Raises:
            ConfigError: it has another accuracy.
        """
        if other.accuracy != self.accuracy:
            raise ConfigError(f"sketches of accuracy {self.accuracy:g} and {other.accuracy:g} cannot be merged")
        self._positive.merge(other._positive)
        self._negative.merge(other._negative)
        self._zeros += other._zeros

    def to_json(self) -> dict[str, Any]:
        """As plain data: bins with their counts, ascending; equal for equal values."""
        positive, negative = _bins(self._positive), _bins(self._negative)
        return {"accuracy": self.accuracy, "zeros": self._zeros, "positive": positive, "negative": negative}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Sketch":
        """Raises SourceError when it is none."""
        try:
            found = cls(float(value["accuracy"]))
            found._zeros = int(value["zeros"])
            for store, bins in ((found._positive, value["positive"]), (found._negative, value["negative"])):
                for key, count in bins:
                    store.add(int(key), float(count))
        except (KeyError, TypeError, ValueError, ConfigError) as why:
            raise SourceError(f"a summary has no sketch of ours: {why!r}") from None
        return found


def _bins(store: Any) -> list[list[int]]:
    return [[i + store.offset, int(n)] for i, n in enumerate(store.bins) if n]
