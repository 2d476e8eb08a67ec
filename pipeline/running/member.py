"""This process as one of a gang: what it says to whoever watches, and what all members have to agree on.

Every member runs the same code, and the first one's result counts. When the channel to whoever started it closes, a
member ends: none outlives that one, however it ends.
"""

import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from pipeline.errors import WeightmillError
from pipeline.running import text_stream
from pipeline.running.keeper import LAST_LINES
from pipeline.stage import Results


class _Member:
    """This process, as one of a gang."""

    def __init__(self, rank: int, channel: Connection):
        self.rank, self._channel = rank, channel
        self._lock = threading.Lock()
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def say(self, kind: str, value: Any) -> None:
        data = pickle.dumps((kind, value))
        with self._lock:
            self._channel.send_bytes(data)

    def listen(self) -> None:
        """Take what comes; end with whoever started this process."""
        while True:
            try:
                self._heard.put(self._channel.recv())
            except (EOFError, OSError):
                os._exit(1)

    def agreed(self, value: Any) -> Any:
        self.say("here", value)
        return self._heard.get()


_here: _Member | None = None


def inside() -> bool:
    """Whether this process is one of a gang."""
    return _here is not None


def first() -> bool:
    """Whether this process is the first of its gang, or of none: the one that writes, and whose result counts."""
    return _here is None or _here.rank == 0


def rank() -> int:
    """Which process of its gang this one is; 0 where there is none."""
    return 0 if _here is None else _here.rank


def title() -> str:
    """What this process is, for people."""
    return f"member {rank()} of the gang"


def tell(text: str) -> None:
    """Say something to people from any process of a gang, of which else only the first is heard."""
    if _here is None:
        text_stream.write(text)
    else:
        _here.say("text", text)


def agreed(value: Any = None) -> Any:
    """What the first process of the gang gives here, once all have come here; `value` where there is no gang."""
    return value if _here is None else _here.agreed(value)


@dataclass(frozen=True, slots=True)
class Together:
    """Results for a gang: the first process looks for them and keeps them; all make what it has to make."""

    results: Results

    def once(
        self,
        key: str,
        make: Callable[[Path], Any],
        *,
        files: Sequence[str] = (),
        parts: Mapping[str, Any] | None = None,
    ) -> tuple[Any, Path]:
        """See `pipeline.stage.Results`. In all processes but the first the folder that `make` is given is empty, and
        what is written there is not kept."""
        if not first():
            if agreed():
                with tempfile.TemporaryDirectory() as folder:
                    make(Path(folder))
            found: tuple[Any, Path] = agreed()
            return found
        making: list[bool] = []

        def told(folder: Path) -> Any:
            making.append(agreed(True))
            return make(folder)

        found = self.results.once(key, told, files=files, parts=parts)
        if not making:
            agreed(False)
        agreed(found)
        return found


@dataclass(frozen=True, slots=True)
class ByFirst:
    """Results for a gang, of which the first process makes what is not there yet, and all use it."""

    results: Results

    def once(
        self,
        key: str,
        make: Callable[[Path], Any],
        *,
        files: Sequence[str] = (),
        parts: Mapping[str, Any] | None = None,
    ) -> tuple[Any, Path]:
        """See `pipeline.stage.Results`."""
        found = self.results.once(key, make, files=files, parts=parts) if first() else None
        return agreed(found)  # type: ignore[no-any-return]


def by_first(results: Results) -> Results:
    """The same results, in which the first process of a gang makes what all of it would have to make."""
    return ByFirst(results.results) if isinstance(results, Together) else results


def _serve(fd: int, rank: int) -> NoReturn:
    """Be a member, until the process that started this one closes the channel."""
    global _here
    channel = Connection(fd)
    join, address, alone, call = pickle.loads(channel.recv_bytes())  # noqa: S301  of the process that started this one
    me = _here = _Member(rank, channel)
    threading.Thread(target=me.listen, daemon=True).start()
    try:
        sinks = [partial(me.say, kind) for kind in ("text", "live")] if rank == 0 else [lambda text: None]
        with text_stream.to(*sinks):
            join(rank, address, alone=alone)
            value = call()
        me.say("done", value if rank == 0 else None)
    except WeightmillError as why:
        me.say("failed", (str(why), why.exit_code, ()))
    except Exception as why:
        me.say("failed", (f"{type(why).__name__}: {why}", None, traceback.format_exc().splitlines()[-LAST_LINES:]))
    while True:  # the channel's end is this process's
        signal.pause()


if __name__ == "__main__":
    from pipeline.running import member  # the one that others import

    member._serve(*map(int, sys.argv[1:]))
