"""A long series as no more points than can be drawn, each with what it stands for."""

import math
from dataclasses import dataclass, field

MOST = 240  # points of a line, at most twice as many as are drawn at the least


@dataclass
class Thinned:
    """Points as they come, in constant memory: neighbours are put together, two at a time, when there are too many.

    Attributes:
        most: points that are kept, at most.
        stride: how many of those given each of them stands for; the last for fewer, maybe.
        given: how many there were; lost: how many of them were not finite, and are in none.
    """

    most: int = MOST
    stride: int = 1
    given: int = 0
    lost: int = 0
    _points: list[tuple[float, float, float, float, int]] = field(default_factory=list)

    def add(self, x: float, y: float) -> None:
        self.given += 1
        if not (math.isfinite(x) and math.isfinite(y)):
            self.lost += 1
            return
        if self._points and self._points[-1][4] < self.stride:
            _, total, low, high, n = self._points[-1]
            self._points[-1] = (x, total + y, min(low, y), max(high, y), n + 1)
            return
        if len(self._points) == self.most:
            pairs = zip(self._points[::2], [*self._points[1::2], None], strict=False)
            self._points = [_both(a, b) for a, b in pairs]
            self.stride *= 2
            if self._points[-1][4] < self.stride:
                self.given -= 1
                self.add(x, y)
                return
        self._points.append((x, y, y, y, 1))

    @property
    def points(self) -> list[tuple[float, float, float, float]]:
        """Of each x (the last that it stands for), mean, least and largest y."""
        return [(x, total / n, low, high) for x, total, low, high, n in self._points]

    @property
    def about(self) -> str:
        """What was done, for people; nothing, where all points are there."""
        lost = f" {self.lost:,} of them are not finite, and left out." if self.lost else ""
        if self.stride == 1:
            return lost.strip()
        of = f"{self.stride:,} of {self.given:,}"
        return f"Each point is the mean of {of}, in a band from the least to the largest.{lost}"


def _both(
    a: tuple[float, float, float, float, int], b: tuple[float, float, float, float, int] | None
) -> tuple[float, float, float, float, int]:
    return a if b is None else (b[0], a[1] + b[1], min(a[2], b[2]), max(a[3], b[3]), a[4] + b[4])
