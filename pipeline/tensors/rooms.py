"""Memory that one read after another is put in: where what a thread read before lay, once nobody holds that any more.

What a chunk reads is gone before the next is read, and memory that is touched for the first time costs as much as
reading into it, in huge pages too; glibc gives and takes back pieces of more than 32 MiB one by one.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

LEAST_NBYTES: Final = 1 << 20  # what is less comes from memory that glibc keeps
MOST_NBYTES: Final = 128 << 20  # what is more is let go of when a chunk is done
LINE_NBYTES: Final = 64  # of a cache

_rooms: dict[int, Any] = {}  # by thread
_within = threading.local()


@contextmanager
def reused() -> Iterator[None]:
    """Within it, what this thread reads may lie where it read before; the room stays until `let_go`."""
    before, _within.on = getattr(_within, "on", False), True
    try:
        yield
    finally:
        _within.on = before
        have = _rooms.get(threading.get_ident())
        if have is not None and have.nbytes > MOST_NBYTES:
            del _rooms[threading.get_ident()]


def let_go() -> None:
    """Keep no room, of no thread; what lies in one stays whole while it is held."""
    _rooms.clear()


def unfilled(nbytes: int) -> Any:
    """uint8 `[nbytes]` of anything, which begins where a cache line does: what goes through it column by column reads a
    third fewer lines."""
    room = _room(nbytes + LINE_NBYTES)
    first = -room.ctypes.data % LINE_NBYTES
    return room[first : first + nbytes]


def _room(nbytes: int) -> Any:
    if nbytes < LEAST_NBYTES or not getattr(_within, "on", False):
        return np.empty(nbytes, np.uint8)
    thread = threading.get_ident()
    have = _rooms.pop(thread, None)
    if have is not None and sys.getrefcount(have) > _FREE:  # views of an array hold it, and views of views
        have = None
    if have is None or have.nbytes < nbytes:
        have = None  # before there is another
        have = np.empty(nbytes, np.uint8)
    _rooms[thread] = have
    return have


def _held_once() -> int:
    rooms: dict[int, Any] = {0: np.empty(1, np.uint8)}
    have = rooms.pop(0, None)
    return sys.getrefcount(have)


_FREE: Final = _held_once()
