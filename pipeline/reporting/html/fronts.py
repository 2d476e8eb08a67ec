"""What a comparison's page says of Pareto's front: over the metrics that somebody named, or what is paid for what."""

from collections.abc import Sequence
from itertools import combinations

from pipeline.figures import Better, Figure
from pipeline.reporting.compare.compared import Compared, packed_as
from pipeline.reporting.compare.deltas import ARROWS
from pipeline.reporting.compare.pareto import OFF, ON, Pareto
from pipeline.reporting.html.parts import Chart, Note, Part, Side, Table
from pipeline.reporting.html.tradeoff import Point, chart, charts


def of_front(front: Pareto) -> list[Part]:
    """A chart of two metrics, of three one for each pair; who is on the front, and who beats the others."""
    heads = [f"{m} {ARROWS[b]}" for m, b in zip(front.metrics, front.better, strict=True)]
    ordered = sorted(range(len(front.names)), key=lambda i: (bool(front.beaten[i]), front.values[i][0].value))
    lines = [
        (front.names[i], f"{OFF}{', '.join(front.beaten[i])}" if front.beaten[i] else ON, *front.values[i])
        for i in ordered
    ]
    table = Table("Pareto front", ("row", "", *heads), lines, "↓ lower is better, ↑ higher is better.")
    left = [Note(f"{name} is left out: {why}.") for name, why in front.left_out]
    return [*_beside(_pairs(front)), table, *left]


def of_tradeoffs(found: Compared) -> list[Part]:
    """Charts of means that can be compared, each with the front of its two metrics."""
    metrics = [
        {n: c.after.figure for n, c in of.items() if c.after is not None and c.verdict != "not comparable"}
        for of in found.changes
    ]
    return _beside(charts(found.names, [packed_as(row) for row in found.groups], metrics))


def _pairs(front: Pareto) -> list[Chart]:
    if not front.names:
        return []
    ringed = [i for i, by in enumerate(front.beaten) if not by] if len(front.metrics) > 2 else None
    made = []
    for a, b in combinations(range(len(front.metrics)), 2):
        points = [
            Point(name, kind, *(_directed(values[m], front.better[m]) for m in (a, b)))
            for name, kind, values in zip(front.names, front.kinds, front.values, strict=True)
        ]
        made.append(chart((front.metrics[a], front.metrics[b]), points, ringed))
    return made


def _directed(figure: Figure, better: Better) -> Figure:
    return Figure(figure.value, figure.unit, figure.form, better)


def _beside(made: Sequence[Chart]) -> list[Part]:
    return [Side(made)] if len(made) > 1 else [*made]
