"""Each metric as a strip with a scale of its own, in which every run has its mark, its repeats a line as long as their
deviation, and the baseline a rule through all of it."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from pipeline.errors import some
from pipeline.figures import Figure
from pipeline.reporting.compare.deltas import ARROWS, Change
from pipeline.reporting.html.drawing import LETTER, colour, fitted, legend, line, marker, says, svg, words
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Table
from pipeline.reporting.html.scales import label, scale
from pipeline.units import show_bytes

LANES = 8  # runs that have lanes of their own; more share one
LANE, GAP = 15.0, 40.0  # high: a lane, and what a strip has beside its lanes
MOST = 24  # strips
WORSE = "✗\u00a0worse"


def strips(
    names: Sequence[str], changes: Sequence[Mapping[str, Change]], metrics: Mapping[str, Figure]
) -> Chart | None:
    """The chart, of metrics in which runs differ; None: there is none.

    Args:
        names: of the rows, the baseline first.
        changes: of each row its metrics by name.
        metrics: those to be drawn, with their units and what is better.
    """
    drawn = {name: _marks(changes, name) for name in metrics}
    differ = [name for name, marks in drawn.items() if len({m.mean for _, m in marks}) > 1]
    if not differ:
        return None
    shown = differ[:MOST]
    lanes = len(names) if len(names) <= LANES else 1
    high = LANE * lanes + GAP

    def draw(width: int) -> Markup:
        room = 190.0 if width > NARROW else 0.0
        above = 0.0 if room else 20.0
        parts = []
        for n, name in enumerate(shown):
            top = n * (high + above)
            head = f"{name} {ARROWS[metrics[name].better]}".strip() + _unit(metrics[name])
            parts.append(words(0, top + (24 if room else 14), fitted(head, room - 14 if room else width), "l strong"))
            place = room, top + above, float(width), lanes
            parts.append(_strip(names, drawn[name], changes, name, place, metrics[name].unit))
        return svg(width, int(len(shown) * (high + above)), f"{len(shown)} metrics of {len(names)} runs", joined(parts))

    rest = [name for name in metrics if name not in shown]
    about = "↓ lower is better, ↑ higher is better; each metric has its own scale, by magnitudes where it has several. "
    about += "Dashed: the baseline."
    if any(m.deviation for marks in drawn.values() for _, m in marks):
        about += " A line through a mark is ± the deviation of repeats."
    if rest:
        about += f" Not drawn: {some(rest, most=MOST)}."
    table = Table(
        "Means of each metric", ("metric", *names),
        [(name, *(None if (a := of[name].after) is None else a.figure for of in changes)) for name in shown],
    )  # fmt: skip
    key = legend(names, [marker(i, 11, 7, 4.5) for i, _ in enumerate(names)])
    return Chart("Each metric, run beside run", draw, table, about, key)


class _Mark(NamedTuple):
    """Where one is, and how far its repeats lie apart."""

    mean: float
    deviation: float


def _marks(changes: Sequence[Mapping[str, Change]], name: str) -> list[tuple[int, _Mark]]:
    """Of rows that have a finite value, and of the same as the baseline's, their numbers and marks."""
    found = []
    for i, of in enumerate(changes):
        after = of[name].after
        if after is not None and of[name].verdict != "not comparable" and math.isfinite(after.spread.mean):
            found.append((i, _Mark(after.spread.mean, after.spread.deviation or 0.0)))
    return found


def _strip(
    names: Sequence[str], marks: Sequence[tuple[int, _Mark]], changes: Sequence[Mapping[str, Change]], name: str,
    place: tuple[float, float, float, int], unit: str,
) -> Markup:  # fmt: skip
    """One metric. `place`: its left, its top, its right, and how many lanes it has."""
    left, top, right, lanes = place
    told = LETTER * len(WORSE) + 24
    ends = [m.mean + side * m.deviation for _, m in marks for side in (-1, 1)]
    x = scale(ends, left + 10, right - told, log=None if min(ends) > 0 else False, pad=0.08)
    bottom = top + 10 + LANE * lanes
    parts = [line(left, bottom, right - told + 6, bottom, "a")]
    ticks = x.ticks(4 if right > NARROW else 3, unit)
    for value in ticks:
        parts += [line(x(value), bottom, x(value), bottom + 4, "a"),
                  words(x(value), bottom + 16, _tick(value, ticks, unit), "t", "middle")]  # fmt: skip
    if marks[0][0] == 0:
        at = x(marks[0][1].mean)
        parts.append(line(at, top + 4, at, bottom, "ref"))
    for i, mark in marks:
        y = top + 10 + LANE * (i if lanes > 1 else 0) + LANE / 2
        said = _said(names[i], name, changes[i][name])
        body = [says(said), el("circle", cx=x(mark.mean), cy=y, r=9.0, class_="ring")]
        if mark.deviation:
            low, high = x(mark.mean - mark.deviation), x(mark.mean + mark.deviation)
            body.append(line(low, y, high, y, f"s {colour(i)}"))
        body.append(marker(i, x(mark.mean), y, 4.5))
        parts.append(el("g", *body, class_="point", tabindex=0, role="img", aria_label=said, data_key=names[i]))
        if lanes > 1 and changes[i][name].verdict == "worse":
            parts.append(words(right - told + 12, y + 4, WORSE, "worse"))
    return joined(parts)


def _said(row: str, name: str, made: Change) -> str:
    verdict = WORSE if made.verdict == "worse" else made.verdict
    change = ", ".join(filter(None, [made.difference, made.share]))
    return f"{row}: {name} {made.after}" + (f", {change}: {verdict}" if change else f", {verdict}")


def _tick(value: float, ticks: Sequence[float], unit: str) -> str:
    return show_bytes(value) if unit == "B" else label(value, ticks)


def _unit(figure: Figure) -> str:
    return f" [{figure.unit}]" if figure.unit not in ("", "B", "×") else ""
