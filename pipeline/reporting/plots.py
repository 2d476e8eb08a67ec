"""Pictures of results, for people; drawn without a display."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.reporting.compare.front import dominators

BLUE, GREY, INK = "#2f6db5", "#8a8f98", "#3b4048"
# Told apart by people who see fewer colours, too: Okabe and Ito (2008) but for the yellow and the black, and four that
# stay apart from these and from INK whoever looks (tests/unit/reporting/test_plots.py).
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#490092", "#661100", "#b66dff", "#003f5c",
)  # fmt: skip
MARKERS = "os^vPX<"  # each kind has the next; seven and ten make seventy that differ
FRONT = "no other is smaller and better"
FRONT_OF_ANY = "no other is better in both"
LESS = ("lower", "lower")
TICKS_BITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
PLACES = ((8, 8, "left"), (8, -9, "left"), (-8, 8, "right"), (-8, -9, "right"), (0, 16, "center"), (0, -17, "center"),
          (12, 22, "left"), (12, -23, "left"), (-12, 22, "right"), (-12, -23, "right"))  # fmt: skip
FEW = 30  # points of a line
DOT = 8.0  # pixels that a point takes
MATPLOTLIB_NBYTES = 40 << 20  # of memory that it takes in a process, a picture included
MAGNITUDES = 20  # of the largest value, the share that would be hard to see

Points = tuple[Sequence[float], Sequence[float]]
"""x and y."""


def base(width: float, height: float) -> tuple[Any, Any]:
    """A figure in inches, and its axes."""
    from matplotlib.figure import Figure  # the object interface: no global state, no backend to choose

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def bars(
    path: Path, title: str, about: str, label: str, values: Mapping[str, float], marked: Collection[str] = (),
    before: Mapping[str, float] | None = None,
) -> None:  # fmt: skip
    """Horizontal bars in the order given, from the top, each with its value; a PNG at `path`.

    Args:
        about: what was measured, below the title.
        marked: names whose bars stand out.
        before: by the same names, other bars behind.
    """
    names = list(values)
    figure, axes = base(8, 1.4 + 0.26 * len(names))
    colours = [COLOURS[1] if n in marked else BLUE for n in names]
    if before:
        axes.barh(range(len(names)), [before.get(n, 0.0) for n in names], color=GREY, alpha=0.35, height=0.7)
    drawn = axes.barh(range(len(names)), [values[n] for n in names], color=colours, height=0.45 if before else 0.7)
    axes.bar_label(drawn, labels=[f"{values[n]:.3g}" for n in names], padding=3, fontsize=8, color=GREY)
    axes.set_yticks(range(len(names)), [_short(n) for n in names])
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.6 / (len(names) + 1))
    axes.xaxis.grid(visible=True, alpha=0.25)
    axes.set_axisbelow(True)
    titled(axes, title, about)
    axes.set_xlabel(label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=150)


def _short(name: str) -> str:
    """`model.layers.3` → `layers.3`."""
    return _as_it_is(name.removeprefix("model.").removesuffix(".weight"))


def _as_it_is(text: str) -> str:
    """Somebody's text or name, which matplotlib would take for mathematics where it has two dollar signs."""
    return text.replace("$", r"\$")


@dataclass(frozen=True)
class Point:
    """A setting that was tried.

    Attributes:
        name: what it is called.
        x: the same whenever it is tried.
        values: y of each time.
        kind: points of one kind have one colour.
    """

    name: str
    x: float
    values: Sequence[float]
    kind: str

    @property
    def y(self) -> float:
        return fmean(self.values)


def tradeoff(
    path: Path, about: str, x_label: str, y_label: str, points: Sequence[Point], without: Collection[str] = (),
    better: Sequence[str] = LESS,
) -> None:  # fmt: skip
    """What is paid (x) for what is had (y): points with a line through those that no other beats, and bars from least
    to largest where something was tried several times; a PNG at `path`.

    Args:
        about: what was measured, below the title.
        without: kinds that nothing was paid away of, with lines of their own to compare with.
        better: of x and y, `lower` or `higher`.
    """
    figure, axes = base(10, 5)
    best = undominated(points, better)
    front = FRONT if tuple(better) == LESS else FRONT_OF_ANY
    shown = axes.plot([p.x for p in best], [p.y for p in best], color=GREY, linewidth=1, zorder=2, label=front)
    for point in (p for p in points if p.kind in without):
        axes.axhline(point.y, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    kinds = list(dict.fromkeys(p.kind for p in sorted(points, key=lambda p: (p.kind in without, p.x))))
    for n, kind in enumerate(kinds):
        some = [p for p in points if p.kind == kind]
        spread = [[p.y - min(p.values) for p in some], [max(p.values) - p.y for p in some]]
        style: dict[str, Any] = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}
        style = {"color": INK, "marker": "D", "markerfacecolor": "white"} if kind in without else style
        style |= {"label": _as_it_is(kind), "zorder": 3, "linestyle": "none", "markersize": 6}
        if any(len(p.values) > 1 for p in some):
            style |= {"yerr": spread, "capsize": 3, "elinewidth": 1}
        shown.append(axes.errorbar([p.x for p in some], [p.y for p in some], **style))
    axes.margins(x=0.1, y=0.12)
    axes.grid(alpha=0.25)
    _by_magnitudes(axes, points)
    titled(axes, f"{y_label[:1].upper()}{y_label[1:]} over {x_label}", about)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.tick_params(labelsize=8)
    figure.legend(handles=shown, frameon=False, fontsize=8, loc="outside right upper")  # where it covers nothing
    annotated(figure, axes, points)
    figure.savefig(path, dpi=150)


