"""How many steps of decoding a program makes."""

import time
from typing import Final

AT_ONCE_S: Final = 0.05
"""Seconds that a program of several steps may take: so often somebody who reads along sees new text."""


class Pace:
    """How many steps a program makes: more, while it is quick.

    Attributes:
        steps: of the next program.
    """

    def __init__(self, most: int, first: int = 1):
        """`first`: what was right for such programs before."""
        self.steps, self._most, self._since = min(first, most), most, time.perf_counter()

    def took(self, count: int) -> None:
        """A program of `count` steps has just ended, and so had the one before it when it began."""
        now = time.perf_counter()
        each, self._since = (now - self._since) / count, now
        if each * 2 * self.steps <= AT_ONCE_S:
            self.steps = min(self._most, 2 * self.steps)
        elif each * self.steps > AT_ONCE_S:
            self.steps = max(1, self.steps // 2)
