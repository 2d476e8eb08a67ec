"""What millions of points come to, in one pass and in memory that does not grow with them: number, mean, least, most,
last, and quantiles within a bound.

A summary is plain data (`to_json`), knows how far each file has been read, and goes on from there when it has grown.
Equal files give equal summaries, whether read at once or in parts.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import SourceError
from pipeline.figures import Better
from pipeline.records.blocks import Block
from pipeline.records.columns import Column, Series, columns
from pipeline.records.points import METRIC, Position, Type, blocks, files, process_of, series_of
from pipeline.records.sketches import ACCURACY, Sketch


@dataclass(slots=True)
class Summary:
    """All values of a metric.

    Attributes:
        count: of finite values; `not_finite` of the others, which nothing else counts.
        first: of the finite ones; `sum` and `squares` are of their differences from it, added one after another, so
            that it does not matter in how many parts they came.
        last: the latest value, whatever it is, at `step` and `time`.
        process: whose; empty: the first's.
    """

    kind: str
    name: str
    member: int | None = None
    process: str = ""
    unit: str = ""
    better: Better = ""
    count: int = 0
    not_finite: int = 0
    first: float = 0.0
    sum: float = 0.0
    squares: float = 0.0
    min: float = math.inf
    max: float = -math.inf
    last: float = math.nan
    step: int | None = None
    time: float | None = None
    sketch: Sketch = field(default_factory=Sketch)

    @property
    def series(self) -> str:
        return series_of(self.kind, self.name, self.member)

    @property
    def mean(self) -> float | None:
        """Of the finite values; None: there are none."""
        return self.first + self.sum / self.count if self.count else None

    @property
    def deviation(self) -> float | None:
        """Of the finite values, as of a sample; None: there are fewer than two, or it is not finite."""
        if self.count < 2:
            return None
        found = max(0.0, self.squares - self.sum * self.sum / self.count) / (self.count - 1)
        return math.sqrt(found) if math.isfinite(found) else None

    def quantile(self, q: float) -> float | None:
        """Within the sketch's accuracy, and never beyond the least and the most; None: nothing is finite."""
        found = self.sketch.quantile(q)
        return None if found is None else min(max(found, self.min), self.max)

    def add(self, values: NDArray[np.float64]) -> None:
        """Take values, in the order in which they came."""
        finite = values[np.isfinite(values)]
        self.not_finite += values.size - finite.size
        if values.size:
            self.last = float(values[-1])
        if not finite.size:
            return
        if not self.count:
            self.first = float(finite[0])
        with np.errstate(over="ignore", invalid="ignore"):
            apart = finite - self.first
            self.sum = float(np.add.accumulate(np.concatenate(([self.sum], apart)))[-1])
            self.squares = float(np.add.accumulate(np.concatenate(([self.squares], apart * apart)))[-1])
        self.count += finite.size
        self.min, self.max = min(self.min, float(finite.min())), max(self.max, float(finite.max()))
        self.sketch.add(finite)

    def merge(self, other: "Summary") -> None:
        """Take what another process has seen of the same metric.

        Raises:
            ConfigError: its sketch has another accuracy.
        """
        if other.count:
            if not self.count:
                self.first = other.first
            apart = other.first - self.first
            self.squares += other.squares + 2 * apart * other.sum + other.count * apart * apart
            self.sum += other.sum + other.count * apart
            self.min, self.max = min(self.min, other.min), max(self.max, other.max)
            self.sketch.merge(other.sketch)
        if not self.count + self.not_finite or (other.time or 0, other.step or 0) >= (self.time or 0, self.step or 0):
            self.last, self.step, self.time = other.last, other.step, other.time
        self.count, self.not_finite = self.count + other.count, self.not_finite + other.not_finite

    def to_json(self) -> dict[str, Any]:
        """As plain data: what is not finite as text."""
        said = {name: getattr(self, name) for name in self.__slots__ if name != "sketch"}
        said = {n: str(v) if isinstance(v, float) and not math.isfinite(v) else v for n, v in said.items()}
        return said | {"sketch": self.sketch.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Summary":
        """Raises SourceError when it is none."""
        try:
            given = {**value, "sketch": Sketch.from_json(value["sketch"])}
            for name in ("first", "sum", "squares", "min", "max", "last"):
                given[name] = float(given[name])
            return cls(**given)
        except (KeyError, TypeError, ValueError) as why:
            raise SourceError(f"is no summary of ours: {why!r}") from None


@dataclass(slots=True)
class FileSummary:
    """The metrics of one file, as far as it has been read.

    Attributes:
        at: how far that is, and what was wrong on the way.
        series: by kind, name and member.
    """

    at: Position = field(default_factory=Position)
    accuracy: float = ACCURACY
    series: dict[Series, Summary] = field(default_factory=dict)

    def read(self, path: Path) -> "FileSummary":
        """Go on to where the file ends now; from its beginning when it is no longer the one that was read.

        Raises:
            SourceError: it cannot be read.
        """
        if not self.at.holds(path):
            self.at, self.series = Position(), {}
        process = process_of(path)
        for block in blocks(path, self.at):
            for column in columns(block):
                key = column.series
                if key not in self.series:
                    said = self._said(block, column)
                    self.series[key] = Summary(*key, process, said.unit, said.better, sketch=Sketch(self.accuracy))
                own = self.series[key]
                own.add(column.values)
                own.step, own.time = column.steps[-1], column.times[-1]
                if column.said is not None:
                    own.unit, own.better = column.said
        return self

    def _said(self, block: Block, column: Column) -> Type:
        """What its file has said of a metric before its first value."""
        kind, name, _ = column.series
        for group in block.groups:
            for line, row in zip(group.lines, group.rows, strict=True) if group.kind == METRIC else ():
                if line < column.lines[0] and (row["of"], row["name"]) == (kind, name):
                    self.at.declare(row)
        return self.at.type_of(kind, name)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "at": asdict(self.at), "accuracy": self.accuracy, "series": [s.to_json() for s in self.series.values()],
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "FileSummary":
        """Raises SourceError when it is none."""
        try:
            found = [Summary.from_json(s) for s in value["series"]]
            return cls(Position(**value["at"]), value["accuracy"], {(s.kind, s.name, s.member): s for s in found})
        except (KeyError, TypeError) as why:
            raise SourceError(f"is no summary of ours: {why!r}") from None


def summarize(
    folder: Path, known: Mapping[str, FileSummary] | None = None, accuracy: float = ACCURACY
) -> dict[str, FileSummary]:
    """The metrics of a run: a summary for each of its files, by the file's name.

    Args:
        known: what an earlier call gave, to go on from; it is changed.

    Raises:
        SourceError: a file cannot be read.
    """
    found = {path.name: (known or {}).get(path.name) or FileSummary(accuracy=accuracy) for path in files(folder)}
    return {name: one.read(folder / name) for name, one in found.items()}


def merged(found: Mapping[str, FileSummary]) -> dict[str, Summary]:
    """The metrics of all processes together, by what they are called for people; the files are left as they are."""
    whole: dict[str, Summary] = {}
    for one in found.values():
        for summary in one.series.values():
            if summary.series in whole:
                whole[summary.series].merge(summary)
            else:
                whole[summary.series] = Summary.from_json(summary.to_json())
    return whole


def problems(found: Mapping[str, FileSummary]) -> list[str]:
    """Lines that are no rows, named."""
    return [text for one in found.values() for text in one.at.problems]
