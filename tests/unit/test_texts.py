"""Texts that a config names: what cannot be read is said while it is composed."""

from pathlib import Path

import pytest

from pipeline import texts
from pipeline.errors import ConfigError


def test_an_empty_file_is_found_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "text.txt").write_text("Hello")
    texts.check(str(tmp_path / "text.txt"), "evaluate.texts")
    with pytest.raises(ConfigError, match=r"^evaluate\.texts: .*/empty\.txt: an empty file, nothing to predict$"):
        texts.check(str(tmp_path / "empty.txt"), "evaluate.texts")
    with pytest.raises(ConfigError, match=r"no such file in .*; did you mean 'text.txt'"):
        texts.check(str(tmp_path / "texts.txt"), "evaluate.texts")
