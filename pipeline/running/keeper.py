"""A member of a gang, seen by whoever started it: a process of this machine, with somebody who stays with it.

That is a thread of the process that watches the gang, or a task on a worker of a cluster. It passes on what the member
and the one who watches say to each other, ends the member when that one is gone, and says how it ended.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import IO, Any

from pipeline.config import extend
from pipeline.errors import StageError
from pipeline.stage import Gang

LOOPBACK = "127.0.0.1"
LAST_NBYTES = 4096  # of what a member said before it failed; of these the last lines are shown
LAST_LINES = 12
END_S = 10.0  # that a member which has closed its channel may take to end
ENOUGH = b""  # what tells a keeper to end its member


@dataclass(frozen=True, slots=True)
class Ended:
    """How a member ended.

    Attributes:
        how: for people.
        last: the last lines that it said.
        first: nothing else ended it: not JAX, which aborts those who miss another, and not its own choice.
    """

    how: str
    last: tuple[str, ...] = ()
    first: bool = True


@dataclass(frozen=True, slots=True)
class Members:
    """A gang that was started.

    Attributes:
        channels: to the keeper of each member, by rank.
        address: HOST:PORT at which the first is to listen for the others.
        alone: each takes all devices that its process sees; else its share of those of this machine.
        places: of each where it is, for people; none: here.
        check: raises StageError when nobody wants the result any more.
    """

    channels: Sequence[Connection]
    address: str
    alone: bool = False
    places: Sequence[str] = ()
    check: Callable[[], None] = lambda: None


@contextmanager
def here(gang: Gang) -> Iterator[Members]:
    """The members are processes of this machine, that this one starts.

    Raises:
        StageError: nobody can listen at the coordinator's address.
    """
    address = free_address(gang.coordinator, LOOPBACK)
    channels: list[Connection] = []
    keepers: list[Thread] = []
    try:
        for rank in range(gang.processes):
            ours, theirs = Pipe()
            channels.append(ours)
            keepers.append(Thread(target=keep, args=(theirs, rank), daemon=True))
            keepers[-1].start()
        yield Members(channels, address)
    finally:
        for channel in channels:
            channel.close()
        for keeper in keepers:
            keeper.join()


def free_address(given: str, host: str) -> str:
    """An address as `mesh.coordinator` gives it, with a free port in place of 0; `auto`: at `host`.

    Raises:
        StageError: nothing on this machine can listen there.
    """
    at, _, port = (f"{_bracketed(host)}:0" if given == "auto" else given).rpartition(":")
    try:
        with listening(at.strip("[]"), int(port)) as free:
            return f"{at}:{free.getsockname()[1]}"
    except OSError as failed:  # of JAX it would be a crash
        why = str(failed.strerror).partition(" (while")[0]  # Python says the address again
        said = f"nothing on this machine can listen there: {why}; port 0 takes a free one, auto its address too"
        raise StageError(f"mesh.coordinator={at}:{port}: {said}") from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def listening(host: str, port: int = 0) -> socket.socket:
    """A server at this address of the machine, and at no other; on a free port, or that one.

    Raises:
        OSError: it is none of the machine's, or the port is taken.
    """
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def keep(channel: Connection, rank: int) -> None:
    """Start the member of that rank, and stay with it until it ends, or whoever is at the other end of `channel` has
    enough of it or is gone."""
    ours, theirs = Pipe()
    with closing(channel), closing(ours), tempfile.TemporaryFile() as said:
        try:
            with closing(theirs):
                process = _spawned(theirs, said, rank)
        except OSError as why:
            channel.send(("failed", (f"cannot be started: {why}", None, ())))
            return
        try:
            _pass_on(channel, ours)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            channel.send(("ended", _ended(process.poll(), said)))
        except (EOFError, OSError):  # nobody is there any more
            pass
        finally:
            process.kill()
            process.wait()


def _pass_on(channel: Connection, ours: Connection) -> None:
    """Returns when the member has closed its end.

    Raises:
        EOFError, OSError: it has to end.
    """
    while True:
        for end in wait([channel, ours]):
            if end is channel:
                if (data := channel.recv_bytes()) == ENOUGH:
                    raise EOFError
                with suppress(OSError):  # it has ended already, which is seen when it is listened to
                    ours.send_bytes(data)
                continue
            try:
                data = ours.recv_bytes()
            except (EOFError, OSError):
                return
            channel.send_bytes(data)


def _spawned(theirs: Connection, said: IO[bytes], rank: int) -> "subprocess.Popen[bytes]":
    program = "import runpy; runpy.run_module('pipeline.running.member', run_name='__main__', alter_sys=True)"
    ours = f"import {extend.NAME}; " if extend.by_name() else ""
    command = [sys.executable, "-c", ours + program, str(theirs.fileno()), str(rank)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (os.getcwd(), *sys.path) if p)}
    # In a session of its own: Ctrl-C is for the process that watches, which then ends all.
    return subprocess.Popen(  # noqa: S603  this program again
        command, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=[theirs.fileno()],
        start_new_session=True,
    )  # fmt: skip


def _ended(code: int | None, said: IO[bytes]) -> Ended:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - LAST_NBYTES))
    last = tuple(said.read().decode(errors="replace").splitlines()[-LAST_LINES:])
    if code is not None and code < 0:
        # A member whose coordinator is gone is ended by JAX, with SIGABRT.
        return Ended(f"was killed by {signal.Signals(-code).name}", last, first=-code != signal.SIGABRT)
    return Ended(f"ended with exit {code}", last, first=code != 0)


def all_ended(members: Members) -> None:
    """Have every keeper end its member, and wait until they have."""
    for channel in members.channels:
        with suppress(OSError):
            channel.send_bytes(ENOUGH)
    for channel in members.channels:
        with suppress(EOFError, OSError):
            while channel.poll(END_S):
                channel.recv_bytes()


def heard(channel: Connection) -> tuple[str, Any]:
    """What a member says, or its keeper of it; that both are gone."""
    try:
        kind, value = channel.recv()
    except (EOFError, OSError):
        return "ended", Ended("is gone, with the worker that started it")
    return kind, value
