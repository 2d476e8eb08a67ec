"""What a comparison's page says of metrics: each against the baseline's, with what its repeats say of noise."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.figures import STILL, Figure
from pipeline.reporting.compare.compared import Compared
from pipeline.reporting.compare.deltas import ARROWS, Change
from pipeline.reporting.compare.measures import is_time_of_stage
from pipeline.reporting.compare.spread import RULE
from pipeline.reporting.html.markup import el
from pipeline.reporting.html.parts import Folded, Part, Table
from pipeline.reporting.html.strips import WORSE, strips

MOST_MARKS = 60  # rows in the picture
SAID: Mapping[str, str] = {"worse": WORSE, "better": "✓\u00a0better", "same": "=\u00a0same"}
HEADS = ("metric", "row", "verdict", "mean", "change", "relative", "± deviation", "runs", "by chance")
OF_REPEATS = ("± deviation", "by chance")  # columns that there are where there are repeats


@dataclass(frozen=True, slots=True)
class Signed(Figure):
    """A number that is shown as `text`, which has its sign."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


def of_metrics(found: Compared, most: int) -> list[Part]:
    """A picture, a table, and the times of stages folded.

    Args:
        most: rows.
    """
    times = {name: figure for name, figure in found.metrics.items() if is_time_of_stage(name)}
    others = {name: figure for name, figure in found.metrics.items() if name not in times}
    parts: list[Part] = []
    if others:
        few = min(MOST_MARKS, most)
        chart = strips(found.names[:few], found.changes[:few], others)
        parts += [chart] if chart else []
        parts.append(_table(f"Metrics against {found.names[0]}", found, others, most))
    if times:
        table = _table(f"Times of stages against {found.names[0]}", found, times, most)
        parts.append(Folded("Times of stages", [table], f"{len(times)} stages"))
    return parts


def _table(title: str, found: Compared, metrics: Mapping[str, Figure], most: int) -> Table:
    """A line for each metric and row; what only repeats have, where there are any."""
    rows = list(zip(found.names, found.changes, strict=True))[:most]
    lines = [
        (f"{name}\u00a0{ARROWS[figure.better]}".strip(), row, *_cells(changes[name]))
        for name, figure in metrics.items()
        for row, changes in rows
    ]
    note = "↓ lower is better, ↑ higher is better."
    if any(made.after is not None and made.after.so_far for _, changes in rows for made in changes.values()):
        note += f" {STILL}."
    if any(made.chance is not None for changes in found.changes for made in changes.values()):
        note += f" By chance: how likely such a change is of repeats alone; within noise: {RULE}."
    kept = [i for i, head in enumerate(HEADS) if head not in OF_REPEATS or any(line[i] is not None for line in lines)]
    return Table(title, [HEADS[i] for i in kept], [[line[i] for i in kept] for line in lines], note)


def _cells(made: Change) -> Iterator[Any]:
    after, changed = made.after, made.verdict != "baseline"
    yield verdict(made)
    yield after.figure if after else None
    yield Signed(made.absolute, text=made.difference) if changed and made.absolute is not None else None
    yield Signed(100 * made.relative, "%", text=made.share) if changed and made.relative is not None else None
    apart = after.spread.deviation if after else None
    yield Figure(apart, after.like.unit, after.figure.form) if after and apart is not None else None
    yield Figure(after.spread.number, form=",d") if after else None
    yield Figure(made.chance, form=".2g") if changed and made.chance is not None else None


def verdict(made: Change) -> Any:
    """In words, and why; what is worse is marked beside."""
    lacking = f"without {', '.join(made.after.lacking)}" if made.after and made.after.lacking else ""
    said = "" if made.verdict == "missing" and made.why else SAID.get(made.verdict, made.verdict)
    text = ": ".join(filter(None, [said, made.why, lacking]))
    return el("span", text, class_="worse") if made.verdict == "worse" else text
