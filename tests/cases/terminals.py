"""Programs on a pseudo-terminal, as people see them."""

import os
import pty
import select
import signal
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Terminal:
    """Python with `args` on a terminal of 80 columns, for as long as a `with` of it lasts: then it is killed, unless it
    has ended.

    Attributes:
        shown: all that came.
    """

    def __init__(self, *args: str, cwd: Path, **env: str):
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        more = {"TERM": "dumb", "COLUMNS": "80", "PYTHONPATH": path, "XDG_CACHE_HOME": str(cwd / "cache")}
        whole = {**os.environ, **more, **env}
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # JAX, of forks where it is imported; this one becomes another
            self.pid, self._fd = pty.fork()
            if self.pid == 0:
                os.chdir(cwd)
                os.execvpe(sys.executable, [sys.executable, *args], whole)  # noqa: S606  this program
        self.shown = ""
        self._code: int | None = None

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *why: object) -> None:
        if self._code is None:
            self.signal(signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def until(self, text: str, timeout_s: float = 120) -> str:
        """What comes until `text` does, and with it."""
        begun, end = len(self.shown), time.monotonic() + timeout_s
        while text not in self.shown[begun:]:
            assert time.monotonic() < end, self.shown
            if select.select([self._fd], [], [], 0.5)[0]:
                self.shown += os.read(self._fd, 4096).decode(errors="replace")
        return self.shown[begun:]

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self, timeout_s: float = 120) -> int:
        """Its exit code.

        Raises:
            AssertionError: it does not end in time.
        """
        end = time.monotonic() + timeout_s
        while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            assert time.monotonic() < end, f"goes on after {timeout_s} s: {self.shown}"
            if select.select([self._fd], [], [], 0.05)[0]:
                try:
                    self.shown += os.read(self._fd, 4096).decode(errors="replace")
                except OSError:  # the other end is closed: it ends in a moment
                    time.sleep(0.01)
        self._code = os.waitstatus_to_exitcode(found[1])
        return self._code
