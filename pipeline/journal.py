"""What a run has done so far, on disk: one JSON line a chunk, appended as it finishes.

A line says what was written and its digest; a resumed run believes a line only when the bytes on disk still have that
digest. A torn last line (kill -9, power cut) is ignored.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pipeline.errors import StorageError
from pipeline.terminal import STEERS


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
            raise StorageError(f"{self.path}: {why.strerror}") from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder; the lock dies with the process.

    Raises:
        StorageError: another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as why:
        raise StorageError(f"{folder}: {why.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(f"{folder}: another run is at work in this folder") from None
        yield


def write_json(path: Path, value: Any) -> None:
    """Write in one rename, so that a reader sees all of it or none."""
    partial = path.with_name(path.name + ".partial")
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        # As JSON's escapes what would steer a terminal that shows the file, and what a name that is no Unicode has.
        text = STEERS.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as why:
        raise StorageError(f"{path}: {why.strerror}") from None
