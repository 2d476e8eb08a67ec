"""What a run has done so far, on disk: one JSON line a chunk, appended as it finishes.

A line says what was written and its digest; a resumed run believes a line only when the bytes on disk still have that
digest. A torn last line (kill -9, power cut) is ignored.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pipeline.errors import StorageError
from pipeline.files import unwritten


class Journal:
    """Append-only record of finished tasks: key → JSON-able record."""

    def __init__(self, path: Path):
        self.path = path
        self._file: IO[bytes] | None = None

    def read(self) -> dict[str, Any]:
        """Records so far; later lines win."""
        records: dict[str, Any] = {}
        if self.path.exists():
            for line in self.path.read_bytes().splitlines():
                try:
                    entry = json.loads(line)
                    records[entry["key"]] = entry["record"]
                except (ValueError, KeyError, TypeError):
                    continue
        return records

    def append(self, key: str, record: Any) -> None:
        """Raises StorageError when the line cannot be written."""
        line = json.dumps({"key": key, "record": record}).encode() + b"\n"
        try:
            if self._file is None:
                torn = self.path.exists() and self.path.stat().st_size and not self.path.read_bytes().endswith(b"\n")
                self._file = self.path.open("ab", buffering=0)  # a line that failed must not linger in a buffer
                line = b"\n" + line if torn else line
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as why:
            raise unwritten(self.path, why, len(line)) from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


# Who lists runs has a lock for a moment, to see whether anybody does: not busy before that was so again and again.
LOOKS, LOOK_S = 5, 0.01


class Busy(StorageError):
    """Another process holds a lock."""


@contextmanager
def locked(file: Path, busy: str, *, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock `file`, which is made for it, and folders too; it dies with the process.

    Whoever holds it removes it in the end, and the folders where nothing came into them. Who opened it before then
    finds another file under its name, or none, and tries again. A file that holds anything is somebody's, and stays.

    Args:
        file: in the folder that is to be held, or beside it.
        busy: what to say when another process holds it.
        wait: called again and again, instead, until none does.

    Raises:
        StorageError: another process holds it, or it cannot be made.
    """
    made: list[Path] = []
    looks = 0
    while True:
        try:
            if (fd := _taken(file, busy, made)) is not None:
                break
        except Busy:
            if wait is not None:
                wait()
            elif looks < LOOKS:
                looks += 1
                time.sleep(LOOK_S)
            else:
                raise
    try:
        yield
    finally:
        try:
            if os.fstat(fd).st_size == 0 and _is(fd, file):
                file.unlink()
        finally:  # or who is interrupted here holds it as long as the process lives
            os.close(fd)
        for folder in dict.fromkeys(made):  # inner ones first
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _taken(file: Path, busy: str, made: list[Path]) -> int | None:
    """A descriptor that holds `file`; None when its last holder removed it, or its folder, in this moment.

    Args:
        made: takes the folders that had to be made, inner ones first.
    """
    try:
        made += [p for p in file.parents if not p.exists()]
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise StorageError(f"{file.parent}: this folder cannot be made: {why.strerror}; choose another") from None
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except FileNotFoundError:
        return None
    except OSError as why:
        raise StorageError(f"{file}: {why.strerror}") from None
    held = False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = _is(fd, file)
    except BlockingIOError:
        raise Busy(busy) from None
    except OSError as why:
        raise StorageError(f"{file}: cannot be locked: {why.strerror}") from None
    finally:
        if not held:
            os.close(fd)
    return fd if held else None


def _is(fd: int, file: Path) -> bool:
    """Whether `file` is still the name of what `fd` opened."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(file))
    except FileNotFoundError:
        return False
