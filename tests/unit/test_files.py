"""Files that are new: whole or not at all, and nobody's is replaced."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.files import write_new, write_over

KILLED = """
import os, pathlib, signal
from pipeline import files
real = pathlib.Path.write_text
def half(path, text, **how):
    real(path, text[: len(text) // 2], **how)
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.write_text = half
files.write_new(pathlib.Path("new.json"), "x" * 100)
"""


def test_what_stands_there_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    write_new(file, "first")
    with pytest.raises(StorageError, match=r"new\.json: File exists"):
        write_new(file, "second")
    assert file.read_text() == "first"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="File exists"):
        write_new(link, "second")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "new.json"]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    write_new(tmp_path / "new.json", "whole")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["whole"]


def test_killed_in_the_middle_it_is_not_there(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "new.json").exists()
    write_new(tmp_path / "new.json", "whole")
    assert (tmp_path / "new.json").read_text() == "whole"


def test_what_cannot_be_written_leaves_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(file)
    write_over(link, b"first")
    assert (file.read_bytes(), link.is_symlink()) == (b"first", True)

    def full(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match=r"No space left on device \(6 bytes to write, [\d,]+ bytes free\)"):
        write_over(file, b"second")
    assert file.read_bytes() == b"first"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.html", "page.html"]
