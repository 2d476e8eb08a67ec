"""Runs over any two metrics with a third as size and colour: drawn for three of them, and by JavaScript for any that
somebody chooses. Where values lie on an axis is computed here alone; the script only puts points where it says.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.records.run import key_of
from pipeline.reporting.compare.front import dominators
from pipeline.reporting.html.drawing import frame, rect, says, svg, words
from pipeline.reporting.html.errors import STEPS
from pipeline.reporting.html.markup import clean, el, joined, number, shown
from pipeline.reporting.html.parts import NARROW, Chart, Table
from pipeline.reporting.html.scales import Scale, finite, label, scale
from pipeline.reporting.html.tradeoff import GAINED, PAID, Box, free_place
from pipeline.units import show_bytes

TITLE = "Any three metrics"
FEWEST = 3
LEFT, RIGHT, TOP, BELOW = 60, 14, 30, 40  # units around a drawing
PAD = 0.09
SMALL, LARGE = 5.0, 11.0
NAMED = 12  # runs, of which each has its name beside it
FRONT = "no other beats it"


@dataclass(frozen=True)
class Measure:
    """A metric of several runs.

    Attributes:
        name: of it.
        values: of each run; None: it has none.
    """

    name: str
    values: Sequence[Figure | None]

    @property
    def given(self) -> list[Figure]:
        return [v for v in self.values if v is not None]

    @property
    def sign(self) -> int:
        return -1 if self.given[0].better == "higher" else 1

    @cached_property
    def unit(self) -> Scale:
        return self.over(0.0, 1.0)

    def over(self, start: float, end: float) -> Scale:
        return scale([v.value for v in self.given], start, end, pad=PAD)

    @property
    def title(self) -> str:
        unit = self.given[0].unit
        head = f"{self.name} [{unit}]" if unit not in ("", "B", "×") else self.name
        return f"{head}, by magnitudes" if self.unit.log else head

    def share(self, value: Figure) -> float:
        """Where it lies between the least and the largest, 0 to 1."""
        low, high = self.ends
        return (self.unit(value.value) - low) / (high - low)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Where the least and the largest are."""
        at = [self.unit(v.value) for v in self.given]
        return min(at), max(at)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        bytes_ = self.given[0].unit == "B"
        found = self.unit.ticks(5, "B" if bytes_ else "")
        return [(self.unit(v), show_bytes(v) if bytes_ else label(v, found)) for v in found]

    @property
    def told(self) -> dict[str, Any]:
        """What the script takes."""
        ends = sorted(self.given, key=lambda v: v.value)
        return {
            "name": clean(self.name), "title": clean(self.title), "sign": self.sign,
            "at": [None if v is None else float(number(self.unit(v.value))) for v in self.values],
            "ticks": [[float(number(at)), text] for at, text in self.ticks],
            "ends": [shown(ends[0]), shown(ends[-1])],
        }  # fmt: skip


def chart(runs: Sequence[str], metrics: Sequence[Mapping[str, Figure]], names: Sequence[str]) -> Chart | None:
    """None, where there are fewer than three metrics of which runs differ, and of which is known what is better.

    Args:
        runs: what each is called.
        metrics: of each, by name.
        names: of all metrics, in order.
    """
    found = [Measure(name, [finite(one.get(name)) for one in metrics]) for name in names]
    found = [m for m in found if len({v.value for v in m.given}) > 1 and all(v.better for v in m.given)]
    if len(found) < FEWEST:
        return None
    chosen = _first(found)
    front = _front(chosen, len(runs))
    rows = [(run, *(m.values[i] for m in found), FRONT if i in front else None) for i, run in enumerate(runs)]
    table = Table(TITLE, ("run", *(m.name for m in found), "front"), rows, keys=list(runs))

    def draw(width: int) -> Markup:
        return _drawn(runs, chosen, front, width)

    about = "Larger and stronger is more of the third. Outlined are those that no other beats in all that are chosen."
    return Chart(TITLE, draw, table, about, _legend(chosen[2]), _controls(found, chosen))


