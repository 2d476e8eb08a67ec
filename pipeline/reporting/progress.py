"""How a run is shown while it is at work: one line that is drawn again and again, or, where that cannot be, a line now
and then.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pipeline.events import Events
from pipeline.reporting.console import stream
from pipeline.tables import shortened, width, wrapped
from pipeline.terminal import NARROW, line, safe, say
from pipeline.units import show_progress

EVERY_S, DRAWN_S = 5.0, 0.1  # of lines in a log, and on a screen
LEAST_LABEL = 12


@contextmanager
def progress(enabled: bool) -> Iterator[Events]:
    """Events that say how far a run is, on stderr; in a notebook, on stdout."""
    if not enabled:
        yield Events(say=say)
        return
    if notebook() is not None:
        shown: Shown = _InPlace(sys.stdout, erase=" " * (NARROW - 1) + "\r")
    else:
        shown = _InPlace(sys.stderr) if sys.stderr.isatty() else _Lines()
    try:
        yield Progressing(shown).events
    finally:
        shown.clear()


def notebook() -> Any:
    """The shell of a notebook that this process runs in, or None."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell if shell is not None and type(shell).__name__ == "ZMQInteractiveShell" else None


class Shown(Protocol):
    """Where progress is seen."""

    def show(self, text: str) -> None:
        """In place of what was shown before."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def stream(self, text: str) -> None:
        """Text as it comes."""

    def clear(self) -> None:
        """Nothing is to be shown in place any more."""


class Progressing:
    """What a run tells, as lines: what a stage says of itself, or else the bytes of all chunks."""

    def __init__(self, shown: Shown):
        self._shown = shown
        self._total = self._done = self._reused = 0
        self._start: float | None = None
        self._lock = threading.Lock()
        self.events = Events(self._say, self._set_total, self._chunk, self._text, self._live)

    def _say(self, text: str) -> None:
        with self._lock:
            self._shown.say(text)

    def _text(self, text: str) -> None:
        with self._lock:
            self._shown.stream(text)

    def _live(self, text: str) -> None:
        with self._lock:
            self._shown.show(text)

    def _set_total(self, nbytes: int, chunks: int) -> None:
        self._total, self._start = nbytes, time.monotonic()

    def _chunk(self, label: str, nbytes: int, reused: bool) -> None:
        with self._lock:
            self._start = time.monotonic() if self._start is None else self._start
            self._done += nbytes
            self._reused += nbytes if reused else 0
            rate = (self._done - self._reused) / max(1e-9, time.monotonic() - self._start)
            said = show_progress("", self._done, self._total, "B", rate)
            room = max(LEAST_LABEL, NARROW - 4 - len(said))  # numbers are not to be cut
            self._shown.show(f"{said} · {shortened(line(label), room)}")


class _InPlace:
    """A line that takes the place of the one before it."""

    def __init__(self, file: Any, erase: str = "\x1b[2K\r"):
        self._file, self._erase = file, f"\r{erase}"
        self._there = ""
        self._last = 0.0

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last < DRAWN_S and self._there:
            return
        self._last, self._there = now, shortened(line(text), _columns(self._file) - 1)
        self._write(self._erase + self._there)

    def say(self, text: str) -> None:
        self.clear()
        self._write("".join(f"{one}\n" for one in wrapped(safe(text), _columns(self._file), indent="  ")))

    def stream(self, text: str) -> None:
        self.clear()
        self._write(safe(text))

    def clear(self) -> None:
        if self._there:
            self._write(self._erase)
        self._there = ""

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


class _Lines:
    """For logs: a line at most every few seconds."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s, self._last = every_s, time.monotonic()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            say(shortened(line(text), width(sys.stderr) or NARROW))

    def say(self, text: str) -> None:
        columns = width(sys.stderr)
        say("\n".join(wrapped(safe(text), columns, indent="  ")) if columns else text)

    def stream(self, text: str) -> None:
        stream(text)

    def clear(self) -> None:
        pass


def _columns(file: Any) -> int:
    try:
        return os.get_terminal_size(file.fileno()).columns or NARROW
    except (OSError, ValueError, AttributeError):
        return NARROW
