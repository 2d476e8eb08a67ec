"""How figures of benchmarks went: a small picture for each kind, a line for each cell, beside the baseline."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.bench.history import Earlier, Metric, Trend
from pipeline.errors import short

NAME = "trend.png"
ACROSS = 3  # pictures in a row, at most
EACH = (3.6, 2.7)  # inches
MOST = 8  # lines of a picture: of more those that changed most
LONGEST = 60  # characters of a name


def draw(path: Path, found: Sequence[Trend], before: Sequence[Earlier], base: Earlier) -> None:
    """A PNG at `path`. Values are shares of the baseline's, which is the dashed line at 100 %, so that cells of all
    speeds stand in one picture; a band is the spread of the rounds.

    Args:
        found: some, at least; those with a baseline of 0 have no share and are left out.
        base: it has a place of its own where it is none of `before`, and is marked in any case.
    """
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(t.metric for t in found))
    across = min(ACROSS, len(kinds))
    down = math.ceil(len(kinds) / across)
    figure = Figure(figsize=(max(EACH[0] * across, 6.0), EACH[1] * down + 1.2), layout="constrained")
    about = "dashed line and dotted line: its value, and its time; band: spread of the rounds"
    figure.suptitle(f"Share of the baseline, {short(base.name, LONGEST)}\n{about}", fontsize=9)
    colours = {cell: f"C{i % 10}" for i, cell in enumerate(dict.fromkeys(t.cell for t in found))}
    marked = next((i for i, one in enumerate(before) if one.date == base.date), None)
    dates = [*([base.date] if marked is None else []), *(one.date for one in before), "now"]
    lines: dict[str, Any] = {}
    for axes, kind in zip(figure.subplots(down, across, squeeze=False).flat, kinds, strict=False):
        these = sorted((t for t in found if t.metric == kind and t.base["value"]), key=_change, reverse=True)
        for trend in these[:MOST]:
            points = [*([trend.base] if marked is None else []), *trend.before, trend.now]
            lines[trend.cell] = _line(axes, trend.base, points, colours[trend.cell])
        axes.set_xticks(range(len(dates)), [date[5:] or "baseline" for date in dates[:-1]] + ["now"])
        axes.set_xlim(-0.3, len(dates) - 0.7)
        axes.axhline(100, color="black", linestyle="--", linewidth=0.8)
        axes.axvline(marked or 0, color="black", linestyle=":", linewidth=0.8)
        better = {t.now["better"] for t in these}
        good = f" ({better.pop()} is better)" if len(better) == 1 and better != {""} else ""
        left = f", {MOST} of {len(these)}" if len(these) > MOST else ""
        axes.set_title(f"{kind}{good}{left}", fontsize=8)
        axes.tick_params(axis="x", labelsize=7, rotation=20)
        axes.tick_params(axis="y", labelsize=7)
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.4g} %")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 95), max(high, 105))  # so that noise does not look like a change
    for axes in list(figure.axes)[len(kinds) :]:
        axes.remove()
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)


def _line(axes: Any, base: Metric, given: Sequence[Metric | None], colour: str) -> Any:
    points = [(x, m) for x, m in enumerate(given) if m is not None]
    x = [at for at, _ in points]
    y = [_share(m, base) for _, m in points]
    apart = [share * m["spread"] for share, (_, m) in zip(y, points, strict=True)]
    low, high = ([a + sign * b for a, b in zip(y, apart, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    [line] = axes.plot(x, y, color=colour, marker="o", markersize=3, linewidth=1.2)
    return line


def _share(metric: Metric, base: Metric) -> float:
    return 100 * float(metric["value"]) / float(base["value"])


def _change(trend: Trend) -> float:
    return abs(_share(trend.now, trend.base) - 100)
