"""Pictures of results, for people; drawn without a display."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BLUE, GREY = "#2f6db5", "#8a8f98"
FEW = 30  # points of a line
MAGNITUDES = 20  # of the largest value, the share that would be hard to see

Points = tuple[Sequence[float], Sequence[float]]
"""x and y."""


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # the object interface: no global state, no backend to choose

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def bars(path: Path, title: str, label: str, values: Mapping[str, float]) -> None:
    """Horizontal bars in the order given, from the top, each with its value; a PNG at `path`."""
    names = list(values)
    figure, axes = _figure(8, 1.2 + 0.3 * len(names))
    drawn = axes.barh(names, [values[n] for n in names], color=BLUE)
    axes.bar_label(drawn, labels=[f"{values[n]:.3g}" for n in names], padding=3, fontsize=8, color=GREY)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(label)
    axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=150)


def scatter(path: Path, title: str, x_label: str, y_label: str, points: Sequence[tuple[str, float, float]]) -> None:
    """Named points; a PNG at `path`."""
    figure, axes = _figure(8, 5)
    axes.scatter([p[1] for p in points], [p[2] for p in points], color=BLUE, zorder=3)
    for name, x, y in points:
        axes.annotate(name, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8, color=GREY)
    axes.margins(x=0.15, y=0.12)
    axes.grid(alpha=0.25)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    figure.savefig(path, dpi=150)


def curves(path: Path, title: str, x_label: str, y_label: str, given: Mapping[str, Points]) -> None:
    """Named lines, of x and y each, the first thin and in the background; a PNG at `path`."""
    figure, axes = _figure(8, 4.5)
    for i, (name, (x, y)) in enumerate(given.items()):
        style = {"color": GREY, "linewidth": 0.8, "alpha": 0.6} if i == 0 and len(given) > 1 else _style(x)
        axes.plot(x, y, label=name, zorder=2 + i, **style)
    _finish(figure, axes, path, (title, x_label, y_label), [v for _, y in given.values() for v in y])


def bands(path: Path, title: str, x_label: str, y_label: str, given: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Named lines, of x, y, and the least and largest y that the band around each reaches to; a PNG at `path`."""
    figure, axes = _figure(8, 4.5)
    for i, (name, (x, y, least, largest)) in enumerate(given.items()):
        axes.plot(x, y, label=name, color=f"C{i % 10}", **_style(x))
        axes.fill_between(x, least, largest, color=f"C{i % 10}", alpha=0.15, linewidth=0)
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
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.tick_params(labelsize=8)
    if len(axes.get_lines()) > 1:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
