"""How far another machine's clock has to be moved, by bounds that round trips give at several times.

A task begins after it was sent and ends before its result came, so that each gives a lower bound at its start and an
upper bound at its end. If one number lies between all, that is it: no drift is made up where none is seen. Else a line
has to: of those that do, the middle rate, as with the convex hulls of Duda, Harrus, Haddad and Bernard, "Estimating
global time in distributed systems" (ICDCS 1987).
"""

from collections.abc import Sequence
from dataclasses import dataclass

# Nanoseconds a second, between two clocks: NTP slews each by 500 ppm at most (RFC 5905: MAXFREQ), and by itself a
# quartz is off by 100 and more.
MOST_DRIFT = 1.5e6
MARGIN_NS = 8  # that rounding takes of a bound
STEPS = 60  # of a search, each of which keeps two thirds, or half: to 1e-4 ns a second

Bound = tuple[float, int]
"""Seconds of that clock, and nanoseconds that it has to be moved there, at least or at most."""


@dataclass(frozen=True)
class Moved:
    """What is added to a clock.

    Attributes:
        moved_ns: at `since`, seconds of that clock.
        drift: nanoseconds more for every second after that.
        said: that, and how well it is known, for people.
    """

    moved_ns: int
    drift: float
    since: float
    said: str


def between(least: Sequence[Bound], most: Sequence[Bound]) -> Moved:
    """What keeps to all bounds; to as many as it takes to be equally wrong on both sides, where nothing does."""
    low, high = max(ns for _, ns in least), min(ns for _, ns in most)
    if low <= high:
        moved = min(max(0, low), high)
        return Moved(moved, 0.0, 0.0, f"moved by {_ms(moved)}; known to {_ms(high - low)} by what was sent")
    since = min(at for at, _ in (*least, *most))
    line = _Line([(at - since, ns) for at, ns in least], [(at - since, ns) for at, ns in most])
    if (drift := line.rate()) is None:
        moved, over = (low + high) // 2, _ms(low - high)
        said = f"moved by {_ms(moved)}; not all that was sent agrees, by {over}: its clock runs unevenly"
        return Moved(moved, 0.0, 0.0, said)
    below, above = line.low(drift), line.high(drift)
    moved = round((below + above) / 2)
    said = (
        f"moved by {_ms(moved)} and {drift / 1e3:+.1f} ppm, as its clock runs at another rate; known to "
        f"{_ms(above - below)} by what was sent"
    )
    return Moved(moved, drift, since, said)


class _Line:
    """Lines between bounds, by their rate."""

    def __init__(self, least: Sequence[Bound], most: Sequence[Bound]):
        self._least, self._most = least, most

    def low(self, rate: float) -> float:
        """What such a line has to be at its beginning, at least."""
        return max(ns - rate * at for at, ns in self._least)

    def high(self, rate: float) -> float:
        return min(ns - rate * at for at, ns in self._most)

    def rate(self) -> float | None:
        """Of the lines that keep to all bounds the middle one; where they go as far as any clock may on one side, the
        one at the other end. None: no line does."""
        best = self._widest()
        if not self._holds(best):
            return None
        slow, fast = self._end(best, -MOST_DRIFT), self._end(best, MOST_DRIFT)
        if (slow <= -MOST_DRIFT) == (fast >= MOST_DRIFT):
            return (slow + fast) / 2
        return slow if fast >= MOST_DRIFT else fast

    def _holds(self, rate: float) -> bool:
        return self.low(rate) + MARGIN_NS <= self.high(rate)

    def _widest(self) -> float:
        """The rate with most room; what lacks is convex in the rate."""
        left, right = -MOST_DRIFT, MOST_DRIFT
        for _ in range(STEPS):
            a, b = left + (right - left) / 3, right - (right - left) / 3
            lacks = [self.low(rate) - self.high(rate) for rate in (a, b)]
            left, right = (left, b) if lacks[0] <= lacks[1] else (a, right)
        return (left + right) / 2

    def _end(self, inside: float, outside: float) -> float:
        """The last rate that holds on the way from one that does."""
        if self._holds(outside):
            return outside
        for _ in range(STEPS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if self._holds(middle) else (inside, middle)
        return inside


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f} ms"
