"""The terminal: text that cannot steer it, and streams whose end is not the end of the work.

Names of tensors, metadata of checkpoints and what a model writes come from others; a terminal takes some of their
characters for commands. All of it passes through `safe` on its way to a terminal. Files keep it as it is.
"""

import errno
import io
import os
import re
import select
import sys
import threading
from typing import Any

from pipeline.redact import hide

NARROW = 80  # columns of a screen whose width nobody knows
# Control characters but newline and tab (C0, DEL, C1), marks that turn the direction of text, other line ends, what is
# no character by itself.
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def safe(text: str) -> str:
    """`text` as it may be shown: what would steer the terminal as its escape (`\\x1b`), and no secrets."""
    return STEERS.sub(_escaped, hide(text))


def line(text: str) -> str:
    """The same in one line."""
    return re.sub("[\n\t]", _escaped, safe(text))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def say(text: str) -> None:
    """A line for people, beside the results that go to stdout."""
    print(safe(text), file=sys.stderr, flush=True)


_drawn = 0  # columns of stderr's last line that something else is to take the place of
_drawing = threading.RLock()  # a signal's handler may write in the middle of a write


def draw(text: str) -> None:
    """Show a line on stderr, a terminal, until anything is written to it or stdout."""
    global _drawn
    with _drawing:
        try:
            columns = os.get_terminal_size(2).columns or NARROW
        except OSError:
            columns = NARROW
        said, gone = line(text)[: columns - 1], _erased()
        sys.stderr.write(gone + said)  # at once, or it flickers
        sys.stderr.flush()
        _drawn = len(said)


def erase() -> None:
    """Take away what `draw` has shown, if it is there."""
    with _drawing:
        if gone := _erased():
            sys.stderr.write(gone)
            sys.stderr.flush()


def _erased() -> str:
    """What takes the line away, which then counts as gone."""
    global _drawn
    gone, _drawn = _drawn, 0
    if not gone:
        return ""
    return f"\r{' ' * gone}\r" if os.environ.get("TERM") == "dumb" else "\r\x1b[2K"


class _Descriptor(io.RawIOBase):
    """An open file descriptor that takes everything: after the first error what is written is dropped.

    Attributes:
        lost: that error.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.lost: OSError | None = None

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        nbytes = left.nbytes
        while left and self.lost is None:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # whoever shares the terminal has made it non-blocking
                select.select([], [self._fd], [])
            except OSError as why:
                self.lost = why
        return nbytes


class _Stream(io.TextIOWrapper):
    """Text to a descriptor: characters that its encoding lacks as escapes, and no secrets, whoever writes."""

    def __init__(self, fd: int, before: Any) -> None:
        self.descriptor = _Descriptor(fd)
        interactive = fd == 2 or self.descriptor.isatty()
        super().__init__(
            io.BufferedWriter(self.descriptor),
            encoding=getattr(before, "encoding", None) or "utf-8",
            errors="backslashreplace",
            line_buffering=interactive,
            write_through=getattr(before, "write_through", False),
        )

    def write(self, text: str) -> int:
        erase()
        super().write(hide(text))
        return len(text)


def protect() -> None:
    """From now on nothing that happens to stdout or stderr raises: closed, full, gone, or without our characters."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # closed; the next file that is opened would take its place
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, fd)
            if null != fd:
                os.close(null)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = _Stream(1, sys.stdout)
    sys.stderr = _Stream(2, sys.stderr)


def unread() -> bool:
    """Whether stdout is known to be lost: nobody reads it any more, or it cannot be written."""
    return isinstance(sys.stdout, _Stream) and sys.stdout.descriptor.lost is not None


def finish(code: int) -> int:
    """The exit code, given that of the work: 141 when nobody reads stdout any more, 5 when it could not be written."""
    sys.stdout.flush()
    sys.stderr.flush()
    lost = sys.stdout.descriptor.lost if isinstance(sys.stdout, _Stream) else None
    if lost is None or code:
        return code
    if lost.errno in (errno.EPIPE, errno.ECONNRESET):  # `… | head`: whoever read has seen enough
        return 141
    say(f"error: standard output: {lost.strerror}; not all of what was to be shown is there, but all work is done")
    return 5
