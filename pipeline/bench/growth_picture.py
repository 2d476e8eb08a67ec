"""Cost against size, drawn: a small picture for each cost, both axes by magnitudes, points and their line."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.bench.growth_tables import NAMES, grows, value
from pipeline.reporting.plots import BLUE, COLOURS, GREY, INK
from pipeline.units import decimal

NAME = "scale.png"
ACROSS = 4  # pictures in a row, at most
EACH = (3.4, 2.7)  # inches
BAD = COLOURS[1]
DENSE = 100  # points of a line
TICKS = 5  # of an axis, at most
MARGIN = 1.6  # of an axis, beyond its least and its most


def draw(path: Path, about: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A PNG at `path`.

    Args:
        about: on which machine, below the title.
        rows: of bench.json; without a fit there is nothing to draw.
    """
    from matplotlib.figure import Figure

    given = list(_drawn(rows))
    across = min(ACROSS, len(given))
    down = -(-len(given) // across)
    figure = Figure(figsize=(max(EACH[0] * across, 6.0), EACH[1] * down + 0.6), layout="constrained")
    figure.suptitle("Cost against size", x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(f"{about} · grey: as expected · orange: grows faster", x=0.01, ha="left", fontsize=8, color=GREY)
    places = figure.subplots(down, across, squeeze=False).flat
    for axes, (row, what, fit, sizes, metrics) in zip(places, given, strict=False):
        _small(axes, row, what, fit, sizes, metrics)
    for axes in list(places):
        axes.remove()
    figure.savefig(path, dpi=150)


def _drawn(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        measured = [r for r in rows if r["engine"] == row["engine"] and "size" in r and r["state"] == "measured"]
        for what, fit in row.get("fits", {}).items():
            yield row, what, fit, [r["size"] for r in measured], [r["metrics"][what] for r in measured]


def _small(axes: Any, row: Any, what: str, fit: Any, sizes: Sequence[int], metrics: Sequence[Any]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    x = np.geomspace(sizes[0], sizes[-1], DENSE)
    line = fit["start"] + fit["factor"] * x ** fit["exponent"]
    middle = DENSE // 2
    expected = fit["start"] + (line[middle] - fit["start"]) * (x / x[middle]) ** fit["expected"]
    values = [m["value"] for m in metrics]
    least = [v - min(m["rounds"]) for v, m in zip(values, metrics, strict=True)]
    most = [max(m["rounds"]) - v for v, m in zip(values, metrics, strict=True)]
    colour = BAD if fit["wrong"] else BLUE
    axes.plot(x, expected, color=GREY, linewidth=1, linestyle=":", zorder=1)
    axes.plot(x, line, color=colour, linewidth=1.4, zorder=2)
    axes.errorbar(
        sizes, values, yerr=[least, most], color=colour, marker="o", markersize=4, linestyle="none", capsize=2, zorder=3
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = min(*values, *line, *expected), max(*values, *line, *expected)
    bottom, top = low / MARGIN, max(high * MARGIN, low * 10)  # at least a magnitude: what is flat is to look so
    axes.set_ylim(bottom, top)
    axes.set_title(f"{row['engine']}: {NAMES.get(what, what)}", loc="left", fontsize=9, color=INK)
    axes.annotate(
        grows(fit), (0.04, 0.96), xycoords="axes fraction", fontsize=8, va="top", color=colour
    )  # fmt: skip
    axes.set_xlabel("bytes" if row["label"] == "GB" else row["label"], fontsize=8)
    shown = decimal if row["label"] == "GB" else lambda size: f"{size:,}"
    axes.xaxis.set_major_locator(FixedLocator(sizes[:: -(-len(sizes) // TICKS)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: shown(round(v))))
    axes.yaxis.set_major_locator(FixedLocator(_ticks(bottom, top, 2 if fit["unit"] == "B" else 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: value(v, fit["unit"])))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _ticks(bottom: float, top: float, base: int) -> list[float]:
    """Powers of `base`; so many are left out that few enough stay."""
    powers = range(math.ceil(math.log(bottom, base)), math.floor(math.log(top, base)) + 1)
    return [float(base) ** p for p in powers[:: -(-len(powers) // TICKS) or 1]]
