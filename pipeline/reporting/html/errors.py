"""What quantizing lost: SQNR of every tensor, over layers and kinds, and of groups over runs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.records.lost import stats_of
from pipeline.reporting.html.drawing import LETTER, fitted, rect, says, svg, words
from pipeline.reporting.html.markup import el, joined, number
from pipeline.reporting.html.parts import NARROW, Chart, Table
from pipeline.reporting.html.told import Told
from pipeline.reporting.manifest import Report
from pipeline.tensors.spec import group_of
from pipeline.tensors.stats import ErrorStats

STEPS = 7  # of colour
LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
NO_LAYER = "none"
CELLS = 6  # of a picture, for each row that a table may have
KINDS = 40  # over runs
CELL = 24  # high
LEAST_DB = 6.02  # that colours span: a bit; what differs by less looks alike
Key = tuple[str, str]


@dataclass
class Grid:
    """Errors in rows and columns; what is in one cell is put together.

    Attributes:
        across: columns, in order.
        cells: (row, column) → what was lost, of how many tensors.
    """

    across: list[str] = field(default_factory=list)
    cells: dict[Key, tuple[ErrorStats, int]] = field(default_factory=dict)

    def add(self, row: str, column: str, lost: ErrorStats, tensors: int = 1) -> None:
        if column not in self.across:
            self.across.append(column)
        before, n = self.cells.get((row, column), (ErrorStats(), 0))
        self.cells[row, column] = before + lost, n + tensors

    @property
    def down(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.cells))


def by_tensor(report: Report, most: int) -> tuple[Chart, Table] | None:
    """Kinds of tensors down, layers across; and every tensor in a table.

    Args:
        most: rows and columns of tables; layers are put together, where there are more.
    """
    if not report.tensors:
        return None
    layers = sorted({int(n) for row in report.tensors for n in LAYER.findall(str(row["name"]))[:1]})
    lost: dict[str, float] = {}
    for row in report.tensors:
        kind = group_of(str(row["name"]))
        lost[kind] = max(lost.get(kind, 0.0), _share(row))
    kinds = sorted(lost, key=lambda kind: -lost[kind])[: CELLS * most]
    width = max(1, -(-len(layers) // most), -(-len(layers) * len(kinds) // (CELLS * most)))
    names: dict[int, str] = {}
    for i in range(0, len(layers), width):
        some = layers[i : i + width]
        names |= dict.fromkeys(some, str(some[0]) if len(some) == 1 else f"{some[0]}–{some[-1]}")
    grid = Grid(across=list(dict.fromkeys(names.values())))
    for row in report.tensors:
        found = LAYER.findall(str(row["name"]))
        column = names[int(found[0])] if found else NO_LAYER
        if group_of(str(row["name"])) in kinds:
            grid.add(group_of(str(row["name"])), column, stats_of(row))
    rest = f" The {len(kinds)} of {len(lost)} kinds that lost most." if len(kinds) < len(lost) else ""
    merged = f" Layers are put together by {width}: a cell has the SQNR of all their values." if width > 1 else ""
    about = f"SQNR in dB: signal over error, more is better.{merged}{rest}"
    chart = heat("Quantization error over layers", "tensor", "layer", grid, about)
    return chart, tensors(report, most)


def tensors(report: Report, most: int) -> Table:
    """Each tensor, those that lost most first."""
    rows = sorted(
        report.tensors, key=lambda r: (r["sq_error"] == 0, r["sqnr_db"] if r["sqnr_db"] is not None else -1e9)
    )
    cells = [
        (str(r["name"]), str(r.get("encoding", "")), Figure(r["count"], form=",d"), Figure(r["max_abs"], form=".3g"),
         Figure(r["rmse"], form=".3g"), _sqnr(stats_of(r)))
        for r in rows[:most]
    ]  # fmt: skip
    rest = len(rows) - len(cells)
    note = f"The {len(cells):,} that lost most; errors.csv of the run has the other {rest:,}." if rest else ""
    return Table("Quantization error by tensor", ("tensor", "as", "values", "max abs", "RMSE", "SQNR"), cells, note)


def by_run(runs: Sequence[Told], most: int) -> Chart | None:
    """Groups of tensors down, runs across."""
    grid = Grid()
    given = [(run, row) for run in runs[:most] for row in (run.report.errors if run.report else ())]
    lost: dict[str, float] = {}
    for _, row in given:
        lost[str(row["name"])] = max(lost.get(str(row["name"]), 0.0), _share(row))
    kinds = sorted(lost, key=lambda kind: -lost[kind])[:KINDS]
    for run, row in given:
        if str(row["name"]) in kinds:
            grid.add(str(row["name"]), run.label, stats_of(row), int(row.get("tensors", 1)))
    if not grid.cells:
        return None
    rest = f" The first {most} of {len(runs)} runs." if len(runs) > most else ""
    rest += f" The {KINDS} of {len(lost)} kinds that lost most." if len(lost) > KINDS else ""
    about = f"SQNR in dB of all values of a kind; more is better.{rest}"
    return heat("Quantization error by kind of tensor", "tensor", "run", grid, about)


def _share(row: Mapping[str, Any]) -> float:
    """Error over signal."""
    return float(row["sq_error"]) / float(row["sq_signal"]) if row["sq_signal"] else float(row["sq_error"])


def _sqnr(e: ErrorStats) -> Any:
    if e.sq_error == 0:
        return "exact"
    return Figure(e.sqnr_db, "dB", ".2f")


def heat(title: str, row_head: str, column_head: str, grid: Grid, about: str) -> Chart:
    finite = [e.sqnr_db for e, _ in grid.cells.values() if e.sq_error and abs(e.sqnr_db) != float("inf")]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if high - low < LEAST_DB:
        low, high = (low + high - LEAST_DB) / 2, (low + high + LEAST_DB) / 2
    down = grid.down
    rows = [(row, *(_of(grid.cells, row, column) for column in grid.across)) for row in down]
    table = Table(
        f"{title}, SQNR in dB",
        (row_head, *(f"{column_head} {c}" if column_head == "layer" else c for c in grid.across)),
        rows,
    )
    short = _short(down)

    def step(e: ErrorStats) -> int:
        share = (high - e.sqnr_db) / (high - low) if high > low else 0.5
        return min(STEPS - 1, max(0, int(share * STEPS)))

    def draw(width: int) -> Markup:
        room = min(max(LETTER * max(map(len, short.values())) + 10, 60), width * (0.36 if width <= NARROW else 0.42))
        long = column_head == "run"
        top = 22.0 if not long else min(130.0, LETTER * 0.72 * max(map(len, grid.across)) + 18)
        each = min((width - room - (30 if long else 0)) / len(grid.across), 64.0)
        parts = []
        every = 1 if long else max(1, -(-int(LETTER * max(len(c) for c in grid.across) + 8) // max(1, int(each))))
        for j, column in enumerate(grid.across):
            x = room + each * j + each / 2
            if long and each >= 9:
                turned = f"rotate(-40 {number(float(x))} {number(top - 6)})"
                parts.append(words(x, top - 6, fitted(column, (top - 8) / 0.66), "t", transform=turned))
            elif j % every == 0 and not long:
                parts.append(words(x, top - 7, column, "t", "middle"))
        for i, row in enumerate(down):
            y = top + CELL * i
            parts.append(words(0, y + 16, fitted(short[row], room - 8), "l", None))
            for j, column in enumerate(grid.across):
                if (row, column) in grid.cells:
                    parts.append(
                        _cell(
                            grid.cells[row, column], step, (room + each * j, y, each), f"{row}, {column_head} {column}"
                        )
                    )
        said = (
            f"{title}: {len(down)} kinds of tensors, {len(grid.across)} {column_head}s, from {low:.1f} to {high:.1f} dB"
        )
        return svg(width, int(top + CELL * len(down) + 4), said, joined(parts))

    return Chart(title, draw, table, about, _scale(low, high, [e for e, _ in grid.cells.values()]))


def _cell(found: tuple[ErrorStats, int], step: Any, place: tuple[float, float, float], name: str) -> Markup:
    e, n = found
    x, y, each = place
    gap = 1.0 if each > 6 else 0.0
    text = "exact" if e.sq_error == 0 else f"{e.sqnr_db:.2f} dB"
    of = f", {n} tensors" if n > 1 else ""
    kind = "exact" if e.sq_error == 0 else f"h{step(e)}"
    parts = [says(f"{name}: {text}{of}"), rect(x, y, each - gap, CELL - 1, kind)]
    if each >= 40:
        parts.append(
            words(x + each / 2, y + 16, "exact" if e.sq_error == 0 else f"{e.sqnr_db:.2f}", f"on {kind}", "middle")
        )
    elif e.sq_error == 0 and each >= 9:
        parts.append(words(x + each / 2, y + 16, "=", "on exact", "middle"))
    return el("g", *parts)


def _of(cells: Mapping[Key, tuple[ErrorStats, int]], row: str, column: str) -> Any:
    return _sqnr(cells[row, column][0]) if (row, column) in cells else None


def _short(names: Sequence[str]) -> dict[str, str]:
    """Names without what all begin with: `model.layers.*.mlp.up` → `mlp.up`."""
    plain = {n: n.removeprefix("model.").removeprefix("layers.*.").removesuffix(".weight") for n in names}
    return plain if len({*plain.values()}) == len(plain) else {n: n for n in names}


def _scale(low: float, high: float, given: Sequence[ErrorStats]) -> Markup:
    """Which colour is how much."""
    exact = any(e.sq_error == 0 for e in given)
    items = []
    if any(e.sq_error for e in given):
        boxes = [rect(1 + 16 * i, 2, 16, 12, f"h{i}") for i in range(STEPS)]
        strip = el("svg", *boxes, viewBox="0 0 114 16", class_="strip", aria_hidden="true")
        items.append(el("li", f"{high:.1f} dB ", strip, f" {low:.1f} dB"))
    if exact:
        swatch = el("svg", rect(1, 1, 20, 12, "exact"), viewBox="0 0 22 14", class_="swatch", aria_hidden="true")
        items.append(el("li", swatch, "exact: nothing was lost"))
    return el("ul", *items, class_="legend")
