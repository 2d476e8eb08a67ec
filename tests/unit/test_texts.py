"""Texts that a config names: what cannot be read is said while it is composed."""

import gzip
from pathlib import Path

import pytest

from pipeline import texts
from pipeline.errors import ConfigError, SourceError


def test_an_empty_file_is_found_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "text.txt").write_text("Hello")
    texts.check(str(tmp_path / "text.txt"), "evaluate.texts")
    with pytest.raises(ConfigError, match=r"^evaluate\.texts: .*/empty\.txt: an empty file, nothing to predict$"):
        texts.check(str(tmp_path / "empty.txt"), "evaluate.texts")
    with pytest.raises(ConfigError, match=r"no such file in .*; did you mean 'text.txt'"):
        texts.check(str(tmp_path / "texts.txt"), "evaluate.texts")


def test_what_is_no_text_is_found_before_anything_is_read(tmp_path: Path) -> None:
    names = {
        "a.txt": b"caf\xe9 au lait", "b.txt.gz": gzip.compress(b"ab\xff"), "c.txt.gz": b"no gzip",
        "d.txt.gz": gzip.compress(bytes(range(97, 123)) * 99)[:-20],
    }  # fmt: skip
    said = ["byte 3 is not UTF-8", "byte 2 is not UTF-8", "is not compressed by gzip", "is not compressed by gzip"]
    for (name, content), why in zip(names.items(), said, strict=True):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=rf"^evaluate\.texts: .*/{name}: {why}"):
            texts.check(str(tmp_path / name), "evaluate.texts")
        with pytest.raises(SourceError, match=rf"/{name}: {why}"):
            texts.read(str(tmp_path / name))
    cut = "é" * texts.BEGINNING  # in the middle of a letter
    (tmp_path / "e.txt").write_text(f"a{cut}", encoding="utf-8")
    texts.check(str(tmp_path / "e.txt"), "evaluate.texts")
    (tmp_path / "f.txt.gz").write_bytes(gzip.compress(f"a{cut}".encode()))
    texts.check(str(tmp_path / "f.txt.gz"), "evaluate.texts")
    assert texts.read(str(tmp_path / "f.txt.gz")) == f"a{cut}"
