"""Numbers of one kind together: their mean, how far they lie apart, and whether two of them differ by more than chance.

The rule is Welch's two-sided test at 5 % (B. L. Welch, Biometrika 34, 1947): the difference of two means over its
standard error, held against Student's t with the degrees of freedom of Welch and Satterthwaite, so that neither the
numbers nor the deviations of both have to be the same. Where one side is a single number, its deviation is taken to be
that of the other side, which makes it the test of one case against a sample (Crawford and Howell, The Clinical
Neuropsychologist 12, 1998). Two single numbers say nothing of chance.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from pipeline.figures import Figure

CHANCE = 0.05  # what is at least so likely by chance alone is noise
RULE = "Welch's t-test, two-sided, 5 %"

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Spread:
    """What repeats of one measurement came to.

    Attributes:
        mean: of all.
        deviation: of a sample, with one degree of freedom less than numbers; None: there is one number only.
        number: how many they are.
    """

    mean: float
    deviation: float | None
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value; what is not finite has a mean that is not finite, and a deviation of NaN."""
        if not all(map(math.isfinite, values)):
            mean = values[0] if len({*values}) == 1 else math.nan
            return cls(mean, math.nan if len(values) > 1 else None, len(values))
        return cls(values[0] if len({*values}) == 1 else fmean(values), _deviation(values), len(values))

    def mean_as(self, like: Figure) -> Figure:
        """The mean as figures like that one are shown."""
        whole = like.form.endswith("d")  # of counts, whose mean need be none
        form = like.form if not whole else ",.0f" if self.number < 2 else ",.1f"
        return Figure(self.mean, like.unit, form, like.better)

    def shown(self, like: Figure) -> str:
        """As the figures it is of: `1.50 ± 0.71 nats`. Of bytes the mean alone."""
        mean = self.mean_as(like)
        if self.deviation is None or like.unit == "B":
            return str(mean)
        unit = f" {mean.unit}" if mean.unit not in ("", "×") else ""
        return f"{mean.value:{mean.form}} ± {self.deviation:{mean.form}}{unit}"


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return 0.0 if len({*values}) == 1 else stdev(values)


def chance(a: Spread, b: Spread) -> float | None:
    """How likely means so far apart are where both are of one kind, 0 to 1; None: two single numbers cannot tell."""
    if a.number < 2 and b.number < 2:
        return None
    pooled = a.deviation if b.deviation is None else b.deviation
    one, other = ((pooled if s.deviation is None else s.deviation) or 0.0 for s in (a, b))
    parts = one**2 / a.number, other**2 / b.number
    error = math.sqrt(sum(parts))
    if error == 0 or not math.isfinite(error) or not math.isfinite(a.mean - b.mean):
        return 1.0 if a.mean == b.mean else 0.0 if error == 0 else None
    if min(a.number, b.number) < 2:
        freedom = float(max(a.number, b.number) - 1)
    else:
        shares = [part / sum(parts) for part in parts]  # squares of tiny parts would be zero
        freedom = 1 / sum(share**2 / (s.number - 1) for share, s in zip(shares, (a, b), strict=True))
    from scipy.special import stdtr  # half a second, that only repeats are worth

    return float(2 * stdtr(freedom, -abs(a.mean - b.mean) / error))


def together(keys: Sequence[K]) -> dict[K, list[int]]:
    """Which are alike: key → their numbers, in order."""
    found: dict[K, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return found
