"""The C++ compiler of this machine: which it is, what tells it from another, and several of it at work at once."""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, Any, Final, NamedTuple

from pipeline.errors import Unsupported

COMPILERS: Final = ("c++", "g++", "clang++")
# For one file: the largest takes half a minute on one core of a server, and minutes where many others are at work.
MOST_S: Final = 1200
_LOOK_S: Final = 0.02


class Done(NamedTuple):
    """How a command ended.

    Attributes:
        why: None when it did what it was to do; otherwise a line for people.
        said: all that it wrote.
        seconds: how long it took.
    """

    why: str | None
    said: str
    seconds: float


@cache
def command() -> tuple[str, ...]:
    """The words that compile C++: $CXX, or the first of `COMPILERS` on the path.

    Raises:
        Unsupported: there is none.
    """
    given = shlex.split(os.environ.get("CXX", ""))
    if given and shutil.which(given[0]) is None:
        raise Unsupported(f"no C++ compiler: CXX={shlex.join(given)!r} is not there")
    if given:
        return tuple(given)
    for name in COMPILERS:
        if found := shutil.which(name):
            return (found,)
    raise Unsupported(f"no C++ compiler: neither CXX is set nor {', '.join(COMPILERS)} on the path")


def stamp(words: Sequence[str]) -> list[object]:
    """What tells a compiler from another without starting it: its words, and the files that they name."""
    files = [os.path.realpath(found) for word in words if (found := shutil.which(word))]
    return [[*words], [(path, (at := os.stat(path)).st_size, at.st_mtime_ns) for path in files]]


def run(commands: Mapping[str, Sequence[str]]) -> dict[str, Done]:
    """Run all `commands`, as many at once as there are cores; none outlives this call, nor `MOST_S`."""
    due, running, done = [*commands], dict[str, _Running](), dict[str, Done]()
    try:
        while due or running:
            while due and len(running) < len(os.sched_getaffinity(0)):
                name = due.pop(0)
                try:
                    running[name] = _Running(commands[name])
                except OSError as why:
                    done[name] = Done(f"{shlex.join(commands[name][:1])} does not run: {why.strerror}", "", 0)
            time.sleep(_LOOK_S)
            for name in [*running]:
                if (found := running[name].look()) is not None:
                    done[name] = found
                    running.pop(name).end()
    finally:
        for one in running.values():
            one.end()
    return done


class _Running:
    """A compiler at work, in a session of its own: it is a family of processes, which are ended together."""

    def __init__(self, words: Sequence[str]):
        self._began = time.monotonic()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  `end` closes it
        preloaded = {"LD_PRELOAD"}  # what is for Python is not for a compiler: a sanitizer's allocator, for one
        env = {name: value for name, value in os.environ.items() if name not in preloaded}
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": self._said, "stderr": self._said}
        # The command is the user's own, or one on the path, and what it compiles is ours.
        self._process = subprocess.Popen(words, env=env, start_new_session=True, **streams)  # noqa: S603

    def look(self) -> Done | None:
        """How it ended, None while it has not."""
        took = time.monotonic() - self._began
        code = self._process.poll()
        if code is None and took < MOST_S:
            return None
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        if code is None:
            return Done(f"not done after {MOST_S} s", said, took)
        lines = said.splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else f"exit code {code}")
        return Done(first.strip() if code else None, said, took)

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._said.close()
