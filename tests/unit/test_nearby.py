"""What is said of a path where nothing is."""

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.nearby import nearby
from pipeline.texts import check


def _source(path: Path) -> bool:
    return path.suffix == ".gguf" or path.is_dir()


def test_only_what_can_be_meant_and_is_called_nearly_so(tmp_path: Path) -> None:
    for name in ("llama.py", "lama.txt", "m1.log"):
        (tmp_path / name).touch()
    (tmp_path / "llama").mkdir()
    assert nearby(tmp_path / "lama", _source) == f" in {tmp_path}; did you mean 'llama'?"
    assert nearby(tmp_path / "xyzzy", _source) == f" in {tmp_path}"


def test_the_part_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    said = nearby(tmp_path / "modls/a/b", _source)
    assert said == f"; there is no folder {tmp_path}/modls; did you mean 'models'?"


def test_of_a_text_only_files_are_near(tmp_path: Path) -> None:
    (tmp_path / "wiki.text").touch()
    (tmp_path / "wiki").mkdir()
    with pytest.raises(ConfigError) as why:
        check(str(tmp_path / "wiki.txt"), "evaluate.texts")
    assert str(why.value).endswith(f"no such file in {tmp_path}; did you mean 'wiki.text'?")
