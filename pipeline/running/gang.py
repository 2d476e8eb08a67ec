"""A stage in several processes: a gang, of which every member runs the same code, and the first one's result counts.

Members are spawned, never forked, and this process only watches them. Each has a channel to it: what it has to say
comes there, and when the channel closes, at whichever end, the other knows that nobody is there any more. So when one
member fails all others are ended at once, and no member outlives whoever started it, however that ends.
"""

import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, NoReturn

from pipeline.errors import StageError, WeightmillError
from pipeline.running import text_stream
from pipeline.stage import Gang, Results

LAST_NBYTES = 4096  # of what a member said before it failed; of these the last lines are shown
LAST_LINES = 12
SETTLE_S = 1.0  # a member that loses another fails too, and may be heard first: so long it is looked who died
END_S = 10.0  # that a member which has closed its channel may take to end


@dataclass(frozen=True, slots=True)
class _Started:
    """A member, as the process that started it sees it."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: Connection
    said: IO[bytes]


def run(gang: Gang, call: Callable[[], Any]) -> Any:
    """What `call` gives in the first of the processes; it is called in all of them.

    Args:
        call: must pickle, and so must what it gives.

    Raises:
        StageError: a process failed or died, which ended all others.
    """
    address = _free(gang.coordinator)
    payload = pickle.dumps((gang.join, address, call))
    members: list[_Started] = []
    try:
        members.extend(_start(rank, gang.processes, payload) for rank in range(gang.processes))
        return _watched(members)
    finally:
        for member in members:
            member.process.kill()
        for member in members:
            member.process.wait()
            member.channel.close()
            member.said.close()


def _free(address: str) -> str:
    """The address, with a free port in place of 0."""
    host, _, port = address.rpartition(":")
    if port != "0":
        return address
    try:
        with socket.create_server((host, 0)) as free:
            return f"{host}:{free.getsockname()[1]}"
    except OSError as why:
        raise StageError(f"mesh.coordinator={address!r}: nothing on this machine can listen there: {why}") from None


def _start(rank: int, processes: int, payload: bytes) -> _Started:
    ours, theirs = Pipe()
    said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the member
    command = [sys.executable, "-m", "pipeline.running.gang", str(theirs.fileno()), str(rank), str(processes)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (os.getcwd(), *sys.path) if p)}
    # In a session of its own: Ctrl-C is for the process that watches, which then ends all.
    process = subprocess.Popen(  # noqa: S603  this program again
        command, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=[theirs.fileno()],
        start_new_session=True,
    )  # fmt: skip
    theirs.close()
    with suppress(OSError):  # it has ended already, which is seen when it is listened to
        ours.send_bytes(payload)
    return _Started(rank, process, ours, said)


def _watched(members: Sequence[_Started]) -> Any:
    """Listen until all are done; returns what the first of them gave."""
    at = {member.channel: member for member in members}
    given: dict[int, Any] = {}
    arrived: dict[int, Any] = {}
    while len(given) < len(members):
        for channel in wait(list(at)):
            member = at[channel]  # type: ignore[index]
            try:
                kind, value = member.channel.recv()
            except (EOFError, OSError):
                raise _failed(members, member, None) from None
            if kind == "text":
                text_stream.write(value)
            elif kind == "live":
                text_stream.live(value)
            elif kind == "failed":
                raise _failed(members, member, value)
            elif kind == "done":
                given[member.rank] = value
            else:
                arrived[member.rank] = value
        if len(arrived) == len(members):
            for member in members:
                with suppress(OSError):
                    member.channel.send(arrived[0])
            arrived = {}
    return given[0]


def _failed(members: Sequence[_Started], heard: _Started, error: tuple[str, int | None] | None) -> StageError:
    """What went wrong first: whoever was killed, rather than whoever then missed it.

    Args:
        heard: the first of which that was heard.
        error: what it said, and the exit code of an error of ours; None: it only was gone.
    """
    if error is None:
        with suppress(subprocess.TimeoutExpired):
            heard.process.wait(END_S)
    until = time.monotonic() + SETTLE_S
    while True:
        ended = [m for m in members if m.process.poll() is not None]
        # A member whose coordinator is gone is ended by JAX, with SIGABRT.
        killed = [m for m in ended if m.process.returncode not in (0, -signal.SIGABRT)]
        if killed or time.monotonic() > until:
            break
        time.sleep(0.02)
    culprit = heard if heard in killed else (killed or [heard])[0]
    code = culprit.process.poll()
    how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with exit {code}"
    exit_code = None
    if culprit is heard and error is not None:
        message, exit_code = error
        how = f"failed: {message}"
    text = f"process {culprit.rank} of {len(members)} {how}; the others were ended"
    if exit_code is None and (last := _last(culprit)):
        text += "\n  the last that it said:\n" + "\n".join(f"    {line}" for line in last)
    found = StageError(text)
    if exit_code is not None:
        found.exit_code = exit_code
    return found


def _last(member: _Started) -> list[str]:
    """The last lines that a member said."""
    size = member.said.seek(0, os.SEEK_END)
    member.said.seek(max(0, size - LAST_NBYTES))
    return member.said.read().decode(errors="replace").splitlines()[-LAST_LINES:]


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
        assert _here is not None
        if _here.rank:
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


def _serve(fd: int, rank: int, processes: int) -> NoReturn:
    """Be a member, until the process that started this one closes the channel."""
    global _here
    channel = Connection(fd)
    join, address, call = pickle.loads(channel.recv_bytes())  # noqa: S301  of the process that started this one
    _here = _Member(rank, channel)
    threading.Thread(target=_here.listen, daemon=True).start()
    me = _here
    try:
        sinks = [partial(me.say, kind) for kind in ("text", "live")] if rank == 0 else [lambda text: None]
        with text_stream.to(*sinks):
            join(rank, address)
            value = call()
        me.say("done", value if rank == 0 else None)
    except WeightmillError as why:
        me.say("failed", (str(why), why.exit_code))
    except Exception as why:
        traceback.print_exc()
        me.say("failed", (f"{type(why).__name__}: {why}", None))
    while True:  # the channel's end is this process's
        signal.pause()


if __name__ == "__main__":
    from pipeline.running import gang  # the one that others import

    gang._serve(*map(int, sys.argv[1:]))
