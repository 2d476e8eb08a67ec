"""A comparison of runs as tables: the runs, numbered; in what they differ; metrics; errors by group of tensors."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline.errors import short, some
from pipeline.errors import shown as first
from pipeline.figures import STILL
from pipeline.reporting.compare.deltas import ARROWS, SAID
from pipeline.reporting.compare.differences import ABSENT, KINDS, TOGETHER, Difference
from pipeline.reporting.compare.measures import is_time_of_stage
from pipeline.reporting.compare.spread import RULE
from pipeline.tables import table
from pipeline.tensors.stats import ErrorStats
from pipeline.terminal import line

if TYPE_CHECKING:
    from pipeline.reporting.compare.compared import Compared

MOST_SETTINGS, MOST_ERRORS, MOST_VALUE = 20, 40, 60  # lines of a kind, and characters of a value; JSON has all


def shown(given: "Compared") -> list[Any]:
    """Tables and lines, as `console.out` takes them."""
    return [*_runs(given), *_differences(given), *_metrics(given), *_errors(given), *_said(given)]


def _runs(given: "Compared") -> Iterator[Any]:
    rows = []
    for i, row in enumerate(given.groups):
        what = row.about if i else "; ".join(filter(None, ["the others are held against it", row.about]))
        rows.append([str(i + 1), line(row.name), line(what)])
    yield table("Runs", ["", "run", ""], rows, right=[0])


def _differences(given: "Compared") -> Iterator[Any]:
    """A line for each value, with the numbers of the rows that have it."""
    lines: list[list[str]] = []
    left = 0
    for kind in KINDS:
        ours = [line_ for one in given.differences.rows if one.kind == kind for line_ in _values(one)]
        lines += ours[:MOST_SETTINGS]
        left += len(ours[MOST_SETTINGS:])
    if lines:
        yield table("Different", ["", "value", "runs"], lines)
    else:
        yield "They differ in nothing that is on record."
    if left:
        yield f"and {left} lines more, which --format json has"
    if equal := [f"{n} {KINDS[kind]}" for kind, n in given.differences.equal.items() if n]:
        yield f"Equal: {', '.join(equal)}."


def _values(one: Difference) -> list[list[str]]:
    by: dict[str, list[str]] = {}
    for i, value in enumerate(one.values):
        by.setdefault(value, []).append(str(i + 1))
    name = f"{TOGETHER[one.kind]} {one.name}" if one.kind in TOGETHER else one.name
    shown = ((line(short(value, MOST_VALUE)), some(having, most=6)) for value, having in by.items())
    return [["" if n else line(name), *cells] for n, cells in enumerate(shown)]


def _metrics(given: "Compared") -> Iterator[Any]:
    lines: list[list[str]] = []
    for name, figure in given.metrics.items():
        if is_time_of_stage(name):
            continue
        before = len(lines)
        for i, changes in enumerate(given.changes):
            made = changes[name]
            said = SAID.get(made.verdict, made.verdict)
            said = ": ".join(filter(None, [said, made.why]))
            head = f"{name} {ARROWS[figure.better]}".strip() if len(lines) == before else ""
            value = ABSENT if made.after is None else str(made.after)
            lines.append([line(head), str(i + 1), value, made.difference, made.share, said])
    if lines:
        title = "Metrics, ↓ lower is better, ↑ higher is better"
        yield table(title, ["metric", "run", "value", "change", "", "verdict"], lines, right=[1, 2, 3, 4])
    if any(made.after is not None and made.after.so_far for changes in given.changes for made in changes.values()):
        yield STILL
    if any(map(is_time_of_stage, given.metrics)):
        yield "What each stage took is in --format json, csv and html."


def _errors(given: "Compared") -> Iterator[Any]:
    """Groups stand together, whatever they are packed as."""
    by: dict[str, list[tuple[int, str, ErrorStats]]] = {}
    for (group, encoding), stats in given.errors().items():
        by.setdefault(group, []).extend((i, encoding, e) for i, e in enumerate(stats, 1) if e is not None)
    lines: list[list[str]] = []
    for group, found in by.items():
        for n, (i, encoding, e) in enumerate(sorted(found, key=lambda one: one[:2])):
            sqnr = "exact" if e.sq_error == 0 else f"{e.sqnr_db:.2f} dB"
            lines.append(["" if n else line(group), line(encoding), str(i), f"{e.rmse:.3g}", sqnr])
    if lines:
        columns = ["tensors", "as", "run", "RMSE", "SQNR"]
        yield table("Errors by group of tensors", columns, lines[:MOST_ERRORS], right=[2, 3, 4])
        yield from (f"{rest} lines, which --format json has" for rest in first([], len(lines), MOST_ERRORS))


def _said(given: "Compared") -> Iterator[str]:
    by: dict[str, list[str]] = {}
    for row, name in given.regressions:
        by.setdefault(row, []).append(name)
    base = line(given.names[0])
    yield from (f"✗ {line(row)} is worse than {base} in {', '.join(names)}" for row, names in by.items())
    if any(made.chance is not None for changes in given.changes for made in changes.values()):
        yield f"± is the deviation of repeats; within noise: {RULE}."
