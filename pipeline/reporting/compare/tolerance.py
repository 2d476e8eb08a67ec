"""How much worse a metric may get: `perplexity>1%`, `KL>0.002`, `decode<-5%`, `size>1MiB`, for somebody's CI.

What is written is the change that is too much: in the metric's unit, or another for bytes and seconds, or with `%`
relative to what it was. It goes in the direction in which the metric gets worse.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError, did_you_mean
from pipeline.figures import Figure
from pipeline.records.query import meant
from pipeline.records.run import key_of
from pipeline.reporting.compare.deltas import Change
from pipeline.units import parse_amount, show_bytes, show_seconds

OPTION = "--fail-if"
FORM = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>[<>]=?|=)\s*(?P<much>[^<>=]+?)\s*")
Limits = Mapping[str, Sequence[str]]
"""What `--fail-if` said → a line for each row that breaks it."""
LONG = {"B": show_bytes, "s": show_seconds}  # units that are shown in others of their kind


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Attributes:
    given: as typed.
    name: of the metric.
    most: by how much it may get worse, at least 0.
    relative: `most` is a share of what it was, else in its unit.
    """

    given: str
    name: str
    most: float
    relative: bool

    def broken(self, row: str, change: Change) -> str | None:
        """Why a row fails; None: it does not."""
        head = f"{row}: {self.name}"
        if change.verdict in ("missing", "not comparable"):
            return f"{head}: {change.verdict}: {change.why} ({self.given})"
        before, after = change.before, change.after
        if before is None or after is None or change.absolute is None:
            return None
        if lacking := [*before.lacking, *after.lacking]:
            return f"{head}: missing, or of something else, in {', '.join(lacking)} ({self.given})"
        up = (after.better or before.better) == "lower"
        if _worse(before.spread.mean, after.spread.mean, self.most, relative=self.relative, up=up) <= 0:
            return None
        share = f", {change.share}" if change.share else ""
        noise = ", within noise" if change.verdict == "within noise" else ""
        return f"{head}: {before} → {after} ({change.difference}{share}{noise}); allowed: {self._allowed(after.like)}"

    def _allowed(self, like: Figure) -> str:
        if self.relative:
            return f"{100 * self.most:g} % worse"
        if like.unit in LONG:
            return f"{LONG[like.unit](self.most)} worse"
        return f"{self.most:g} {like.unit}".rstrip() + " worse"


def _worse(before: float, after: float, most: float, *, relative: bool, up: bool) -> float:
    """By how much more than allowed it got worse; a change that is exactly what is allowed is 0 or less.

    A hair is forgiven, of the rounding that the subtraction of two doubles brings: 1.01 − 1 is more than 0.01.
    """
    worse = after - before if up else before - after
    allowed = most * abs(before) if relative else most
    if not math.isfinite(worse):
        return 0.0 if after == before else worse
    hair = 4 * math.ulp(max(abs(before), abs(after)))
    return worse - allowed - (hair if most else 0.0)


def tolerance(given: str, metrics: Mapping[str, Figure]) -> Tolerance:
    """What `--fail-if` says.

    Args:
        metrics: those that the runs have, by name, with what is better.

    Raises:
        ConfigError: it cannot be read, no run has such a metric, nobody says what is better of it, or it names a change
            for the better.
    """
    match = FORM.fullmatch(given)
    example = "--fail-if 'perplexity>1%', 'KL>0.002', 'size>1MiB' or 'decode<-5%'"
    if match is None or match["sign"] not in "<>":
        raise ConfigError(f"{OPTION} {given!r}: is no metric with the change that is too much; write {example}")
    name = named(match["name"], metrics, f"{OPTION} {given}")
    much, relative = match["much"].removesuffix("%").rstrip(), match["much"].endswith("%")
    number = parse_amount(much, "" if relative else metrics[name].unit, f"{OPTION} {given!r}")
    better = metrics[name].better
    if not better:
        raise ConfigError(f"{OPTION} {given}: nobody says whether more or less of {name} is better, so none is worse")
    if (match["sign"] == ">") != (better == "lower") or (number < 0 if better == "lower" else number > 0):
        right = f"{name}{'>' if better == 'lower' else '<-'}{match['much'].lstrip('+-')}"
        raise ConfigError(f"{OPTION} {given}: of {name} {better} is better; write {OPTION} '{right}'")
    most = abs(number)
    return Tolerance(given.strip(), name, most / 100 if relative else most, relative)


def named(given: str, metrics: Iterable[str], where: str) -> str:
    """The metric that is called so, or typed so: `bits_a_weight`, or short, as conditions on runs have it: `loss`; of
    `tokens/s`, a unit, that which alone has it.

    Raises:
        ConfigError: none is, or several are.
    """
    known = list(metrics)
    found = [n for n in known if n == given]
    for key in meant(key_of(given)):
        found = found or [n for n in known if key_of(n) == key]
    if not found and isinstance(metrics, Mapping):
        units: Mapping[str, Any] = metrics
        found = [n for n in known if units[n].unit and units[n].unit == given]
    if len(found) > 1:
        raise ConfigError(f"{where}: {given} may be {' or '.join(found)}; write one of them")
    if not found:
        raise ConfigError(f"{where}: no run has a metric {given!r}{did_you_mean(given, map(key_of, known))}")
    return found[0]


def failures(
    rows: Sequence[str], changes: Sequence[Mapping[str, Change]], tolerances: Sequence[Tolerance]
) -> list[str]:  # fmt: skip
    """A line for each row, beside the baseline's, and tolerance that it breaks."""
    return [
        why
        for one in tolerances
        for row, change in list(zip(rows, changes, strict=True))[1:]
        if (why := one.broken(row, change[one.name])) is not None
    ]
