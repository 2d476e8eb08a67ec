"""A stage in several processes: a gang, of which every member runs the same code, and the first one's result counts.

Members are spawned, never forked, and this process only watches them: on this machine, where it starts them itself, or
each on a worker of a cluster (`pinned`). Each has a channel to it: what it has to say comes there, and when the channel
closes, at whichever end, the other knows that nobody is there any more. So when one member fails all others are ended
at once, and no member outlives whoever started it, however that ends.
"""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from multiprocessing.connection import Connection, wait
from typing import Any

from pipeline.errors import StageError
from pipeline.running import text_stream
from pipeline.running.keeper import Ended, Members, all_ended, heard, here
from pipeline.stage import Gang

SETTLE_S = 1.0  # a member that loses another fails too, and may be heard first: so long it is looked who died
CHECK_S = 1.0

Start = Callable[[Gang], AbstractContextManager[Members]]
_start: ContextVar[Start] = ContextVar("start", default=here)


@contextmanager
def started_by(start: Start) -> Iterator[None]:
    """Gangs of the body are started so, and not on this machine by this process."""
    before = _start.set(start)
    try:
        yield
    finally:
        _start.reset(before)


def run(gang: Gang, call: Callable[[], Any]) -> Any:
    """What `call` gives in the first of the processes; it is called in all of them.

    Args:
        call: must pickle, and so must what it gives.

    Raises:
        StageError: a process failed or died, or its worker, which ended all others.
    """
    with _start.get()(gang) as members:
        payload = pickle.dumps((gang.join, members.address, members.alone, call))
        try:
            for channel in members.channels:
                with suppress(OSError):  # it has ended already, which is seen when it is listened to
                    channel.send_bytes(payload)
            return _watched(members)
        finally:
            all_ended(members)


def _watched(members: Members) -> Any:
    """Listen until all are done; returns what the first of them gave."""
    channels = members.channels
    given: dict[int, Any] = {}
    arrived: dict[int, Any] = {}
    while len(given) < len(channels):
        for channel in _ready(channels, CHECK_S):
            rank = channels.index(channel)
            kind, value = heard(channel)
            if kind == "text":
                text_stream.write(value)
            elif kind == "live":
                text_stream.live(value)
            elif kind in ("failed", "ended"):
                raise _failed(members, rank, kind, value)
            elif kind == "done":
                given[rank] = value
            else:
                arrived[rank] = value
        if len(arrived) == len(channels):
            for one in channels:
                with suppress(OSError):
                    one.send(arrived[0])
            arrived = {}
        members.check()
    return given[0]


def _ready(channels: Sequence[Connection], seconds: float) -> list[Connection]:
    """Those on which something came."""
    ready = wait(list(channels), seconds)
    return [channel for channel in channels if channel in ready]


def _failed(members: Members, first: int, kind: str, value: Any) -> StageError:
    """What went wrong first: whoever was killed, rather than whoever then missed it.

    Args:
        first: the rank that was heard first.
        kind, value: what was heard: that it `ended`, or `failed`, with the error, the exit code if it is one of ours,
            and where it was raised.
    """
    ended: dict[int, Ended] = {first: value} if kind == "ended" else {}
    until = time.monotonic() + SETTLE_S
    while not any(e.first for e in ended.values()) and (left := until - time.monotonic()) > 0:
        others = [c for rank, c in enumerate(members.channels) if rank not in ended]
        if not others:
            break
        for channel in _ready(others, left):
            said, how = heard(channel)
            if said == "ended":
                ended[members.channels.index(channel)] = how
    culprit = next((rank for rank, e in ended.items() if e.first), first)
    exit_code = None
    if culprit == first and kind == "failed":
        message, exit_code, last = value
        how = f"failed: {message}"
    else:
        how, last = ended[culprit].how, ended[culprit].last
    where = f" ({members.places[culprit]})" if members.places else ""
    text = f"process {culprit} of {len(members.channels)}{where} {how}; the others were ended"
    if last:
        text += "\n  the last that it said:\n" + "\n".join(f"    {line}" for line in last)
    found = StageError(text)
    if exit_code is not None:
        found.exit_code = exit_code
    return found
