"""Settings of runs: parsed a section at a time, they are what YAML makes of the whole."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import configs
from pipeline.records.configs import read_config

KEYS = st.sampled_from(["seed", "stages", "on", "null", "_target_", "a.b", "1", "two words", "x:y", "#c", "é", ""])
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from([0.5, float("inf"), 1e-7]),
    st.text(max_size=30), st.sampled_from(["key: d", "a\nkey: 1\n", "line\n\n  more\nend", "*a", "&a"]),
    st.sampled_from(["2020-01-01", "- x", "yes", "a # b"]),
)  # fmt: skip
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        VALUES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4))
    ),
    max_size=5,
)


def whole(text: str) -> dict[str, Any]:
    try:
        return configs._loaded(text.encode())
    except configs.UNREADABLE:
        return {}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs") / "config.yaml"


@given(TREES, st.sampled_from([None, False, True]), st.sampled_from([2, 4]), st.sampled_from([12, 80]), st.booleans())
def test_sections_come_to_the_whole(file: Path, tree: Any, flow: Any, indent: int, width: int, plain: bool) -> None:
    text = yaml.safe_dump(
        tree, default_flow_style=flow, indent=indent, width=width, sort_keys=False, allow_unicode=plain
    )
    file.write_text(text, encoding="utf-8", newline="")
    found = read_config(file)
    assert list(found.items()) == list(whole(text).items())


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {k: 1}\nb: *x\n", "a: &x 1\nb:\n  c: *x\n", "base: &b\n  k: 1\nmore:\n  <<: *b\n  l: 2\n",
        'a: "one\nb: two"\nc: 3\n', "a: 'one\n  b: two'\nc: 3\n", "a: {k: 1,\nl: 2}\n", "a: [1,\nb: 2]\n",
        "a: 1\n---\nb: 2\n", "a: 1\n...\nb: 2\n", "%YAML 1.1\n---\na: 1\n", "\ufeffa: 1\nb: 2\n", "--- a\n",
        "a: 1\na: 2\n", "a:\n  x: 1\na:\n  y: 2\n", "a:\n  x: 1\n  x: 2\n", "- 1\na: 2\n", "word\na: 1\n",
        "# said\na:\n  # said\n  b: 1\n\n  c: 2\n# said\nd: 3 # said\n", "a:\r\n  b: 1\r\nc: 2\r\n", "a:\n\tb: 1\n",
        "a: |\n  b: 1\n  c: 2\nd: 1\n", "a: |2\n    b: 1\nc: 1\n", "a:\n  b: |1\n    c\n  d: 1\n",
        "a: >-\n  b\n\n  c\nd: 1\n",
        "on: 1\noff:\n  yes: 2\n", "a:\n- 1\n- b: 2\n", "a:\nb: 1\n", "a:\n  b\n", "a:\n  b: 1\n c: 2\n", "a : 1\n",
        "a: !!str 1\nb: !x 2\n", "? a\n: 1\nb: 2\n", "", "null\n", "5\n", "a: 1\nb: [",
        "a: 1\n\x00\n", f"a:\n  b: {'  ' * 60}c\n#\nd: 1\n", "a:\n   b: 1\n   c: 2\n",
    ],
)  # fmt: skip
def test_what_a_section_does_not_tell_alone(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="")
    assert list(read_config(file).items()) == list(whole(text).items())


def test_what_is_alike_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    load = yaml.load
    monkeypatch.setattr(yaml, "load", lambda text, loader: parsed.append(text) or load(text, loader))
    configs._kept.cache_clear()
    for i in range(5):
        text = f"seed: {i}\nstages:\n  export:\n    path: run-{i}\n  train:\n" + "".join(
            f"    setting_{n}: {n}\n" for n in range(200)
        )
        (tmp_path / f"{i}.yaml").write_text(text)
        found = read_config(tmp_path / f"{i}.yaml")
        assert (found["seed"], found["stages.export.path"], len(found)) == (i, f"run-{i}", 202)
    assert sum("setting_199" in text for text in parsed) == 1
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\n")
    assert read_config(tmp_path / "bytes.yaml") == read_config(tmp_path / "nowhere.yaml") == {}
