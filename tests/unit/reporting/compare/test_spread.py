"""Repeats: their spread, and whether two of them differ by more than chance."""

import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.figures import Figure
from pipeline.reporting.compare.spread import Spread, chance, together

VALUES = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=9)


@given(VALUES, VALUES)
def test_two_samples_are_told_apart_by_welchs_test(a: list[float], b: list[float]) -> None:
    if len({*a}) == 1 and len({*b}) == 1:
        assert chance(Spread.of(a), Spread.of(b)) == (1.0 if a[0] == b[0] else 0.0)
        return
    from scipy import stats  # takes seconds to import, in every process that collects tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that one of them is constant
        expected = float(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert chance(Spread.of(a), Spread.of(b)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_one_number_against_several_takes_their_deviation() -> None:
    """Crawford and Howell's test: of five controls with mean 50 and deviation 10, a case of 30."""
    from scipy import stats

    several = Spread(50.0, 10.0, 5)
    t = (30 - 50) / (10 * math.sqrt(6 / 5))
    assert chance(Spread.of([30.0]), several) == pytest.approx(2 * stats.t.sf(-t, 4))
    assert chance(several, Spread.of([30.0])) == chance(Spread.of([30.0]), several)
    assert chance(Spread.of([1.0]), Spread.of([2.0])) is None, "of which nobody knows how they vary"


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, 1.0], [math.nan]])
def test_what_is_not_finite_is_no_noise(values: list[float]) -> None:
    assert not math.isfinite(Spread.of(values).mean) or math.isnan(Spread.of(values).mean)
    assert chance(Spread.of(values), Spread.of([1.0, 2.0])) is None
    assert Spread.of([math.inf, math.inf]).mean == math.inf


def test_spreads_are_shown_as_their_figures() -> None:
    assert Spread.of([1.0, 2.0]).shown(Figure(1, "nats", ".2f")) == "1.50 ± 0.71 nats"
    assert Spread.of([1024, 3072]).shown(Figure(1, "B")) == "2.0 KiB"
    assert Spread.of([3, 4]).shown(Figure(3, form=",d")) == "3.5 ± 0.7"
    assert Spread.of([3]).shown(Figure(3, form=",d")) == "3"
    assert together("abca") == {"a": [0, 3], "b": [1], "c": [2]}
