"""Errors as people read them."""

import pytest

from pipeline.errors import PlanError, Problem
from pipeline.reporting import console


def of(layers: int, message: str) -> list[Problem]:
    return [Problem(f"model.layers.{i}.mlp.up_proj.weight", message) for i in range(layers)]


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        (of(1, "is odd"), ["error: model.layers.0.mlp.up_proj.weight: is odd"]),
        (of(8, "is odd"), ["error: 8 problems of one kind", "  - model.layers.*.mlp.up_proj.weight (×8): is odd"]),
        (
            [*of(6, "is odd"), *of(2, "is even")],
            [
                "error: 8 problems of 2 kinds",
                "  - model.layers.*.mlp.up_proj.weight (×6): is odd",
                "  - model.layers.*.mlp.up_proj.weight (×2): is even",
            ],
        ),
        (
            [*of(4, "is odd"), *(Problem(n, "is odd") for n in "abcdef"), Problem("a", "no")],
            [
                "error: 11 problems of 2 kinds",
                "  - model.layers.*.mlp.up_proj.weight, a, b, c, d and 2 more (×10): is odd",
                "  - a: no",
            ],
        ),
        ([Problem("a", "no"), Problem("b", "no")], ["error: 2 problems", "  - a: no", "  - b: no"]),
    ],
)
def test_what_is_counted_is_what_is_shown(
    problems: list[Problem], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    console.error(PlanError(problems))
    assert capsys.readouterr().err.splitlines() == said


def test_shards_of_one_size_are_one_row() -> None:
    files = [("model-00001-of-00004.safetensors", 7), *((f"model-0000{n}-of-00004.safetensors", 5) for n in (2, 3, 4))]
    assert console.folded([*files, ("a-1.json", 3), ("a-2.json", 3)]) == [
        ("model-00001-of-00004.safetensors", 7),
        ("model-*-of-00004.safetensors ×3", 5),
        ("a-1.json", 3),
        ("a-2.json", 3),
    ]
