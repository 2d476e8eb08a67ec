"""Input files: what tells that one is still the same, and when that is looked at."""

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline import digest
from pipeline.digest import small_input, stamped, unchanged
from pipeline.errors import SourceError
from pipeline.running.tasks import finish


def rewritten(path: Path, text: str, *, mtime_ns: int | None = None) -> None:
    path.write_text(text)
    if mtime_ns is not None:
        os.utime(path, ns=(mtime_ns, mtime_ns))


def test_small_files_are_what_they_hold_and_large_ones_when_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    rewritten(path, "one", mtime_ns=5)
    small, large = small_input(path), stamped(path)
    assert small == small_input(path, b"one")
    rewritten(path, "one", mtime_ns=6)
    unchanged(small)
    with pytest.raises(SourceError, match=f"{path}: changed while it was being read; the output would mix"):
        unchanged(large)
    rewritten(path, "two", mtime_ns=5)
    unchanged(large)
    with pytest.raises(SourceError, match=f"{path}: changed while it was being read"):
        unchanged(small)
    path.unlink()
    for file in (small, large):
        with pytest.raises(SourceError, match=f"{path}: No such file or directory; it was there when the run began"):
            unchanged(file)
    assert len({str(f.identity) for f in (small, large)}) == 2


def test_what_is_too_large_to_be_read_for_a_plan_is_stamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.tar"
    path.write_bytes(bytes(100))
    assert small_input(path).xxh3_128 is not None
    monkeypatch.setattr(digest, "SMALL_NBYTES", 99)
    assert small_input(path) == stamped(path)
    unchanged(small_input(path), small_input(path, bytes(100)))  # read whole anyway, as settings are


class Copies:
    """Work that copies a companion when all is done, as an export does."""

    def __init__(self, source: Path):
        self.source, self.copied = source, ""

    def finish(self, records: Any) -> str:
        self.copied = self.source.read_text()
        self.source.write_text("two")
        return self.copied


def test_files_are_looked_at_before_and_after_they_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("one")
    work, file = Copies(path), small_input(path)
    for copied in ("one", ""):  # changed while it was copied; and before, when nothing is put in place
        work.copied = ""
        with pytest.raises(SourceError, match="changed while it was being read"):
            finish(work, (file,))
        assert work.copied == copied
