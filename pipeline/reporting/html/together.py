"""What a page says of several runs: all of them in a table, what differs, and what is paid for what."""

from collections.abc import Sequence
from typing import Any

from pipeline.config.names import HOW
from pipeline.figures import Figure
from pipeline.reporting.html import errors, tradeoff, training
from pipeline.reporting.html.markup import el, shown
from pipeline.reporting.html.parallel import Axis, chart
from pipeline.reporting.html.parts import Card, Cards, Note, Part, Section, Side, Table
from pipeline.reporting.html.sections import when
from pipeline.reporting.html.told import Told
from pipeline.tensors.spec import UNQUANTIZED, called
from pipeline.units import show_seconds

MOST_RUNS_ACROSS = 60
NOWHERE = ("paths", "hydra", "progress", "debug", "overwrite", *HOW)  # of settings that change nothing that is found
MOST_SETTINGS = 60


def of_runs(runs: Sequence[Told], anchors: Sequence[str | None], most: int) -> list[Section]:
    """The sections of several runs.

    Args:
        anchors: of each run where on the page it is looked at closely; None: nowhere.
        most: points of a line.
    """
    differing = differences(runs)
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    made: list[tuple[str, str, Sequence[Part]]] = [
        ("summary", "Summary", [Cards(_cards(runs)), table(runs, anchors, names)]),
        ("tradeoff", "Trade-offs", _tradeoffs(runs)),
        ("sweep", "Settings and results", _settings(runs, differing, names)),
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


def differences(runs: Sequence[Told]) -> dict[str, list[str | None]]:
    """Settings whose values are not the same in all runs, and the value of each; first what was typed."""
    typed = [dict(_pair(word) for word in r.run.command) for r in runs]
    found: dict[str, list[str | None]] = {}
    for name in dict.fromkeys(n for one in typed for n in one):
        values = [one.get(name) for one in typed]
        if len({*values}) > 1 and name.partition(".")[0] not in NOWHERE:
            found[name] = values
    for name in dict.fromkeys(n for r in runs for n in r.config):
        values = [r.config.get(name) for r in runs]
        if name not in found and len({*values}) > 1 and name.partition(".")[0] not in NOWHERE:
            found[name] = values
    last: dict[Any, str] = {}  # of what one setting gave to others, the first says it
    for name, values in found.items():
        last.setdefault((name.rpartition(".")[2], tuple(values)), name)
    return {name: found[name] for name in last.values()}


def typed_ones(runs: Sequence[Told]) -> set[str]:
    return {_pair(word)[0] for r in runs for word in r.run.command}


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.lstrip("+").partition("=")
    return name, value


def _settings(runs: Sequence[Told], differing: dict[str, list[str | None]], names: Sequence[str]) -> list[Part]:
    typed = typed_ones(runs)
    axes = [Axis(name, _values(values)) for name, values in differing.items() if name in typed]
    axes = axes or [Axis(name, _values(values)) for name, values in list(differing.items())[:4]]
    ordered = sorted(
        names, key=lambda n: next((i for i, r in enumerate(runs) if n in r.metrics and r.metrics[n].better), len(runs))
    )
    metrics = [Axis(name, [r.metrics.get(name) for r in runs]) for name in ordered]
    drawn = chart([r.label for r in runs], axes, metrics)
    parts: list[Part] = [drawn] if drawn else []
    if differing:
        some = list(differing.items())[:MOST_SETTINGS]
        rows = [(r.label, *(values[i] for _, values in some)) for i, r in enumerate(runs)]
        rest = len(differing) - len(some)
        note = f"{rest} more settings differ; config.yaml of each run has them." if rest else ""
        if len(runs) <= 12:  # few runs: a setting a row reads better
            rows = [(name, *values) for name, values in some]
            parts.append(Table("Settings that differ", ("setting", *(r.label for r in runs)), rows, note))
        else:
            parts.append(Table("Settings that differ", ("run", *(name for name, _ in some)), rows, note))
    elif len(runs) > 1:
        parts.append(Note("The runs have the same settings."))
    return parts


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
