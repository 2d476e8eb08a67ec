"""The stages of a run as they hang together, with what each took; and how far off the plan was."""

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.reporting.html.drawing import LETTER, fitted, line, path, rect, says, svg, words
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Table
from pipeline.reporting.html.told import Told
from pipeline.reporting.manifest import Report
from pipeline.units import show_bytes, show_seconds

ROW, LANE = 44, 14  # heights of stages, and how far edges that pass by others keep apart
UNITS = {"bytes": "B", "s": "s"}


def stages(run: Told, report: Report) -> Chart:
    """One row a stage, in order; edges at the left, times and bytes at the right."""
    rows = report.stages
    names = [str(row["name"]) for row in rows]
    edges = [(a, b, p) for a, b, p in run.edges if a in names and b in names]
    into = {name: [f"{a} ({p})" if p != "checkpoint" else a for a, b, p in edges if b == name] for name in names}
    table = Table(
        "Stages",
        ("stage", "takes", "tensors", "in", "out", "time"),
        [
            (name, ", ".join(into[name]) or None, Figure(row["tensors"], form=",d"), Figure(row["nbytes_in"], "B"),
             Figure(row["nbytes_out"], "B"), Figure(row["seconds"], "s", ".2f"))
            for name, row in zip(names, rows, strict=True)
        ],
        "Seconds are summed over workers: with several at once they are more than the run took.",
    )  # fmt: skip
    largest = max((float(row["seconds"]) for row in rows), default=0.0) or 1.0

    def draw(width: int) -> Markup:
        lanes = _lanes(names, [(a, b) for a, b, _ in edges])
        rail = 16 + LANE * max((n for n in lanes.values()), default=0)
        label = 96 if width <= NARROW else 130
        from_, room = rail + 14 + label, width - rail - 14 - label - 70
        parts = []
        for a, b, param in edges:
            y1, y2 = (ROW * names.index(n) + 22.0 for n in (a, b))
            out = rail - LANE * lanes[a, b]
            around = [(rail, y1), (rail, y2)] if lanes[a, b] == 0 else _around(rail, out, y1, y2)
            parts.append(path(around, "e", fill="none"))
            parts.append(el("g", says(f"{b} takes {param} from {a}"), path(around, "hit", fill="none")))
        for i, (name, row) in enumerate(zip(names, rows, strict=True)):
            y = ROW * i + 22.0
            seconds, moved = float(row["seconds"]), f"{show_bytes(row['nbytes_out'])} out" if row["nbytes_out"] else ""
            bar = rect(from_, y - 9, max(1.0, room * seconds / largest), 18, "b c0f", rx=2.0)
            tip = says(f"{name}: {_took(seconds)}{f', {moved}' if moved else ''}")
            parts += [
                el("circle", cx=float(rail), cy=y, r=5.0, class_="node"),
                words(rail + 14, y - 1 if moved else y + 4, fitted(name, label - 8), "l strong"),
                words(rail + 14, y + 13, moved, "t") if moved else Markup(""),
                el("g", tip, bar),
                words(from_ + max(1.0, room * seconds / largest) + 6, y + 4, _took(seconds), "l"),
            ]
        said = f"{len(names)} stages: " + ", ".join(
            f"{n} {_took(r['seconds'])}" for n, r in zip(names, rows, strict=True)
        )
        return svg(width, ROW * len(rows) + 4, said, joined(parts))

    about = "Lines say which stage takes what another gave; bars, how long each worked."
    return Chart("Graph of stages", draw, table, about)


def _took(seconds: float) -> str:
    return show_seconds(seconds) if seconds >= 0.001 or not seconds else "< 1 ms"


def _around(rail: float, out: float, y1: float, y2: float) -> list[tuple[float, float]]:
    return [(rail, y1), (out, y1 + 12), (out, y2 - 12), (rail, y2)]


def _lanes(names: list[str], edges: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """How far to the left each edge goes: neighbours are joined straight, others pass by in lanes of their own."""
    found: dict[tuple[str, str], int] = {}
    taken: list[list[tuple[int, int]]] = []
    for a, b in sorted({*edges}, key=lambda e: abs(names.index(e[1]) - names.index(e[0]))):
        low, high = sorted((names.index(a), names.index(b)))
        if high - low <= 1:
            found[a, b] = 0
            continue
        for n in range(len(taken) + 1):
            if n == len(taken):
                taken.append([])
            if all(high <= start or end <= low for start, end in taken[n]):
                taken[n].append((low, high))
                found[a, b] = n + 1
                break
    return found


def planned(report: Report) -> Chart | None:
    """What was measured as a share of what was planned."""
    rows = report.predicted
    if not rows:
        return None
    cells = []
    for row in rows:
        unit = UNITS.get(row["unit"], str(row["unit"]))
        plan = row["planned"]
        off = Figure(100 * (row["measured"] / plan - 1), "%", "+.0f") if plan else None
        given = None if plan is None else Figure(plan, unit, ".3g")
        cells.append((str(row["what"]), given, Figure(row["measured"], unit, ".3g"), off))
    shares = [row["measured"] / row["planned"] if row["planned"] else None for row in rows]
    most = max([1.2, *(min(s, 3.0) * 1.05 for s in shares if s is not None)])

    def draw(width: int) -> Markup:
        labels = [f"{_size(row[2])}, {row[3]}" if row[3] is not None else "" for row in cells]
        left, right, step = 76, LETTER * max(map(len, labels)) + 12, 34
        room = width - left - right
        at = left + room / most
        parts = [
            line(at, 4, at, step * len(rows) + 4, "ref"),
            words(at, step * len(rows) + 18, "as planned", "t", "middle"),
        ]
        for i, (row, share) in enumerate(zip(cells, shares, strict=True)):
            y = step * i + 20.0
            parts.append(words(0, y + 4, fitted(row[0], left - 6), "l strong"))
            if share is None:
                parts.append(words(left + 4, y + 4, f"{_size(row[2])}; no rate yet to plan with", "t"))
                continue
            kind = "c1f" if share > 1.0005 else "c0f"
            tip = says(f"{row[0]}: {_size(row[2])} measured, {_size(row[1])} planned")
            parts.append(el("g", tip, rect(left, y - 8, room * min(share, most) / most, 16, f"b {kind}", rx=2.0)))
            parts.append(words(width, y + 4, labels[i], "l", "end"))
        return svg(width, step * len(rows) + 24, "Measured, as a share of what was planned", joined(parts))

    table = Table("Planned and measured", ("", "planned", "measured", "off"), cells)
    about = "Planned are bounds, but for the time. What took more than planned is orange."
    return Chart("Plan and fact", draw, table, about)


def _size(value: Figure | None) -> str:
    if value is None:
        return "–"
    return show_seconds(value.value) if value.unit == "s" else str(value)
