"""What an export puts in place is on the disk: every file of it, before the rename."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import StorageError
from stages import export_work


def run(to: Path) -> Any:
    return pipeline.run(
        ["+model=gpt_oss", "flow=convert", "quant=mxfp4", f"paths.run={to}", f"paths.outputs={to.parent}"]
    )


def test_every_file_is_made_durable_before_it_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable: set[str] = set()

    def sync(path: Path) -> None:
        assert not (tmp_path / "run" / "model").exists()
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        durable.add(path.name)

    monkeypatch.setattr(export_work, "sync", sync)
    run(tmp_path / "run")
    assert durable == {file.name for file in (tmp_path / "run" / "model").iterdir()}


def test_what_the_disk_does_not_take_is_not_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(path: Path) -> None:
        if path.suffix == ".safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(export_work, "sync", sync)
    with pytest.raises(StorageError, match=r"\.safetensors: Input/output error"):
        run(tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()
