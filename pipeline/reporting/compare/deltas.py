"""Metrics of runs against those of one of them: how far each changed, and whether that is better, worse or noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.figures import Better, Figure, SoFar
from pipeline.reporting.compare.measures import Ground, Measured, apart
from pipeline.reporting.compare.spread import CHANCE, Spread, chance
from pipeline.units import show_bytes

Verdict = Literal["baseline", "better", "worse", "changed", "same", "within noise", "not comparable", "missing"]
ARROWS: Mapping[str, str] = {"lower": "↓", "higher": "↑", "": ""}
SAID: Mapping[Verdict, str] = {"baseline": "", "worse": "✗ worse", "missing": ""}  # not by colour alone


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a row: of one run, or of repeats together.

    Attributes:
        spread: its values, where each run of the row has one.
        like: how its numbers are shown.
        better: which is better.
        ground: what it was measured on.
        lacking: names of the runs of the row that do not have it, or measured it on something else.
        so_far: the run is not complete.
    """

    spread: Spread
    like: Figure
    better: Better
    ground: Ground
    lacking: tuple[str, ...] = ()
    so_far: bool = False

    def __str__(self) -> str:
        return str(self.figure) if self.so_far else self.spread.shown(self.like)

    @property
    def figure(self) -> Figure:
        """Its mean."""
        mean = self.spread.mean_as(self.like)
        return SoFar.of(mean) if self.so_far else mean


@dataclass(frozen=True, slots=True)
class Change:
    """A metric of a row against that of the baseline.

    Attributes:
        before, after: of the baseline and of the row; None: it has none.
        absolute: after − before, in the metric's unit; None: there is no such number.
        relative: that as a share of |before|; None where there is none, and where that is 0.
        chance: how likely such a change is by chance alone (`spread.chance`); None: there are no repeats.
        verdict: in a word. `changed`, where nobody said what is better, and of times without repeats.
        why: it is not comparable, or missing.
    """

    before: Metric | None
    after: Metric | None
    absolute: float | None
    relative: float | None
    chance: float | None
    verdict: Verdict
    why: str = ""

    @property
    def difference(self) -> str:
        """As people read it: with its sign, and as many digits as there are to see."""
        if self.absolute is None or self.after is None or self.verdict == "baseline":
            return ""
        if self.after.like.unit == "B":
            return f"{'+' if self.absolute > 0 else '−' if self.absolute < 0 else '±'}{show_bytes(abs(self.absolute))}"
        return signed(self.absolute)

    @property
    def share(self) -> str:
        """The same relative to what it was."""
        return "" if self.relative is None or self.verdict == "baseline" else f"{signed(100 * self.relative)} %"


def signed(number: float) -> str:
    """`+0.00691`, `−12.3`, `0`."""
    if number == 0:
        return "0"
    digits = 0 if abs(number) >= 100 else 3
    text = f"{abs(number):,.0f}" if digits == 0 and math.isfinite(number) else f"{abs(number):.3g}"
    return f"{'+' if number > 0 else '−'}{text}"


def metric_of(name: str, runs: Sequence[Measured]) -> Metric | None:
    """A metric of runs that are repeats of each other; None: none of them has it."""
    having = [one for one in runs if name in one.metrics]
    if not having:
        return None
    ground = having[0].grounds.get(name, {})
    same = [one for one in having if not apart(ground, one.grounds.get(name, {}))]
    figures = [one.metrics[name] for one in same]
    like = figures[0]
    alike = {id(one) for one in same}  # what is equal is not looked for: that takes long of many
    lacking = tuple(one.run.name for one in runs if id(one) not in alike)
    so_far = runs[0].run.state != "complete"  # and then it is alone
    return Metric(Spread.of([f.value for f in figures]), like, like.better, ground, lacking, so_far)


def change(before: Metric | None, after: Metric | None, *, baseline: bool = False) -> Change:
    """What became of a metric.

    Args:
        baseline: it is the baseline's own.
    """
    if baseline or before is None or after is None:
        lacks = "" if baseline else "it has none" if after is None else "the baseline has none"
        verdict: Verdict = "missing" if after is None or not baseline else "baseline"
        return Change(before, after, None, None, None, verdict, lacks)
    why = apart(before.ground, after.ground)
    if before.like.unit != after.like.unit:
        why = ["unit", *why]
    if before.better and after.better and before.better != after.better:
        why = ["direction", *why]
    if why:
        return Change(before, after, None, None, None, "not comparable", f"other {', '.join(why)}")
    was, now = before.spread.mean, after.spread.mean
    if math.isnan(was) or math.isnan(now):
        return Change(before, after, None, None, None, "not comparable", "not a number")
    absolute = 0.0 if now == was else now - was
    relative = absolute / abs(was) if was and math.isfinite(was) and math.isfinite(absolute) else None
    likely = chance(before.spread, after.spread)
    better = after.better or before.better
    if likely is None and after.like.unit == "s":
        better = ""  # no two runs take the same time, and of one each nothing is known of noise
    return Change(before, after, absolute, relative, likely, _verdict(absolute, likely, better))


def worsening(absolute: float, better: Better) -> float:
    """How far it went in the direction that is worse; negative: it got better."""
    return absolute if better == "lower" else -absolute


def _verdict(absolute: float, likely: float | None, better: Better) -> Verdict:
    if absolute == 0:
        return "same"
    if likely is not None and likely >= CHANCE:
        return "within noise"
    if not better:
        return "changed"
    return "worse" if worsening(absolute, better) > 0 else "better"


def as_json(made: Change) -> dict[str, Any]:
    """What a file has of it; what is not finite is None."""
    found: dict[str, Any] = {"verdict": made.verdict, "why": made.why}
    if made.after is not None:
        found |= {
            "mean": made.after.spread.mean, "deviation": made.after.spread.deviation,
            "number": made.after.spread.number, "unit": made.after.like.unit, "better": made.after.better,
            "lacking": list(made.after.lacking),
        }  # fmt: skip
    return found | {"change": made.absolute, "relative": made.relative, "chance": made.chance}
