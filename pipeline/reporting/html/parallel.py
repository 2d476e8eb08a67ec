"""Parallel coordinates: every run a line through its settings and what came of them, with filters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.reporting.html.drawing import LETTER, colour, dash, fitted, legend, line, path, says, svg, words
from pipeline.reporting.html.markup import el, exact, joined
from pipeline.reporting.html.parts import NARROW, Chart, Table
from pipeline.reporting.html.scales import Scale, finite, label, scale
from pipeline.units import show_bytes

MOST_AXES, MOST_VALUES, MOST_LINES = 7, 12, 200


@dataclass(frozen=True)
class Axis:
    """Attributes:
    name: of the setting or metric.
    values: of each run; None: it has none.
    """

    name: str
    values: Sequence[Any]

    @property
    def numeric(self) -> bool:
        return all(isinstance(v, Figure) for v in self.values if v is not None)

    @property
    def finite(self) -> list[float]:
        """Of numbers, those that have a place."""
        return [v.value for v in self.values if finite(v) is not None]

    @property
    def texts(self) -> list[str]:
        return list(dict.fromkeys(str(v) for v in self.values if v is not None))

    def places(self, start: float, end: float) -> "_Places":
        if self.numeric:
            return _Places(self, scale(self.finite, start, end, pad=0.02))
        n = len(self.texts)
        at = {t: start + (end - start) * (i + 0.5) / n for i, t in enumerate(self.texts)}
        return _Places(self, at)


@dataclass(frozen=True)
class _Places:
    axis: Axis
    at: Scale | dict[str, float]

    def __call__(self, value: Any) -> float | None:
        if isinstance(self.at, Scale):
            return None if finite(value) is None else self.at(value.value)
        return None if value is None else self.at[str(value)]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        if not isinstance(self.at, Scale):
            return [(at, text) for text, at in self.at.items()]
        bytes_ = any(v is not None and v.unit == "B" for v in self.axis.values)
        found = self.at.ticks(4, "B" if bytes_ else "")
        return [(self.at(v), show_bytes(v) if bytes_ else label(v, found)) for v in found]


def chart(names: Sequence[str], settings: Sequence[Axis], metrics: Sequence[Axis]) -> Chart | None:
    """None, where runs do not differ in two things at least.

    Args:
        settings: what was set; those with too many values that are no numbers are left out.
        metrics: what was found.
    """
    usable = [a for a in settings if a.numeric or len(a.texts) <= MOST_VALUES]
    found = [a for a in metrics if len({*a.finite}) > 1]
    few = usable[: MOST_AXES - min(len(found), 5)]
    axes = [*few, *found[: MOST_AXES - len(few)]]
    if len(axes) < 2 or len(names) < 2:
        return None
    first = axes[0]
    kinds = first.texts if not first.numeric else []
    which = [kinds.index(str(v)) if kinds and v is not None else 0 for v in first.values]
    table = Table(
        "Settings and metrics of each run",
        ("run", *(a.name for a in axes)),
        [(n, *(a.values[i] for a in axes)) for i, n in enumerate(names)],
        keys=names,
    )
    left_out = [a.name for a in (*settings, *found) if a not in axes]

    def draw(width: int) -> Markup:
        return _down(axes, names, which, width) if width <= NARROW else _across(axes, names, which, width)

    about = "Each line is a run, through its settings and what came of them."
    if left_out:
        about += f" Not drawn, but among the numbers of runs: {', '.join(left_out)}."
    if len(names) > MOST_LINES:
        about += f" The first {MOST_LINES} of {len(names):,} runs are drawn."
    key = (
        legend(kinds, [line(1, 7, 21, 7, f"s {colour(i)}") for i, _ in enumerate(kinds)])
        if len(kinds) > 1
        else Markup("")
    )
    return Chart("Settings against results", draw, table, about, key, _controls(axes, len(names)))


def _across(axes: Sequence[Axis], names: Sequence[str], which: Sequence[int], width: int) -> Markup:
    """Axes side by side, low values below."""
    height, top, bottom = 330, 52, 316
    side = 54.0
    xs = [side + (width - 2 * side) * i / (len(axes) - 1) for i in range(len(axes))]
    places = [a.places(bottom, top) for a in axes]
    parts = []
    room = (width - 2 * side) / (len(axes) - 1)
    for i, (x, axis, place) in enumerate(zip(xs, axes, places, strict=True)):
        parts += [line(x, top, x, bottom, "axis")]
        edge = "start" if i == 0 else "end" if i == len(axes) - 1 else "middle"
        at = 0.0 if i == 0 else float(width) if i == len(axes) - 1 else x
        parts += [words(at, 16 if i % 2 == 0 else 36, fitted(axis.name, 2 * room - 14), "l strong", edge)]
        last = 1e9
        for y, text in place.ticks:
            if abs(y - last) < 14:
                continue
            last = y
            parts += [words(x + 5, y + 4, fitted(text, room - 12 if i < len(axes) - 1 else side - 5), "t halo")]
    return _lines(
        axes,
        names,
        which,
        [lambda v, x=x, p=p: (x, p(v)) for x, p in zip(xs, places, strict=True)],
        parts,
        (width, height),
    )


def _down(axes: Sequence[Axis], names: Sequence[str], which: Sequence[int], width: int) -> Markup:
    """Axes below each other, low values at the left: for narrow pages."""
    step, top = 66, 34
    ys = [float(top + step * i) for i in range(len(axes))]
    places = [a.places(10, width - 14) for a in axes]
    parts = []
    for y, axis, place in zip(ys, axes, places, strict=True):
        parts += [line(8, y, width - 8, y, "axis"), words(4, y - 12, fitted(axis.name, width - 8), "l strong halo")]
        last = -1e9
        for x, text in place.ticks:
            said = fitted(text, 100)
            anchor = "start" if x < 40 else "end" if x > width - 40 else "middle"
            long = LETTER * len(said)
            left = x - {"start": 0.0, "middle": long / 2, "end": long}[anchor]
            if left > last + 6:
                parts.append(words(x, y + 16, said, "t halo", anchor))
                last = left + long
    return _lines(
        axes,
        names,
        which,
        [lambda v, y=y, p=p: (p(v), y) for y, p in zip(ys, places, strict=True)],
        parts,
        (width, top + step * (len(axes) - 1) + 26),
    )


def _lines(
    axes: Sequence[Axis],
    names: Sequence[str],
    which: Sequence[int],
    at: Sequence[Any],
    parts: list[Markup],
    size: tuple[int, int],
) -> Markup:
    drawn = []
    for i, name in list(enumerate(names))[:MOST_LINES]:
        points = [p for a, place in zip(axes, at, strict=True) if None not in (p := place(a.values[i]))]
        said = f"{name}: " + ", ".join(f"{a.name} {a.values[i] if a.values[i] is not None else '–'}" for a in axes)
        body = (
            path(points, f"s {colour(which[i])}", fill="none", stroke_dasharray=dash(which[i])),
            path(points, "hit", fill="none"),
        )
        drawn.append(el("g", says(said), *body, class_="line", data_key=name, tabindex=0, role="img", aria_label=said))
    return svg(*size, f"{len(names)} runs over {len(axes)} axes", joined(drawn), joined(parts))


def _controls(axes: Sequence[Axis], runs: int) -> Markup:
    """Filters, one for each axis; without JavaScript they are not shown."""
    fields = []
    for axis in axes:
        if axis.numeric:
            values = axis.finite or [0.0]
            ends = [
                el(
                    "input",
                    type="number",
                    step="any",
                    data_axis=axis.name,
                    data_end=end,
                    aria_label=f"{axis.name}, {says_}",
                    placeholder=exact(value) if len(exact(value)) < 9 else f"{value:.4g}",
                )
                for end, says_, value in (("low", "at least", min(values)), ("high", "at most", max(values)))
            ]
            fields.append(el("fieldset", el("legend", axis.name), ends[0], " – ", ends[1]))
        else:
            options = [el("option", "all", value=""), *(el("option", t, value=t) for t in axis.texts)]
            fields.append(el("label", axis.name, el("select", *options, data_axis=axis.name)))
    reset = el("button", "Show all", type="button", class_="reset")
    count = el("output", f"{runs} of {runs} runs", class_="count", aria_live="polite")
    form = el("div", *fields, reset, count, class_="filters", role="group", aria_label="Filter the runs")
    return el("details", el("summary", "Filter the runs"), form, class_="filtering js-only")
