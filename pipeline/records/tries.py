"""Tries of a run: where and since when each is at work, and why it failed; and whether one is at work now."""

import fcntl
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.errors import StorageError, short
from pipeline.records.lines import append, lines
from pipeline.redact import hide

TRIES, LOCK, JOURNAL = "tries.jsonl", ".lock", "journal.jsonl"
BEGAN, STAGE, FAILED = "began", "stage", "failed"
LONGEST = 2000  # characters of why


@dataclass(frozen=True)
class Try:
    """Attributes:
    began: seconds since the epoch; None: not known.
    host, pid: whose process it is, or was.
    total: chunks in all.
    stages: those that compute, in all; None: it was not written.
    made: of these, those whose results are there.
    why: it failed; empty where it did not, or nothing was written any more.
    """

    began: float | None = None
    host: str = ""
    pid: int | None = None
    total: int | None = None
    stages: int | None = None
    made: frozenset[str] = frozenset()
    why: str = ""


def begin(folder: Path, total: int, stages: int = 0) -> None:
    """Note a try of this process.

    Args:
        total: chunks in all.
        stages: that compute, in all.

    Raises:
        StorageError: it cannot be written.
    """
    said = {"event": BEGAN, "at": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    append(folder / TRIES, said | {"total": total, "stages": stages})


def made(folder: Path, stage: str) -> None:
    """Note that the result of a stage that computes is there.

    Raises:
        StorageError: it cannot be written.
    """
    append(folder / TRIES, {"event": STAGE, "at": time.time(), "name": stage})


def fail(folder: Path, why: Exception) -> None:
    """Note why the try at work failed, as far as it can be written: the error itself goes its own way."""
    text = hide(short(str(why) or type(why).__name__, LONGEST))
    with suppress(StorageError):
        append(folder / TRIES, {"event": FAILED, "at": time.time(), "why": text})


def last_try(folder: Path) -> Try:
    """The last try; of a run of earlier versions nothing is known.

    Raises:
        SourceError: the file cannot be read.
    """
    found = Try()
    for said in lines(folder / TRIES):
        if said.get("event") == BEGAN:
            pid, total, stages = (_whole(said, name) for name in ("pid", "total", "stages"))
            found = Try(_number(said, "at"), str(said.get("host", "")), pid, total, stages)
        elif said.get("event") == STAGE:
            found = replace(found, made=found.made | {str(said.get("name", ""))})
        elif said.get("event") == FAILED:
            found = replace(found, why=str(said.get("why", "")))
    return found


def journaled(folder: Path) -> int:
    """How many chunks are done, as the journal of an unfinished run says; digests of what is read stand there too.

    Raises:
        SourceError: the file cannot be read.
    """
    return len({str(said.get("key")) for said in lines(folder / JOURNAL) if isinstance(said.get("record"), dict)})


def held(folder: Path) -> bool:
    """Whether a process of this machine, or one that shares its locks, has the folder's lock.

    A lock is shared for this moment to see that; whoever begins in this moment tries again.
    """
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks: nobody can have it
        return False
    finally:
        os.close(fd)
    return False


def _number(said: Mapping[str, Any], name: str) -> float | None:
    value = said.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
