"""Pareto's front, against every pair."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.errors import ConfigError
from pipeline.figures import Figure
from pipeline.reporting.compare.front import dominates, dominators
from pipeline.reporting.compare.pareto import Pareto
from pipeline.reporting.plots import Point, undominated

NUMBER = st.one_of(st.integers(0, 3).map(float), st.floats(-5, 5), st.just(math.inf))


@given(st.integers(2, 3).flatmap(lambda n: st.lists(st.lists(NUMBER, min_size=n, max_size=n), max_size=12)))
def test_the_front_is_what_no_other_beats(points: list[list[float]]) -> None:
    found = dominators(points)

    def beats(a: list[float], b: list[float]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True)) and a != b

    on = [i for i, p in enumerate(points) if not any(beats(q, p) for q in points)]
    assert [i for i, by in enumerate(found) if not by] == on
    assert found == [[j for j in on if beats(points[j], p)] for p in points]


def test_equals_beat_each_other_not() -> None:
    assert not dominates((1, 2), (1, 2))
    assert dominators([(1, 2), (1, 2), (1, 3)]) == [[], [], [0, 1]]


def test_a_line_goes_through_the_better_ones_whichever_that_is() -> None:
    points = [Point("a", 1, [1.0], ""), Point("b", 2, [2.0], ""), Point("c", 3, [1.0], "")]
    assert [p.name for p in undominated(points)] == ["a"]
    assert [p.name for p in undominated(points, ("lower", "higher"))] == ["a", "b"]
    assert [p.name for p in undominated(points, ("higher", "higher"))] == ["b", "c"]


def front(metrics: int, rows: int) -> Pareto:
    names = ("bits", "KL", "decode")[:metrics]
    values = tuple(tuple(Figure(1 + i * (m + 1), "", ".1f") for m in range(metrics)) for i in range(rows))
    return Pareto(
        names, ("lower", "lower", "higher")[:metrics], tuple(f"$r{i}$" for i in range(rows)), values,
        tuple(tuple((f.value, f.value * 1.1) for f in row) for row in values),
        tuple((f"$r{0}$",) if i and metrics < 3 else () for i in range(rows)), (("x", "it has no KL"),), ("k",) * rows,
    )  # fmt: skip


@pytest.mark.parametrize("metrics", [2, 3])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_front_is_drawn(metrics: int, rows: int, tmp_path: Path) -> None:
    path = front(metrics, rows).draw(tmp_path / "new" / "a.png")
    assert np.asarray(Image.open(path)).std() > 0


def test_a_front_of_nothing_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to draw"):
        front(2, 0).draw(tmp_path / "a.png")
    assert "nothing is on it" in repr(front(2, 0))
    assert "x is left out: it has no KL" in front(2, 1)._repr_html_()
