"""What benchmarks measured, and what each layer costs that is quantized alone: the pictures of these stages, of the
rows that are in the manifest."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.reporting.html import lanes, tradeoff, training
from pipeline.reporting.html.drawing import colour, frame, legend, path, says, svg
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Part, Side, Table
from pipeline.reporting.html.scales import scale, unit_of
from pipeline.reporting.html.thinned import Thinned
from pipeline.reporting.manifest import Report

Row = Mapping[str, Any]
CELL = ("measured", "by")
DECODE, KL, SIZE = "decode × 1", "KL", "size"  # of engines: what is paid for what
LONGEST = 60  # updates of losses that are drawn
NEAREST = "nearest"  # of a layer, the same with its tensors rounded to the nearest alone
HELD = {"kl": ("KL", "nats", ".5f"), "perplexity": ("perplexity", "", ".3f")}  # of each layer, quantized alone


def charts(report: Report) -> list[Part]:
    """Those of every benchmark and of every sensitivity."""
    found: list[Part] = []
    for result in report.results.values():
        given = result.get("rows") if isinstance(result, Mapping) else None
        if isinstance(given, list) and given and all(isinstance(r, Mapping) and "engine" in r for r in given):
            found += _benchmark([row for row in given if row.get("metrics")])
        groups = result.get("groups") if isinstance(result, Mapping) else None
        if isinstance(groups, Mapping):
            found += _layers(groups)
    return found


def _benchmark(rows: Sequence[Row]) -> list[Part]:
    sized = [row for row in rows if "size" in row]
    if sized:
        return _sides([_grown(name, sized) for name in _names(sized) if _several(sized, name)])
    found: list[Chart] = [_lanes(name, rows) for name in _names(rows)]
    return [*_sides(found), *_sides([*_paid(rows), *_losses(rows)])]


def _sides(found: Sequence[Chart]) -> list[Part]:
    return [Side(found)] if len(found) > 1 else [*found]


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["metrics"]))


def _figure(metric: Row) -> Figure:
    return Figure(float(metric["value"]), str(metric["unit"]), ".4g", metric["better"])


def _lanes(name: str, rows: Sequence[Row]) -> Chart:
    marks = [
        lanes.Mark(str(row["quant"]), str(row["engine"]), _figure(one), one["rounds"], str(row.get("wrong", "")))
        for row in rows
        if (one := row["metrics"].get(name)) is not None
    ]
    return lanes.lanes(name, CELL, marks)


def _paid(rows: Sequence[Row]) -> Iterator[Chart]:
    """Of engines that are right: how much is lost for how quick and how small they are."""
    cells = [
        row for row in rows
        if not row["wrong"] and isinstance(row.get("quality"), Mapping) and DECODE in row["metrics"]
    ]  # fmt: skip
    if len(cells) < tradeoff.FEWEST:
        return
    for name in (DECODE, SIZE):
        points = [
            tradeoff.Point(
                f"{row['engine']} {row['quant']}", str(row["quant"]),
                _figure(row["metrics"][DECODE]) if name == DECODE else Figure(row["nbytes"], "B", better="lower"),
                Figure(max(float(row["quality"]["kl"]), 0.0), "nats", ".4f", "lower"),
            )
            for row in cells
        ]  # fmt: skip
        yield tradeoff.chart((name, KL), points)


def _losses(rows: Sequence[Row]) -> Iterator[Chart]:
    """Of those that train: whether all become the same."""
    lines: dict[str, Thinned] = {}
    for row in rows:
        if isinstance(losses := row.get("losses"), list) and len(losses) > 1:
            line = lines.setdefault(f"{row['engine']}, {row['quant']}", Thinned(LONGEST))
            line.add(np.arange(1.0, len(losses) + 1), np.array(losses, np.float64))
    if lines:
        yield training.chart("Losses", training.UPDATE, lines)


def _several(rows: Sequence[Row], name: str) -> bool:
    return sum(name in row["metrics"] for row in rows) > 1


def _grown(name: str, rows: Sequence[Row]) -> Chart:
    """A cost over the size of what has it, both by magnitudes, and from the least to the largest of the rounds."""
    lines: dict[str, list[tuple[int, Figure, Sequence[float]]]] = {}
    for row in rows:
        if (one := row["metrics"].get(name)) is not None:
            lines.setdefault(str(row["engine"]), []).append((int(row["size"]), _figure(one), one["rounds"]))
    every = [point for some in lines.values() for point in some]
    unit = every[0][1].unit
    shown, each = unit_of(unit, (figure.value for _, figure, _ in every))

    def draw(width: int) -> Markup:
        height = 250 if width <= NARROW else 300
        bottom = height - 40
        x = scale([size for size, *_ in every], 52, width - 14, log=True)
        y = scale([v / each for _, _, rounds in every for v in rounds], bottom, 26, log=True)
        parts = [frame(x, y, "size, by magnitudes", f"{name} [{shown}], by magnitudes", bottom)]
        for i, (engine, some) in enumerate(lines.items()):
            low, high = ([(x(s), y(end(r) / each)) for s, _, r in some] for end in (min, max))
            through = [(x(size), y(figure.value / each)) for size, figure, _ in some]
            said = says(f"{engine}: {name} {some[-1][1]} at {some[-1][0]:,}")
            body = [path([*high, *reversed(low)], f"band {colour(i)}f", closed=True)]
            body += [path(through, f"s {colour(i)}", fill="none"), path(through, "hit", fill="none")]
            body += [el("circle", cx=a, cy=b, r=3.0, class_=f"{colour(i)}f") for a, b in through]
            parts.append(el("g", said, *body, class_="line"))
        return svg(width, height, f"{name} over size: {len(lines)} lines", joined(parts))

    table = Table(
        name, ("of", "size", name, "least", "largest"),
        [
            (engine, Figure(size, form=",d"), figure, *(Figure(v, unit, ".4g") for v in (min(rounds), max(rounds))))
            for engine, some in lines.items()
            for size, figure, rounds in some
        ],
    )  # fmt: skip
    key = legend(list(lines)) if len(lines) > 1 else Markup("")
    return Chart(f"{name[:1].upper()}{name[1:]} over size", draw, table, "", key)


def _layers(groups: Mapping[str, Row]) -> list[Part]:
    """What each costs, quantized alone, in the order of the model."""
    found = []
    for key, (name, unit, form) in HELD.items():
        if len(with_it := {layer: row[key] for layer, row in groups.items() if key in row}) > 1:
            marks = [lanes.Mark(layer, "alone", Figure(v, unit, form, "lower")) for layer, v in with_it.items()]
            before = {n: row[NEAREST][key] for n, row in groups.items() if key in row.get(NEAREST, {})}
            marks += [lanes.Mark(layer, NEAREST, Figure(v, unit, form, "lower")) for layer, v in before.items()]
            found.append(lanes.lanes(f"{name} of each layer", ("layer", "quantized"), marks))
    return _sides(found)
