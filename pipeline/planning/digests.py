"""Digests of files that were read before, by what shows that they are the same: path, size, time and inode."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pipeline.digest import InputFile
from pipeline.errors import SourceError, StorageError
from pipeline.files import cache_folder, read_whole, write_over

MOST = 20_000  # files; those that were added first go first


class Digests:
    """What is known, kept in a file of the user's cache folder; one that cannot be written only costs time."""

    def __init__(self, kept: Path | None = None):
        self._kept = kept or cache_folder() / "inputs.json"
        try:
            found = json.loads(read_whole(self._kept))
            self._known = {str(k): (list(stamp), str(digest)) for k, (stamp, digest) in found.items()}
        except (SourceError, ValueError, TypeError, AttributeError):
            self._known = {}

    def of(self, file: InputFile) -> str | None:
        """The digest of what the file holds, if it was read before and is the same since."""
        stamp, digest = self._known.get(str(file.path), ([], None))
        return digest if stamp == _stamp(file) else None

    def add(self, found: Iterable[tuple[InputFile, str]]) -> None:
        """Remember digests of files that were read."""
        new = {str(file.path): (_stamp(file), digest) for file, digest in found}
        if not new.items() <= self._known.items():
            self._known = dict([*Digests(self._kept)._known.items(), *new.items()][-MOST:])
            with suppress(StorageError):
                write_over(self._kept, json.dumps(self._known).encode())


def _stamp(file: InputFile) -> list[int]:
    return [file.nbytes, file.mtime_ns, file.inode]
