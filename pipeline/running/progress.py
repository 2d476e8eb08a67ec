"""How far something is that takes more than a moment: how much of how much, how fast, and how long it will still take.

It is said in a line (`text_stream.live`) that whoever listens shows in place of the one before. Models that compile say
so, and the seconds that took count for no rate.
"""

import time

from pipeline.running import text_stream
from pipeline.tables import shortened
from pipeline.units import show_progress

COLUMNS, LEAST = 80, 12  # of a line, and at least of what is being done
EVERY_S = 0.1  # lines come no faster


class Progress:
    """Of one thing that is done bit by bit."""

    def __init__(self, what: str, total: float, unit: str, *, done: float = 0):
        """
        Args:
            what: is being done.
            total: of `unit`: `B` for bytes, or a word in the plural.
            done: by somebody before; counts for no rate.
        """
        self._what, self._total, self._unit = what, total, unit
        self._done = self._before = done
        self._start = time.perf_counter()
        self._said = self._start  # nothing is said of what takes a moment only
        self._aside = 0.0

    def aside(self, seconds: float) -> None:
        """So much of the time went into what is done once, as compiling."""
        self._aside += seconds

    def add(self, amount: float) -> None:
        """So much more was done."""
        self._done += amount
        now = time.perf_counter()
        if now - self._said >= EVERY_S:
            self._said = now
            numbers = show_progress("", self._done, self._total, self._unit, self._rate(now))
            what = self._what and f"{shortened(self._what, max(LEAST, COLUMNS - 2 - len(numbers)))}: "
            text_stream.live(f"{what}{numbers}")

    def _rate(self, now: float) -> float:
        return (self._done - self._before) / max(1e-9, now - self._start - self._aside)
