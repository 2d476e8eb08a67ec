"""Which runs no other beats in several metrics at once, and which beat the others: Pareto's front."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.figures import Figure
from pipeline.reporting.card import Card
from pipeline.reporting.compare.deltas import ARROWS
from pipeline.tables import table

FEWEST, MOST = 2, 3  # metrics
ON, OFF = "on the front", "beaten by "


@dataclass(frozen=True)
class Pareto(Card):
    """The front of some runs over two or three metrics.

    Attributes:
        metrics: their names.
        better: of each which is better, `lower` or `higher`.
        names: of the rows that have all of them.
        values: of each row the metrics, as figures.
        repeats: of each row and metric the value of each of its runs.
        beaten: of each row those on the front that dominate it; of one on the front none.
        left_out: name of a row, and why it is in none of this.
        kinds: of each row what it is packed as; rows of one kind have one colour.
    """

    metrics: tuple[str, ...]
    better: tuple[str, ...]
    names: tuple[str, ...]
    values: tuple[tuple[Figure, ...], ...]
    repeats: tuple[tuple[tuple[float, ...], ...], ...]
    beaten: tuple[tuple[str, ...], ...]
    left_out: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]

    @property
    def front(self) -> tuple[str, ...]:
        """Names of the rows that no other beats."""
        return tuple(name for name, by in zip(self.names, self.beaten, strict=True) if not by)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Raw numbers, and who is on the front; what pandas takes."""
        return [
            {"run": name, **{m: f.value for m, f in zip(self.metrics, values, strict=True)}, "front": not by,
             "beaten by": ", ".join(by)}
            for name, values, by in zip(self.names, self.values, self.beaten, strict=True)
        ]  # fmt: skip

    @property
    def shown(self) -> list[Any]:
        heads = [f"{m} {ARROWS[b]}" for m, b in zip(self.metrics, self.better, strict=True)]
        ordered = sorted(range(len(self.names)), key=lambda i: (bool(self.beaten[i]), self.values[i][0].value))
        rows = [
            [self.names[i], *map(str, self.values[i]), f"{OFF}{', '.join(self.beaten[i])}" if self.beaten[i] else ON]
            for i in ordered
        ]
        title = "Pareto front, ↓ lower is better, ↑ higher is better"
        found: list[Any] = [table(title, ["run", *heads, ""], rows, right=range(1, 1 + len(heads)))]
        return [*found, *(f"{name} is left out: {why}" for name, why in self.left_out)]

    def __repr__(self) -> str:
        return f"Pareto front over {', '.join(self.metrics)}: {', '.join(self.front) or 'nothing is on it'}"

    def draw(self, path: str | Path, about: str = "") -> Path:
        """A picture, PNG: the first metric along x, the second along y; of three the last as colour.

        Raises:
            ConfigError: there is no run to draw.
            StorageError: it cannot be written.
        """
        from pipeline.reporting.compare.picture import draw

        if not self.names:
            raise ConfigError(f"{path}: no run has {' and '.join(self.metrics)}: there is nothing to draw")
        return draw(self, Path(path), about)
