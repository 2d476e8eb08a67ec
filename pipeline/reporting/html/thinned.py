"""A long series as no more points than can be drawn, each with what it stands for."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MOST = 240  # points of a line, at most twice as many as are drawn at the least

Together = tuple[float, float, float, float, int]
"""The last x, sum, least and largest y, and how many these are."""


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
    _points: list["Together"] = field(default_factory=list)

    def add(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        """Take points, in order; it does not matter in how many parts they come, but for the last digits of means."""
        finite = np.isfinite(x) & np.isfinite(y)
        self.given += x.size
        self.lost += x.size - int(finite.sum())
        x, y = x[finite], y[finite]
        while x.size:
            if len(self._points) == self.most and self._points[-1][4] == self.stride:
                pairs = zip(self._points[::2], [*self._points[1::2], None], strict=False)
                self._points = [_both(a, b) for a, b in pairs]
                self.stride *= 2
            if self._points and (room := self.stride - self._points[-1][4]):
                count = min(room, x.size)
                self._points[-1] = _both(self._points[-1], _one(x[:count], y[:count]))
            else:
                count = min((self.most - len(self._points)) * self.stride, x.size)
                ends = range(0, count, self.stride)
                self._points += [
                    _one(x[i : i + self.stride][: count - i], y[i : i + self.stride][: count - i]) for i in ends
                ]
            x, y = x[count:], y[count:]

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


def _one(x: NDArray[np.float64], y: NDArray[np.float64]) -> Together:
    return float(x[-1]), float(y.sum()), float(y.min()), float(y.max()), x.size


def _both(a: Together, b: Together | None) -> Together:
    return a if b is None else (b[0], a[1] + b[1], min(a[2], b[2]), max(a[3], b[3]), a[4] + b[4])
