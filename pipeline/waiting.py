"""A line on a terminal while nothing else is said: what is waited for, and for how many seconds already.

It is there once that takes longer than a moment, is drawn anew until something is there to be shown, and leaves
nothing behind. Where stderr is no terminal there is none.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pipeline import terminal

AFTER_S, EVERY_S = 0.5, 0.25


class Waiting:
    """A context. Whatever is written to stdout or stderr meanwhile takes the place of the line."""

    def __init__(self, what: str, note: Callable[[str], str] = lambda what: ""):
        """
        Args:
            what: is waited for.
            note: what is to be said now instead of what is waited for, which it is given.
        """
        self._what, self._note = what, note
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._run, name="waiting", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def say(self, what: str) -> None:
        """Something else is waited for now; the seconds go on."""
        self._what = what

    def end(self) -> None:
        """No line any more; what is shown next begins where the line did."""
        with self._lock:
            self._over.set()
            terminal.erase()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        pause = AFTER_S
        while not self._over.wait(pause):
            pause = EVERY_S
            with self._lock:
                if not self._over.is_set():
                    terminal.draw(f"{self._note(self._what) or self._what} · {time.monotonic() - self._start:.0f} s")
