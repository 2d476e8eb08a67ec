"""Exponents of made data: with a start, with noise, quadratic, flat, and linear with something quadratic in the end."""

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.bench.fit import fitted
from pipeline.bench.growths import too_much

WIDE = (1e2, 1e3, 1e4, 1e5, 1e6)
DOUBLED = tuple(128.0 * 2**i for i in range(6))
TOLERANCE, TIMES = 0.2, 24

Cost = Callable[[np.ndarray], np.ndarray]


def costs(cost: Cost, sizes: tuple[float, ...], noise: float, seed: int) -> list[float]:
    drawn = np.random.default_rng(seed).standard_normal(len(sizes))
    return list(cost(np.asarray(sizes)) * np.exp(noise * drawn))


@pytest.mark.parametrize(
    ("cost", "sizes", "start", "exponent"),
    [
        (lambda n: 3e-6 * n, WIDE, 0.0, 1.0),
        (lambda n: 0.9 + 1.5e-4 * n, WIDE, 0.9, 1.0),
        (lambda n: 0.9 + 2e-9 * n**2, WIDE, 0.9, 2.0),
        (lambda n: 2.0 + 0.1 * np.sqrt(n), WIDE, 2.0, 0.5),
    ],
)
def test_without_noise_it_is_exact(cost: Cost, sizes: tuple[float, ...], start: float, exponent: float) -> None:
    found = fitted(sizes, costs(cost, sizes, 0, 0), [0] * len(sizes), start=True)
    assert found.exponent == pytest.approx(exponent, abs=1e-3)
    assert found.start == pytest.approx(start, rel=5e-3, abs=1e-4)
    assert found.end == pytest.approx(exponent, abs=5e-3)
    assert found.error < 1e-3
    assert found.at(sizes[-1]) == pytest.approx(float(cost(np.asarray(sizes))[-1]), rel=1e-3)


@pytest.mark.parametrize(
    ("cost", "sizes", "exponent"),
    [
        (lambda n: 1 + 1e-4 * n, WIDE, 1.0), (lambda n: 1 + 1e-8 * n**2, WIDE, 2.0),
        (lambda n: 3 + 1e-3 * n, DOUBLED, 1.0), (lambda n: 3 + 1e-6 * n**2, DOUBLED, 2.0),
    ],
)  # fmt: skip
def test_the_error_is_what_repeats_lie_apart(cost: Cost, sizes: tuple[float, ...], exponent: float) -> None:
    """Of noise that is drawn anew the exponents lie apart as their own errors say, and are right in the middle."""
    found = [fitted(sizes, costs(cost, sizes, 0.03, i), [0] * len(sizes), start=True) for i in range(TIMES)]
    exponents = [f.exponent for f in found]
    assert np.mean(exponents) == pytest.approx(exponent, abs=3 * np.std(exponents) / np.sqrt(TIMES) + 0.02)
    assert 0.5 < np.std(exponents) / np.sqrt(np.mean([f.error**2 for f in found])) < 1.5


@pytest.mark.parametrize(
    ("name", "cost", "sizes", "most", "reds"),
    [
        ("linear", lambda n: 1 + 1e-4 * n, WIDE, 1, (0, 0)),
        ("linear, most of it a start", lambda n: 3 + 1e-3 * n, DOUBLED, 1, (0, 1)),
        ("n log n", lambda n: 1 + 1e-5 * n * np.log(n), WIDE, 1, (0, 0)),
        ("quadratic", lambda n: 1 + 1e-8 * n**2, WIDE, 1, (TIMES, TIMES)),
        ("quadratic, hardly above its start", lambda n: 3 + 1e-6 * n**2, DOUBLED, 1, (TIMES - 1, TIMES)),
        ("linear, and quadratic in the end", lambda n: 1 + 1e-4 * n + 1e-9 * n**2, WIDE, 1, (TIMES, TIMES)),
        ("quadratic, as is expected", lambda n: 1 + 1e-8 * n**2, WIDE, 2, (0, 0)),
        ("flat, and may grow", lambda n: 3 + 0 * n, DOUBLED, 1, (0, 0)),
        ("flat", lambda n: 1 + 0 * n, WIDE, 0, (0, 0)),
        ("linear beside a start, where nothing is to grow", lambda n: 1 + 1e-4 * n, WIDE, 0, (TIMES, TIMES)),
    ],
)
def test_what_grows_too_fast_is_red(
    name: str, cost: Cost, sizes: tuple[float, ...], most: float, reds: tuple[int, int]
) -> None:
    """With noise of 3 %."""
    found = [fitted(sizes, costs(cost, sizes, 0.03, i), [0] * len(sizes), start=most > 0) for i in range(TIMES)]
    red = sum(bool(too_much(f, most, TOLERANCE)) for f in found)
    assert reds[0] <= red <= reds[1], name


def test_rounds_that_lie_far_apart_make_the_error_larger() -> None:
    sure, unsure = (fitted(WIDE, [1e-3 * n for n in WIDE], [s] * 5, start=True) for s in (0.0, 0.1))
    assert sure.error < 1e-6
    assert unsure.error > 0.005
    assert unsure.noise == pytest.approx(0.1)


@pytest.mark.parametrize(("sizes", "given"), [((1, 2, 3), (1, 2, 3)), ((1, 2, 3, 4), (1, 2, 0, 4))])
def test_what_cannot_be_fitted(sizes: tuple[float, ...], given: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="at least 4"):
        fitted(sizes, given, [0] * len(sizes), start=True)
