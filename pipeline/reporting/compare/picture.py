"""A picture of Pareto's front: two metrics as `plots.tradeoff` draws them, a third as colour."""

from pathlib import Path
from typing import Any

from pipeline.errors import StorageError
from pipeline.reporting.compare.pareto import Pareto
from pipeline.reporting.plots import GREY, INK, Point, annotated, base, titled, tradeoff

MAP = "viridis"  # told apart by people who see fewer colours, too


def draw(front: Pareto, path: Path, about: str) -> Path:
    """See `Pareto.draw`."""
    heads = [f"{m} [{v.unit}]" if v.unit else m for m, v in zip(front.metrics, front.values[0], strict=True)]
    points = [
        Point(name, values[0].value, repeats[1], kind)
        for name, values, repeats, kind in zip(front.names, front.values, front.repeats, front.kinds, strict=True)
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(heads) == 2:
            tradeoff(path, about, heads[0], heads[1], points, better=front.better)
        else:
            _coloured(front, path, about, heads, points)
    except OSError as why:
        raise StorageError(f"{path}: the picture cannot be written: {why.strerror}") from None
    return path


def _coloured(front: Pareto, path: Path, about: str, heads: list[str], points: list[Point]) -> None:
    """Those on the front are large and ringed, the others small squares."""
    figure, axes = base(10, 5)
    thirds = [values[2].value for values in front.values]
    norm: dict[str, Any] = {"cmap": MAP, "vmin": min(thirds), "vmax": max(thirds)}
    drawn: Any = None
    for on, style in (
        (True, {"marker": "o", "s": 110, "edgecolors": INK, "linewidths": 1.6, "label": "on the front"}),
        (False, {"marker": "s", "s": 36, "edgecolors": GREY, "linewidths": 0.6, "label": "beaten by another"}),
    ):
        some = [i for i, by in enumerate(front.beaten) if (not by) == on]
        if some:
            xs, ys = [points[i].x for i in some], [points[i].y for i in some]
            drawn = axes.scatter(xs, ys, c=[thirds[i] for i in some], zorder=3, **norm, **style)
    bar = figure.colorbar(drawn, ax=axes, pad=0.02)
    bar.set_label(f"{heads[2]}, {front.better[2]} is better")
    bar.ax.tick_params(labelsize=8)
    axes.margins(x=0.12, y=0.15)
    axes.grid(alpha=0.25)
    titled(axes, f"Pareto front over {', '.join(front.metrics)}", about)
    axes.set_xlabel(f"{heads[0]}, {front.better[0]} is better")
    axes.set_ylabel(f"{heads[1]}, {front.better[1]} is better")
    axes.tick_params(labelsize=8)
    axes.legend(frameon=False, fontsize=8)
    annotated(figure, axes, points)
    figure.savefig(path, dpi=150)