def _by_magnitudes(axes: Any, points: Sequence[Point]) -> None:
    """Axes by magnitudes where values have several, and none is zero or less."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    least, most = min(p.x for p in points), max(p.x for p in points)
    if most > 2 * least > 0:
        axes.set_xscale("log", base=2)
        if most <= TICKS_BITS[-1] and least >= TICKS_BITS[0]:
            axes.xaxis.set_major_locator(FixedLocator(TICKS_BITS))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    least = min(min(p.values) for p in points)
    if least > 0 and max(p.y for p in points) > MAGNITUDES * min(p.y for p in points):
        axes.set_yscale("log")


def undominated(points: Sequence[Point], better: Sequence[str] = LESS) -> list[Point]:
    """Those than which no other is better, by x: Pareto's line; of points that are the same, one."""
    sides = [1 if b == "lower" else -1 for b in better]
    at = {(p.x, p.y): p for p in reversed(points)}
    beaten = dominators([(sides[0] * x, sides[1] * y) for x, y in at])
    return sorted((p for p, by in zip(at.values(), beaten, strict=True) if not by), key=lambda p: p.x)


def titled(axes: Any, title: str, about: str) -> None:
    """A title, and smaller below it what the picture is of."""
    axes.set_title(title if not about else f"{title}\n", loc="left", fontsize=11, fontweight="bold")
    if about:
        axes.annotate(
            _as_it_is(about), (0, 1), xytext=(0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=8,
            color=GREY,
        )  # fmt: skip


def annotated(figure: Any, axes: Any, points: Sequence[Point]) -> None:
    """Names beside points, each where no other is in its way; where there is no such place, none: the table has it."""
    figure.draw_without_rendering()
    taken = [_box(axes.transData.transform((p.x, p.y)), DOT) for p in points]
    frame = axes.get_window_extent()
    for point in points:
        for dx, dy, side in PLACES:
            said = axes.annotate(
                _as_it_is(point.name), (point.x, point.y), xytext=(dx, dy), textcoords="offset points", fontsize=8,
                color=INK, ha=side, va="center",
            )  # fmt: skip
            box = said.get_window_extent()
            if frame.x0 <= box.x0 and box.x1 <= frame.x1 and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            said.remove()


def _box(at: Any, side: float) -> Any:
    """A square around a place."""
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(at[0] - side / 2, at[1] - side / 2, side, side)


@dataclass(frozen=True)
class Spread:
    """How the values of a tensor are spread.

    Attributes:
        name, encoding: what it is called, and what it was packed as.
        edges, near: of bins, of values and of what is between them.
        before, after, error: how many fall into each bin, as they were, as they are now, and of what is between.
    """

    name: str
    encoding: str
    edges: Any
    before: Any
    after: Any
    near: Any
    error: Any


def distributions(path: Path, title: str, given: Sequence[Spread]) -> None:
    """A row for each tensor: its values before and after, and beside them the error, counted by magnitudes; a PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 1.0 + 2.1 * len(given)), layout="constrained")
    figure.suptitle(_as_it_is(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
    rows = figure.subplots(len(given), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), one in zip(rows, given, strict=True):
        left.stairs(one.before, one.edges, fill=True, color=GREY, alpha=0.45, label="before")
        left.stairs(one.after, one.edges, color=COLOURS[0], linewidth=1.2, label="after")
        right.stairs(one.error, one.near, fill=True, color=COLOURS[1], alpha=0.7)
        left.set_title(f"{_as_it_is(one.name)} as {one.encoding}", loc="left", fontsize=9)
        right.set_title("error", loc="left", fontsize=9, color=GREY)
        for axes in (left, right):
            axes.set_yscale("log")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.tick_params(labelsize=8)
        left.set_ylabel("values", fontsize=8)
        right.xaxis.set_major_locator(MaxNLocator(5))
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="upper right", ncols=2)
    figure.savefig(path, dpi=150)


def curves(path: Path, title: str, x_label: str, y_label: str, given: Mapping[str, Points]) -> None:
    """Named lines, of x and y each, the first thin and in the background; a PNG at `path`."""
    figure, axes = base(8, 4.5)
    for i, (name, (x, y)) in enumerate(given.items()):
        style = {"color": GREY, "linewidth": 0.8, "alpha": 0.6} if i == 0 and len(given) > 1 else _style(x)
        axes.plot(x, y, label=_as_it_is(name), zorder=2 + i, **style)
    _finish(figure, axes, path, (title, x_label, y_label), [v for _, y in given.values() for v in y])


def bands(path: Path, title: str, x_label: str, y_label: str, given: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Named lines, of x, y, and the least and largest y that the band around each reaches to; a PNG at `path`."""
    figure, axes = base(8, 4.5)
    for i, (name, (x, y, least, largest)) in enumerate(given.items()):
        axes.plot(x, y, label=_as_it_is(name), color=COLOURS[i % len(COLOURS)], **_style(x))
        axes.fill_between(x, least, largest, color=COLOURS[i % len(COLOURS)], alpha=0.15, linewidth=0)
    _finish(figure, axes, path, (title, x_label, y_label), [v for _, y, _, _ in given.values() for v in y])


def _style(x: Sequence[float]) -> dict[str, Any]:
    """Of a line: where points are few, they are to be seen, as what is between them was not measured."""
    return {"linewidth": 1.0, "linestyle": "--", "marker": "o", "markersize": 4} if len(x) < FEW else {"linewidth": 1.6}


def _finish(figure: Any, axes: Any, path: Path, labels: tuple[str, str, str], values: Sequence[float]) -> None:
    """Labels, a legend, and an axis by magnitudes where values have several."""
    title, x_label, y_label = labels
    if values and min(values) > 0 and max(values) > MAGNITUDES * min(values):
        axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.set_title(_as_it_is(title), loc="left", fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.tick_params(labelsize=8)
    if len(axes.get_lines()) > 1:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
