"""Append-only JSON lines: what is noted of a run, and a writer who is killed loses its line alone."""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.files import read_whole, unwritten

MOST_NBYTES = 1 << 30


def append(path: Path, record: Mapping[str, Any]) -> None:
    """One line more, in one write; after a line that is torn, on a line of its own.

    Raises:
        StorageError: it cannot be written.
    """
    said = json.dumps(record).encode() + b"\n"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            nbytes = os.fstat(fd).st_size
            if nbytes and os.pread(fd, 1, nbytes - 1) != b"\n":
                said = b"\n" + said
            if os.write(fd, said) != len(said):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
    except OSError as why:
        raise unwritten(path, why, len(said)) from None


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines that are objects, in order; those that are torn, or anybody else's, are left out.

    Raises:
        SourceError: the file cannot be read.
    """
    if not path.is_file():
        return
    for line in read_whole(path, MOST_NBYTES, grows=True).split(b"\n")[:-1]:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            yield said