def _first(found: Sequence[Measure]) -> tuple[Measure, Measure, Measure]:
    """What is paid, what is gained, and what that costs, as far as there is such."""
    keyed = {key_of(m.name): m for m in found}
    x = next((keyed[key] for key in PAID if key in keyed), found[0])
    y = next((keyed[key] for key in GAINED if key in keyed and keyed[key] is not x), None)
    y = y or next(m for m in found if m is not x)
    z = next((keyed[key] for key in ("decode", "time", *GAINED) if key in keyed and keyed[key] not in (x, y)), None)
    return x, y, z or next(m for m in found if m is not x and m is not y)


def _front(chosen: Sequence[Measure], runs: int) -> list[int]:
    have = [i for i in range(runs) if all(m.values[i] is not None for m in chosen)]
    points = [[m.sign * v.value for m in chosen if (v := m.values[i]) is not None] for i in have]
    return [i for i, by in zip(have, dominators(points), strict=True) if not by]


def _drawn(runs: Sequence[str], chosen: Sequence[Measure], front: Sequence[int], width: int) -> Markup:
    height = 300 if width <= NARROW else 360
    bottom = height - BELOW
    x, y, z = chosen
    across, up = x.over(LEFT, width - RIGHT), y.over(bottom, TOP)
    parts = [frame(across, up, x.title, y.title, bottom)]
    points: list[tuple[int, float, float, float]] = []
    for i in range(len(runs)):
        a, b, c = (m.values[i] for m in chosen)
        if a is not None and b is not None and c is not None:
            points.append((i, across(a.value), up(b.value), z.share(c)))
    taken: list[Box] = [(px - LARGE, py - LARGE, px + LARGE, py + LARGE) for _, px, py, _ in points]
    if len(points) <= NAMED:
        places = [free_place(runs[i], (px, py), taken, width, bottom) for i, px, py, _ in points]
        parts += [words(*put, "t halo") for put in places if put is not None]
    for i, px, py, share in sorted(points, key=lambda p: -p[3]):  # small ones above large ones
        text = ", ".join(f"{m.name} {shown(m.values[i])}" for m in chosen)
        said = f"{runs[i]}: {text}{f', {FRONT}' if i in front else ''}"
        kind = f"m bubble h{min(STEPS - 1, int(share * STEPS))}{' best' if i in front else ''}"
        mark = el("circle", cx=px, cy=py, r=SMALL + (LARGE - SMALL) * share, class_=kind)
        ring = el("circle", cx=px, cy=py, r=LARGE + 3, class_="ring")
        point = {"class_": "point", "tabindex": 0, "role": "img", "aria_label": said, "data_key": runs[i]}
        parts.append(el("g", says(said), ring, mark, **point))
    return svg(width, height, f"{y.name} over {x.name}, with {z.name}, of {len(points)} runs", joined(parts))


def _legend(third: Measure) -> Markup:
    boxes = [rect(1 + 16 * i, 2, 16, 12, f"h{i}") for i in range(STEPS)]
    strip = el("svg", *boxes, viewBox="0 0 114 16", class_="strip", aria_hidden="true")
    low, high = third.told["ends"]
    item = el(
        "li",
        el("b", third.name, data_end="name"),
        el("span", low, data_end="low"),
        strip,
        el("span", high, data_end="high"),
    )
    return el("ul", item, class_="legend")


def _controls(found: Sequence[Measure], chosen: Sequence[Measure]) -> Markup:
    """Select boxes, one for each use; without JavaScript they are not shown."""
    fields = []
    for use, text, first in zip("xyz", ("across", "up", "size and colour"), chosen, strict=True):
        options = [el("option", m.name, value=i, selected=m is first) for i, m in enumerate(found)]
        options += [el("option", "none", value="")] if use == "z" else []
        fields.append(el("label", text, el("select", *options, data_use=use)))
    axes = json.dumps([m.told for m in found], ensure_ascii=False)
    return el("div", *fields, class_="choosing js-only", role="group", aria_label="Choose the metrics", data_axes=axes)
