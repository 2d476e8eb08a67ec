"""The store that every container opens: leaves at known places in files that must stay as they were.

A file is opened for each read and closed after it (4 µs, against tens of MiB a read). So a store holds no descriptors,
pickles as the plain data it is, is safe in any thread, and notices on every read that a file has vanished or changed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError, did_you_mean
from pipeline.files import opened
from pipeline.formats import Place
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index
from plugins.formats.common.boxes import read_box


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file must still be when it is read: its size and its modification time."""

    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, fd: int) -> "Stamp":
        status = os.fstat(fd)
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class FileLeaves:
    """Leaves in files: a `pipeline.formats.Leaves`.

    Attributes:
        folder: where the files are, absolute.
        places: leaf → where it lies, in file order.
        stamps: file → what it was when its header was read.
        metadata: JSON-able facts the container found.
        metadata_paths: small files beside the data that were read, absolute.
    """

    folder: Path
    places: Mapping[str, Place]
    stamps: Mapping[str, Stamp]
    metadata: Mapping[str, Any]
    metadata_paths: tuple[Path, ...] = ()

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {name: place.spec for name, place in self.places.items()}

    @cached_property
    def _files(self) -> Mapping[str, Path]:
        return {name: self.folder / name for name in self.stamps}

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self._files.values())

    def config(self) -> Mapping[str, Any]:
        """Nothing: a container whose files describe the model says so."""
        return {}

    def read(self, name: str, index: Index = ()) -> Any:
        """The box as a fresh C-contiguous array; sub-byte dtypes as packed uint8.

        Raises:
            SourceError: no such leaf; its file is gone, cut short, or changed since the store was opened.
            IndexError: not a box of the leaf.
        """
        place = self.places.get(name)
        if place is None:
            raise SourceError(f"{self.folder}: no tensor {name!r}{did_you_mean(name, self.places)}")
        path, stamp = self._files[place.file], self.stamps[place.file]
        with opened(path) as fd:
            # Before, so that a file cut short is called changed; after, so that a write during the read is seen.
            _check(path, stamp, Stamp.of(fd))
            out = read_box(fd, place.offset, place.spec, index, f"{path}: tensor {name!r}")
            _check(path, stamp, Stamp.of(fd))
        return out


def _check(path: Path, then: Stamp, now: Stamp) -> None:
    if then != now:
        raise SourceError(
            f"{path}: changed since it was opened: it had {then.nbytes} bytes (modified {then.mtime_ns} ns), "
            f"it has {now.nbytes} ({now.mtime_ns} ns)"
        )
