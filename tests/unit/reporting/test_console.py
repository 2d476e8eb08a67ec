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
