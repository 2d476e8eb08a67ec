"""What a page says of several runs: all of them in a table, what differs, and what is paid for what."""

from collections.abc import Sequence
from typing import Any

from pipeline.figures import Figure
from pipeline.reporting.compare.differences import ABSENT, differences
from pipeline.reporting.html import errors, tradeoff, training
from pipeline.reporting.html.differing import differing
from pipeline.reporting.html.markup import el, shown
from pipeline.reporting.html.parallel import Axis, chart
from pipeline.reporting.html.parts import Card, Cards, Note, Part, Section, Side, Table
from pipeline.reporting.html.sections import when
from pipeline.reporting.html.told import Told
from pipeline.tensors.spec import UNQUANTIZED, called
from pipeline.units import show_seconds

MOST_RUNS_ACROSS = 60
MOST_SETTINGS = 60


def of_runs(runs: Sequence[Told], anchors: Sequence[str | None], most: int) -> list[Section]:
    """The sections of several runs.

    Args:
        anchors: of each run where on the page it is looked at closely; None: nowhere.
        most: points of a line.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    made: list[tuple[str, str, Sequence[Part]]] = [
        ("summary", "Summary", [Cards(_cards(runs)), table(runs, anchors, names)]),
        ("tradeoff", "Trade-offs", _tradeoffs(runs)),
        ("sweep", "Settings and results", _settings(runs, names)),
        ("errors", "Quantization error", [c for c in [errors.by_run(runs, MOST_RUNS_ACROSS)] if c]),
        ("training", "Training", [c for c in [training.compared(runs, most)] if c]),
    ]  # fmt: skip
    return [Section(id, title, parts) for id, title, parts in made if parts]


def _tradeoffs(runs: Sequence[Told]) -> list[Part]:
    found = tradeoff.charts([r.label for r in runs], [kind(r) for r in runs], [r.metrics for r in runs])
    return [Side(found)] if len(found) > 1 else [*found]


def _cards(runs: Sequence[Told]) -> list[Card]:
    states = {
        state: sum(r.run.state == state for r in runs) for state in ("complete", "running", "interrupted", "unreadable")
    }
    said = ", ".join(f"{n} {state}" for state, n in states.items() if n)
    cards = [Card("runs", Figure(len(runs), form=",d"), said)]
    for name in dict.fromkeys(n for r in runs for n in r.metrics):
        found = [(r.metrics[name], r.label) for r in runs if name in r.metrics]
        better = found[0][0].better
        if better and len({f.value for f, _ in found}) > 1 and len(cards) < 7:
            best = (min if better == "lower" else max)(found, key=lambda one: one[0].value)
            cards.append(Card(f"best {name}", best[0], best[1]))
    return cards


def table(runs: Sequence[Told], anchors: Sequence[str | None], names: Sequence[str]) -> Table:
    """A row for each run, with all that it found."""
    rows = [
        (_link(r.label, anchor), r.run.state, *(r.metrics.get(name) for name in names))
        for r, anchor in zip(runs, anchors, strict=True)
    ]  # fmt: skip
    return Table("Runs", ("run", "state", *names), rows, keys=[r.label for r in runs])


def _link(label: str, anchor: str | None) -> Any:
    return el("a", label, href=f"#{anchor}") if anchor else label


def kind(run: Told) -> str:
    """What most of what it quantized is packed as."""
    report = run.report
    if report is None:
        return run.run.state
    found: dict[str, int] = {}
    for row in report.tensors:
        found[str(row.get("encoding", ""))] = found.get(str(row.get("encoding", "")), 0) + int(row["count"])
    return (
        max(found, key=lambda name: found[name])
        if found
        else called(report.encodings)
        if report.encodings
        else UNQUANTIZED
    )


def _settings(runs: Sequence[Told], names: Sequence[str]) -> list[Part]:
    rows = differences([run.measured.facts for run in runs]).rows
    chosen = [d for d in rows if d.kind == "typed"] or [d for d in rows if d.kind == "setting"][:4]
    axes = [Axis(d.name, _values([None if v == ABSENT else v for v in d.values])) for d in chosen]
    directed = [i for run in runs for i, name in enumerate(names) if name in run.metrics and run.metrics[name].better]
    ordered = [names[i] for i in dict.fromkeys([*directed, *range(len(names))])]
    metrics = [Axis(name, [run.metrics.get(name) for run in runs]) for name in ordered]
    drawn = chart([run.label for run in runs], axes, metrics)
    parts: list[Part] = [drawn] if drawn else []
    if not rows:
        return [*parts, Note("The runs have the same settings, and were made with the same.")]
    some = rows[:MOST_SETTINGS]
    rest = len(rows) - len(some)
    note = f"{rest} more things differ; `compare` has them." if rest else ""
    return [*parts, differing([run.label for run in runs], some, note)]


def _values(given: Sequence[str | None]) -> list[Any]:
    """As numbers, where all are."""
    try:
        return [None if v is None else Figure(float(v), form="g") for v in given]
    except ValueError:
        return list(given)


def about(run: Told) -> str:
    """A run in a line."""
    took = show_seconds(run.run.seconds) if run.run.seconds is not None else ""
    found = [f"{name} {shown(value)}" for name, value in run.metrics.items() if name != "time"][:3]
    return ", ".join(
        filter(None, [run.run.state if run.run.state != "complete" else "", *found, took, when(run.run.started)])
    )
