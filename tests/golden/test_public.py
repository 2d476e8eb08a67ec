"""The tree has exactly what public.json says, and CONTRIBUTING.md names every part of it."""

import copy
from pathlib import Path

import pytest

from pipeline.config import moved
from tests.golden import public

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_tree_has_what_is_public() -> None:
    expected, now = public.flat(public.expected()), public.flat(public.now())
    changed = {name: (expected.get(name), now.get(name)) for name in expected | now}
    assert {name: pair for name, pair in changed.items() if pair[0] != pair[1]} == {}, (
        "meant to change? `make golden`, and say so in CHANGELOG.md"
    )


def test_what_is_said_to_be_public_is_what_is_tested() -> None:
    section = CONTRIBUTING.read_text().partition("## What is public")[2].partition("\n## ")[0]
    named = {*public.FUNCTIONS, *public.CONTRACTS} - {"pipeline.testing"}
    unsaid = [name for name in named if f"`{name}`" not in section]
    assert unsaid == []


def test_yaml_names_only_what_is_public() -> None:
    assert public.targets() == set(public.expected()["targets"])


def test_what_goes_must_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    before = public.expected()
    after = copy.deepcopy(before)
    del after["targets"]["stages.load.Load"]
    del after["targets"]["plugins.quant.blockwise.Blockwise"]["ties"]
    assert public.unexplained(before, before) == []
    said = public.unexplained(before, after)
    assert len(said) == 2
    assert "stages.load.Load: moved.TARGETS" in "".join(said)
    assert "Blockwise ties: moved.FIELDS" in "".join(said)
    monkeypatch.setattr(moved, "TARGETS", {"stages.load.Load": "stages.decode.Decode"})
    lost = [("stages.decode.Decode", name) for name in before["targets"]["stages.load.Load"]]
    fields = dict.fromkeys([("plugins.quant.blockwise.Blockwise", "ties"), *lost], "another")
    monkeypatch.setattr(moved, "FIELDS", fields)
    assert public.unexplained(before, after) == []


def test_types_are_spelled_the_same_on_every_python() -> None:
    def given(a: Path | None, *b: int, c: tuple[str, ...] = (), **d: "Path") -> dict[str, list[Path]]: ...

    expected = "(a: Path | None, *b: int, c: tuple[str, ...] = (), **d: Path) -> dict[str, list[Path]]"
    assert public.signature(given) == expected
