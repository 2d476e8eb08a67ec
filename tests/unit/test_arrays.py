"""Arrays on disk: whole or not there, and a disk that is full is an error."""

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline import arrays
from pipeline.errors import StorageError

VALUES = np.arange(50_000, dtype=np.float32)


def _fill(path: Path) -> None:
    with arrays.filled(path, VALUES.shape, VALUES.dtype) as into:
        into[:] = VALUES


@pytest.mark.parametrize(
    "write",
    [lambda p: arrays.save(p, VALUES), lambda p: arrays.save(p, {"a": VALUES}), _fill],
    ids=["array", "archive", "filled"],
)
def test_what_does_not_fit_is_said_and_is_not_there(write: Callable[[Path], None], tmp_path: Path) -> None:
    path, before = tmp_path / "a.npz", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"a\.(npz|partial): cannot be written: .* bytes are free there"):
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]
    write(path)
    found = np.load(path)
    np.testing.assert_array_equal(found["a"] if isinstance(found, np.lib.npyio.NpzFile) else found, VALUES)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_a_mapping_has_its_place_before_it_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays.mapped(tmp_path / "a.npy", VALUES.shape, VALUES.dtype)
    found = (tmp_path / "a.npy").stat()
    assert found.st_blocks * 512 >= VALUES.nbytes

    def full(fd: int, at: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="No space left"):
        arrays.mapped(tmp_path / "b.npy", VALUES.shape, VALUES.dtype)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]
