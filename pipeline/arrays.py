"""Arrays that a run goes on from, in files of NumPy: a file that is there is whole.

What is filled through a mapping has its place on the disk before: of a disk that gets full meanwhile the system can
tell who writes into a file, and only kill (SIGBUS) who writes into memory.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.files import allocate, of_storage


def save(path: Path, what: Any) -> None:
    """Write an array, or several by their names: `.npy` or `.npz`, whatever the path ends in.

    Raises:
        StorageError: it cannot be written.
    """
    part = path.with_suffix(".partial")
    with _or_nothing(part):
        with part.open("wb") as file:
            if isinstance(what, Mapping):
                np.savez(file, **what)
            else:
                np.save(file, what)
        part.replace(path)


@contextmanager
def filled(path: Path, shape: tuple[int, ...], dtype: Any) -> Iterator[Any]:
    """An array to be filled, which lies at `path` once the body has ended.

    Raises:
        StorageError: there is no place for it.
    """
    part = path.with_suffix(".partial")
    array = mapped(part, shape, dtype)
    yield array
    with of_storage(path):
        array.flush()
        part.replace(path)


def mapped(path: Path, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of anything, which is that file, and has its place on the disk.

    Raises:
        StorageError: there is none.
    """
    with _or_nothing(path):
        array = np.lib.format.open_memmap(path, "w+", dtype, shape)
        with path.open("r+b") as file:
            allocate(file.fileno(), path.stat().st_size)
    return array


@contextmanager
def _or_nothing(path: Path) -> Iterator[None]:
    """What cannot be written takes no place on the disk."""
    with of_storage(path):
        try:
            yield
        except OSError:
            path.unlink(missing_ok=True)
            raise
