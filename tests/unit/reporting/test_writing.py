"""config.yaml holds what was resolved, whatever text is in it, to whoever reads it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reporting.writing import write_config

ODD = (
    "\U0001f600",
    "a\x85b",
    "\u2028",
    "x" * 300,
    "word " * 60,
    "a: b\n\n  c",
    "'q' \"d\"",
    "#",
    "yes",
    "1e3",
    "~",
    "\x00\t\x7f",
    "\ufeff",
    "é ü → " * 30,
    "2020-01-01",
    "${a}",
)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.sampled_from(ODD))
NODES = st.recursive(VALUES, lambda of: st.one_of(st.lists(of, max_size=3), st.dictionaries(st.text(), of, max_size=3)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs") / "config.yaml"


@given(st.dictionaries(st.sampled_from(["seed", "stages", *ODD]), NODES))
def test_what_is_written_is_read_by_both_parsers(file: Path, tree: Any) -> None:
    write_config(file, tree)
    text = file.read_text(encoding="utf-8")
    for loader in {yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)}:
        assert yaml.load(text, loader) == tree  # noqa: S506  # both are safe


def test_keys_stand_as_they_were_given_in_letters_and_blocks(file: Path) -> None:
    write_config(file, {"seed": 0, "model": {"source": "Zürich", "rules": [{"match": "*"}]}, "a": None})
    expected = "seed: 0\nmodel:\n  source: Zürich\n  rules:\n  - match: '*'\na: null\n"
    assert file.read_text(encoding="utf-8") == expected


def test_a_name_that_is_no_text_is_written_as_well(file: Path) -> None:
    tree = {"paths": {"run": "/outputs/\udcff"}}
    write_config(file, tree)
    assert yaml.load(file.read_text(encoding="utf-8"), yaml.SafeLoader) == tree
