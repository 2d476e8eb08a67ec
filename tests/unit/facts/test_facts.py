"""Facts are said once, and rotary settings are one thing in every spelling."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import SourceError
from plugins.facts import codebooks, gemma, gpt_oss, rope

ROOT = Path(__file__).parents[3]
YARN = {"factor": 32.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize("fact", ["0.6961928009986877", "(?i:'s|'t|'re|'ve", "1.702", "150000.0", "'up_proj')"])
def test_once(fact: str) -> None:
    """In no file that runs but one, and that one is in `facts`; benchmarks write out whom they compare with."""
    some = [(p, tree) for p, (tree, values) in _everything().items() if fact.strip("')") in values]
    said = [p.relative_to(ROOT).parts[:2] for p, tree in some if fact in ast.unparse(tree)]
    assert said == [("plugins", "facts")]


@cache
def _everything() -> dict[Path, tuple[ast.Module, str]]:
    """Every file that runs, as `_code` has it."""
    files = [p for room in ("pipeline", "stages", "plugins") for p in (ROOT / room).rglob("*.py")]
    return {p: _code(p.read_text()) for p in files if "bench" not in p.parts}


def _code(text: str) -> tuple[ast.Module, str]:
    """Without docstrings and comments, which may speak of anything; and all values that are written out in it."""
    tree, values = ast.parse(text), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant("")
        elif isinstance(node, ast.Constant):
            values.append(str(node.value))
    return tree, "\n".join(values)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", **YARN}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn", **YARN}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "yarn", **YARN}},
        {"rope_theta": 5e5, "rope_parameters": {}, "rope_scaling": {"type": "yarn", **YARN}},
        {
            "rope_theta": 5e5,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0},
            "rope_scaling": {"rope_type": "yarn", **YARN},
        },
        {
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn", **YARN, "original_max_position_embeddings": 9},
            "original_max_position_embeddings": 4096,
            "max_position_embeddings": 99,
        },
        {"rope_parameters": {"rope_theta": 5e5, "type": "yarn", "factor": 32.0}, "max_position_embeddings": 4096},
    ],
)
def test_every_spelling_is_one(config: dict[str, Any]) -> None:
    assert rope.parameters(config) == {"rope_theta": 5e5, "rope_type": "yarn", **YARN}


def test_what_is_not_said() -> None:
    assert rope.parameters({}) == {"rope_theta": 1e4, "rope_type": "default"}
    assert rope.parameters({}, theta=None)["rope_theta"] is None
    # Scaling counts, also where no base is named.
    assert rope.parameters({"rope_scaling": {"type": "linear", "factor": 2.0}})["factor"] == 2.0
    assert gpt_oss.rope({}) == {"rope_theta": 15e4, **gpt_oss.YARN, "original_max_position_embeddings": 4096}
    assert gemma.rope({}, gemma.SLIDING) == {"rope_theta": 1e4, "rope_type": "default"}
    assert gemma.rope({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, gemma.FULL) == {
        "rope_theta": 1e6, "rope_type": "linear", "factor": 8.0,
    }  # fmt: skip
    assert gpt_oss.rope({"rope_parameters": {}}) == {"rope_theta": 15e4, "rope_type": "default"}
    assert rope.parameters({"rope_scaling": {"rope_type": "yarn", "truncate": None}})["truncate"] is False
    by_kind = {"rope_parameters": {gemma.FULL: {"rope_type": "default"}, gemma.SLIDING: {"rope_type": "default"}}}
    assert [gemma.rope(by_kind, kind)["rope_theta"] for kind in (gemma.FULL, gemma.SLIDING)] == [1e6, 1e4]


GEMMA = {
    "rope_theta": 5e5, "rope_local_base_freq": 5e3, "max_position_embeddings": 96,
    "original_max_position_embeddings": 7,
}  # fmt: skip


def test_gemma_has_kinds_of_layers() -> None:
    """What lies beside is of one kind of layers each, and of contexts only the longest one is."""
    yarn = {"rope_type": "yarn", "factor": 32.0}
    for given in ({"rope_scaling": yarn}, {"rope_parameters": {gemma.FULL: yarn}}):
        full, sliding = (gemma.rope({**GEMMA, **given}, kind) for kind in (gemma.FULL, gemma.SLIDING))
        assert full == {**yarn, "rope_theta": 5e5, "original_max_position_embeddings": 96}
        assert sliding == {"rope_type": "default", "rope_theta": 5e3}
    both = {"rope_parameters": {gemma.FULL: {**yarn, "rope_theta": 3.0}}, "rope_scaling": {"factor": 2.0}}
    assert gemma.rope(both, gemma.FULL) == {**yarn, "rope_theta": 3.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"rope_parameters": {"rope_theta": 3.0}}, "rope_parameters names no kind of layers"),
        ({"rope_parameters": {gemma.FULL: 3.0, gemma.SLIDING: {}}}, "has 3.0 for full_attention; an object"),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "'linear' as its type, where programs disagree"),
        ({"rope_scaling": {"rope_type": "yarn", **YARN, "truncate": False}}, "truncate of Gemma 3"),
        ({"rope_parameters": {gemma.FULL: {"rope_type": "yarn", **YARN}, "truncate": False}}, "truncate of Gemma 3"),
    ],
)
def test_what_programs_disagree_on_is_refused_of_gemma(config: dict[str, Any], says: str) -> None:
    with pytest.raises(SourceError) as caught:
        gemma.rope(config, gemma.FULL)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("config", "kind", "says"),
    [
        ({"rope_scaling": [1]}, None, "rope_scaling is [1]; an object is expected"),
        (
            {"rope_scaling": {"full_attention": {}}},
            None,
            "rope_scaling is by kind of layers (full_attention); this model takes one for all of its layers",
        ),
        (
            {"rope_parameters": {"full_attention": {}}},
            "sliding_attention",
            "nothing for layer type 'sliding_attention'",
        ),
    ],
)
def test_what_is_no_setting_is_refused(config: dict[str, Any], kind: str | None, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        rope.parameters(config, kind)
    assert says in str(caught.value)


def test_code_books_cannot_be_changed_by_who_reads_them() -> None:
    for table in (codebooks.nf4(), codebooks.dynamic8()):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0
        assert (np.diff(table) > 0).all()
