"""How cost grows with size: `start + factor · size^exponent`, fitted to what was measured, with the exponent's error.

Costs of computing differ by a share of themselves and not by seconds, so the logarithms are fitted: least squares of
log(cost) on log(size), the usual fit of a power law, with a start beside it that is not to be taken for slow growth.
Given the exponent, start and factor are linear and not negative (Golub and Pereyra 1973, "variable projection"), and
the exponent that is best is searched for. Its error is that of least squares at the solution, from residuals or from
the spread of the rounds, whichever is larger.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST = 4  # sizes
EXPONENTS = (-1.0, 5.0)  # between which is looked
STEP, FINE = 0.05, 1e-6  # of the exponent: on a grid, and where the search ends
SINGULAR = 1e-12  # a share: an exponent near 0, beside which a start is nothing else
WEIGHED = 4  # times that start and factor are fitted, each with the weights that the one before gives
GOLDEN = (math.sqrt(5) - 1) / 2
# Student's t, one-sided 95 %, by degrees of freedom; an error of so few points is itself uncertain.
STUDENT = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86}
NORMAL = 1.8


@dataclass(frozen=True)
class Growth:
    """Attributes:
    start: what there is at size 0.
    factor: what is beside it at size 1.
    exponent: how that grows.
    error: standard error of the exponent.
    sure: so many errors are beyond doubt, 95 % one-sided.
    end: the exponent between the two largest sizes alone: what grows faster in the end shows there first.
    end_error: its standard error.
    noise: of a cost, a share.
    """

    start: float
    factor: float
    exponent: float
    error: float
    sure: float
    end: float
    end_error: float
    noise: float

    def at(self, size: float) -> float:
        return self.start + float(self.factor * size**self.exponent)


def fitted(sizes: Sequence[float], costs: Sequence[float], spreads: Sequence[float], *, start: bool) -> Growth:
    """Fit.

    Args:
        sizes: ascending, above 0, `LEAST` or more.
        costs: at these, above 0.
        spreads: what is not sure of each, as a share of it; 0: not known.
        start: there may be one. Of what is not to grow at all there is none: a start would hide that it does.

    Raises:
        ValueError: too few, or costs that are none.
    """
    x, y = np.asarray(sizes, np.float64), np.asarray(costs, np.float64)
    if len(x) < LEAST or not (y > 0).all() or not np.isfinite(y).all():
        raise ValueError(f"{len(x)} sizes and costs {list(costs)}: at least {LEAST} are needed, with costs above 0")
    ratio = x / x[-1]
    grid = np.arange(EXPONENTS[0], EXPONENTS[1] + STEP, STEP)
    best = min(grid, key=lambda c: _lost(ratio**c, y, start))
    exponent = _searched(lambda c: _lost(ratio**c, y, start), best - STEP, best + STEP)
    power = ratio**exponent
    a, b = _linear(power, y, start)
    predicted = a + b * power
    columns = [power, b * power * np.log(ratio)] + ([np.ones_like(x)] if a > 0 else [])
    slopes = np.stack(columns, axis=1) / predicted[:, None]
    freedom = len(x) - slopes.shape[1]
    residual = float(np.sum(np.log(y / predicted) ** 2))
    known = float(np.sqrt(np.mean(np.square(spreads))))
    noise = max(math.sqrt(residual / freedom), known)
    error = noise * math.sqrt(np.linalg.pinv(slopes.T @ slopes)[1, 1])
    end, end_error = _end(x, y, a, noise)
    sure = STUDENT.get(freedom, NORMAL)
    return Growth(a, b * float(x[-1]) ** -exponent, float(exponent), error, sure, end, end_error, noise)


def _linear(power: Any, y: Any, start: bool) -> tuple[float, float]:
    """Start and factor, neither below 0, whose sum is nearest to `y` by its share."""
    a, b = 0.0, float(np.exp(np.mean(np.log(y / power))))
    if not start:
        return a, b
    weights = y**-2.0
    for _ in range(WEIGHED):  # normal equations of two unknowns, in which `power` is at most 1
        w, wp, wpp = weights.sum(), weights @ power, weights @ power**2
        wy, wpy = weights @ y, (weights * power) @ y
        if (apart := w * wpp - wp**2) <= SINGULAR * w * wpp:
            return 0.0, b
        found = (wpp * wy - wp * wpy) / apart, (w * wpy - wp * wy) / apart
        if min(found) <= 0:
            return 0.0, b
        weights = (found[0] + found[1] * power) ** -2.0
    return float(found[0]), float(found[1])


def _lost(power: Any, y: Any, start: bool) -> float:
    """Sum of squares of what logarithms are off by."""
    a, b = _linear(power, y, start)
    return float(np.sum(np.log(y / (a + b * power)) ** 2))


def _searched(lost: Any, low: float, high: float) -> float:
    """Golden-section search."""
    while high - low > FINE:
        a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, b) if lost(a) < lost(b) else (a, high)
    return (low + high) / 2


def _end(x: Any, y: Any, start: float, noise: float) -> tuple[float, float]:
    """The exponent between the last two, without the start, and its error; 0 when nothing is left without it."""
    rest, apart = y[-2:] - start, math.log(x[-1] / x[-2])
    if not (rest > noise * y[-2:]).all():
        return 0.0, math.inf
    return math.log(rest[1] / rest[0]) / apart, noise * float(np.hypot(*(y[-2:] / rest))) / apart
