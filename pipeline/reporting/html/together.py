"""What a page says of several runs: all of them in a table, what differs, and what is paid for what."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import short, some
from pipeline.figures import STILL, Figure, SoFar
from pipeline.records.run import STATES
from pipeline.reporting.compare.differences import ABSENT, differences
from pipeline.reporting.html import attention, bubbles, errors, gist, repeats, tradeoff, training
from pipeline.reporting.html.differing import differing
from pipeline.reporting.html.markup import el, shown
from pipeline.reporting.html.parallel import Axis, chart
from pipeline.reporting.html.parts import Attention, Card, Cards, Folded, Gist, Note, Part, Section, Side, Table
from pipeline.reporting.html.scales import finite
from pipeline.reporting.html.sections import when
from pipeline.reporting.html.told import Told, incomparable, kind
from pipeline.units import show_seconds

MOST_RUNS_ACROSS = 60
MOST_SETTINGS = 60
FEW = 12  # runs
MOST_LINES = 12  # of what needs attention
LONGEST = 120  # of why a run failed


def of_runs(runs: Sequence[Told], anchors: Sequence[str | None], most: int) -> list[Section]:
    """The sections of several runs.

    Args:
        anchors: of each run where on the page it is looked at closely; None: nowhere.
        most: points of a line.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    main = list(dict.fromkeys(name for run in runs for name in run.main))
    other = incomparable(runs)
    made: list[tuple[str, str, Sequence[Part]]] = [
        ("summary", "Summary", [
            *_gist(runs, other), Cards(_cards(runs, other)), table(runs, anchors, main), *_curves(runs, names, main),
        ]),
        ("repeats", "Repeats", [t for t in [repeats.table(runs)] if t]),
        ("tradeoff", "Trade-offs", _tradeoffs(runs, [name for name in main if name not in other])),
        ("sweep", "Settings and results", _settings(runs, main)),
        ("errors", "Quantization error", [c for c in [errors.by_run(runs, MOST_RUNS_ACROSS)] if c]),
        ("training", "Training", [c for c in [training.compared(runs, most)] if c]),
    ]  # fmt: skip
    return [Section(id, title, parts) for id, title, parts in made if parts]


def _gist(runs: Sequence[Told], other: Mapping[str, Sequence[str]]) -> list[Part]:
    """In words; and what needs attention, by whom: what is the same of several stands there once."""
    by_line: dict[str, list[str]] = {}
    for run in runs:
        for line in attention.of_run(run):
            by_line.setdefault(line, []).append(run.label)
    lines = [f"{some(labels)}: {line}" for line, labels in by_line.items()]
    lines = [*(f"{name}: {why}." for name, why in attention.not_there(runs).items()), *lines]
    rest = len(lines) - MOST_LINES
    note = f"{rest} more are with the runs below." if rest > 0 else ""
    return [Gist(gist.of_runs(runs, len(lines), other)), *([Attention(lines[:MOST_LINES], note)] if lines else [])]


def _tradeoffs(runs: Sequence[Told], names: Sequence[str]) -> list[Part]:
    metrics = [{name: figure for name, figure in r.metrics.items() if name in names} for r in runs]
    found = tradeoff.charts([r.label for r in runs], [kind(r) for r in runs], metrics)
    chosen = bubbles.chart([r.label for r in runs], metrics, names)
    return [*([chosen] if chosen else []), *([Side(found)] if len(found) > 1 else found)]


def _cards(runs: Sequence[Told], other: Mapping[str, Sequence[str]]) -> list[Card]:
    states = {state: sum(r.run.state == state for r in runs) for state in STATES}
    said = ", ".join(f"{n} {state}" for state, n in states.items() if n)
    cards = [Card("runs", Figure(len(runs), form=",d"), said)]
    for name in dict.fromkeys(n for r in runs for n in r.main if n not in other):
        found = [(r.metrics[name], r.label) for r in runs if finite(r.metrics.get(name)) is not None]
        better = found[0][0].better if found else ""
        if better and len({f.value for f, _ in found}) > 1 and len(cards) < 7:
            best, _ = (min if better == "lower" else max)(found, key=lambda one: one[0].value)
            cards.append(Card(f"best {name}", best, some([label for f, label in found if f.value == best.value])))
    return cards


def table(runs: Sequence[Told], anchors: Sequence[str | None], names: Sequence[str]) -> Table:
    """A row for each run, with all that it found."""
    changed = [gist.changes(run) for run in runs]
    more = {name for one in changed for name in one}
    heads = [head for name in names for head in (name, *([f"{name} change"] if name in more else []))]
    rows: list[Sequence[Any]] = []
    keys = [run.label for run in runs]
    for run, anchor, change in zip(runs, anchors, changed, strict=True):
        found = {**run.metrics, **{f"{name} change": figure for name, figure in change.items()}}
        rows.append((_link(run.label, anchor), _state(run), *(found.get(head) for head in heads)))
    for name, why in attention.not_there(runs).items():
        rows.append((name, short(why, LONGEST), *(None for _ in heads)))
        keys.append(name)
    note = "A change is against what the run compares with: the model before. " if more else ""
    if any(isinstance(figure, SoFar) for run in runs for figure in run.main.values()):
        note += f"{STILL}."
    note = note.strip()
    return Table("Runs", ("run", "state", *heads), rows, note, keys=keys)


def _curves(runs: Sequence[Told], names: Sequence[str], main: Sequence[str]) -> list[Part]:
    """Where curves went, of each run."""
    rest = [name for name in names if name not in main]
    title, about = "Where curves went", f"{len(rest)} numbers of each run"
    table = Table(title, ("run", *rest), [(run.label, *(run.metrics.get(name) for name in rest)) for run in runs])
    if len(runs) <= FEW:  # a number a row reads better
        heads = ("", *(run.label for run in runs))
        table = Table(title, heads, [(name, *(run.metrics.get(name) for run in runs)) for name in rest])
    return [Folded(title, [table], about)] if rest else []


def _state(run: Told) -> str:
    """In a word, and of one that is not complete how far it came, or why it failed."""
    far = " ".join(run.run.reached.split())
    return f"{run.run.state}: {short(far, LONGEST)}" if far else run.run.state


def _link(label: str, anchor: str | None) -> Any:
    return el("a", label, href=f"#{anchor}") if anchor else label


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
