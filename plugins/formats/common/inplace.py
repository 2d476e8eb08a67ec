"""Writing a layout in place: the half of a container that does not depend on what its headers look like.

Files get their full size and their header first, so that a full disk is an error before hours of work and not after,
and so that any process can then write any box in any order, again if need be.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError, StorageError
from pipeline.files import allocate, storage_error
from pipeline.formats import FilePlan, Layout
from pipeline.places import write_back
from pipeline.tensors.store import Index
from plugins.formats.common.boxes import read_box, write_box, write_bytes

WRITE_BACK_NBYTES = 1 << 20  # what is less waits for the next that is not, or for the end


class InPlace:
    """`begin`, `write`, `read_back` and `verify` of a `pipeline.formats.Container`."""

    def begin(self, folder: Path, layout: Layout) -> None:
        """Create, size and head every file of `layout`, and write its `extra` files whole.

        Raises:
            StorageError: not enough space, or the folder cannot be written. A file that was being made is removed.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise storage_error(f"{folder}: making the folder", e, folder.parent) from e
        for plan in layout.files:
            _begin_file(folder / plan.name, plan)
        for name, content in layout.extra.items():
            with _opened(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                write_bytes(fd, 0, memoryview(content), str(folder / name))

    def write(self, folder: Path, layout: Layout, leaf: str, index: Index, array: Any) -> None:
        """Write one box of `leaf`; see `boxes.write_box`. The disk begins with it at once, where that is worth it."""
        place = layout.places[leaf]
        path = _within(folder, place.file)
        with _opened(path, os.O_WRONLY) as fd:
            write_box(fd, place.offset, place.spec, index, array, f"{path}: tensor {leaf!r}")
            if array.nbytes >= WRITE_BACK_NBYTES:
                write_back(fd)

    def read_back(self, folder: Path, layout: Layout, leaf: str, index: Index) -> Any:
        """The box as it now lies in the file.

        Raises:
            StorageError: the file is gone or shorter than the layout says.
        """
        place = layout.places[leaf]
        path = _within(folder, place.file)
        try:
            with _opened(path, os.O_RDONLY) as fd:
                return read_box(fd, place.offset, place.spec, index, f"{path}: tensor {leaf!r}")
        except SourceError as e:  # to the user this is the output, not a source
            raise StorageError(str(e)) from e

    def verify(self, folder: Path, layout: Layout) -> None:
        """Every file has its size and begins with its header. A container whose format has a reader asks that, too.

        Raises:
            StorageError: one has not.
        """
        for plan in layout.files:
            path = folder / plan.name
            with _opened(path, os.O_RDONLY) as fd:
                if (nbytes := os.fstat(fd).st_size) != plan.nbytes:
                    raise StorageError(f"{path}: has {nbytes:,} bytes; {plan.nbytes:,} were laid out")
                if os.pread(fd, len(plan.prefix), 0) != plan.prefix:
                    raise StorageError(f"{path}: its header is no longer what was written")


@lru_cache(maxsize=4096)
def _within(folder: Path, name: str) -> Path:
    """Joining paths takes as long as opening a file does."""
    return folder / name


def _begin_file(path: Path, plan: FilePlan) -> None:
    with _opened(path, os.O_WRONLY | os.O_CREAT) as fd:
        if os.fstat(fd).st_size != plan.nbytes:
            try:
                os.ftruncate(fd, 0)  # nothing of another layout may show through
                allocate(fd, plan.nbytes)
            except OSError as e:
                os.unlink(path)
                raise storage_error(f"{path}: reserving {plan.nbytes:,} bytes", e, path.parent) from e
        write_bytes(fd, 0, memoryview(plan.prefix), str(path))


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of an output file. Links are not followed: one could lead to the source that is being read."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as e:
        why = "it is a symbolic link, which would be written through" if e.errno == errno.ELOOP else None
        if why:
            raise StorageError(f"{path}: cannot be opened: {why}") from e
        raise storage_error(f"{path}: cannot be opened", e, path.parent) from e
    try:
        yield fd
    finally:
        os.close(fd)
