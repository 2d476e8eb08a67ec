"""Long series lose points and nothing else: means, least and largest are those of what was given."""

import math
import random

import numpy as np
import pytest

from pipeline.reporting.html.scales import label, scale
from pipeline.reporting.html.thinned import Thinned
from pipeline.units import show_bytes


def given(values: list[float], most: int = 8) -> Thinned:
    found = Thinned(most)
    rng, at = random.Random(len(values)), 0
    while at < len(values):  # in parts of any size
        some = values[at : at + rng.choice((1, 2, 7, 100, 5000))]
        found.add(np.arange(at, at + len(some), dtype=float), np.array(some))
        at += len(some)
    return found


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 31, 32, 33, 1000, 12345])
def test_what_is_put_together(count: int) -> None:
    rng = random.Random(count)
    values = [rng.lognormvariate(0, 3) for _ in range(count)]
    found = given(values)
    assert len(found.points) <= 8
    assert (found.given, found.lost) == (count, 0)
    at = 0
    for x, mean, low, high in found.points:
        some = values[at : int(x) + 1]
        assert mean == pytest.approx(sum(some) / len(some))
        assert (low, high) == (min(some), max(some))
        at = int(x) + 1
    assert at == count  # the last point is there
    assert bool(found.about) == (count > 8)


def test_what_is_not_finite_is_counted() -> None:
    found = given([1.0, math.nan, 3.0, math.inf])
    assert [p[1] for p in found.points] == [1.0, 3.0]
    assert found.about == "2 of them are not finite, and left out."


@pytest.mark.parametrize(
    "values",
    [[0.0], [5.0, 5.0], [1e-9, 1.0], [-3.0, 7.0], [68.2, 68.6], [1e12, 3e12], [2.0, 90.0], [1e-300, 1e300], []],
)
def test_axes_hold_what_they_are_of(values: list[float]) -> None:
    axis = scale(values, 0, 100)
    for value in values:
        assert -1e-6 <= axis(value) <= 100 + 1e-6
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 14
    assert len({label(t, ticks) for t in ticks}) == len(ticks)
    assert all(-1e-6 <= axis(t) <= 100 + 1e-6 for t in ticks)


@pytest.mark.parametrize(("low", "high"), [(100 << 20, 170 << 20), (5 << 20, 500 << 20), (3 << 10, 90 << 10)])
@pytest.mark.parametrize("log", [True, False])
def test_ticks_of_bytes_are_round_in_the_unit_that_they_are_shown_in(low: int, high: int, log: bool) -> None:
    axis = scale([low, high], 0, 100, log=log)
    shown = [show_bytes(tick) for tick in axis.ticks(4, "B")]
    assert len(shown) >= 2
    assert all(text.partition(" ")[0].endswith((".0", ".5")) for text in shown if text != "0 B"), shown
