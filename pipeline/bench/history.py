"""Benchmarks that asked the same before, on the same kind of machine: what each of their figures was."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.bench.against import NAME
from pipeline.config.names import place_name
from pipeline.errors import SourceError
from pipeline.records import schemas
from pipeline.records.tree import places
from pipeline.running import text_stream
from pipeline.stage import Table
from pipeline.units import show_bytes

LAST = 5  # that are shown before the newest
WEIGHTS = ("model", "quant", "hub", "seed")  # roots of what says which weights
HOW_OFTEN = ("repeats", "seconds", "leak")  # of a workload: more of the same, or measured in processes of its own
NOT_THERE = "–"

Rows = Sequence[Mapping[str, Any]]
Metric = Mapping[str, Any]


@dataclass(frozen=True)
class Earlier:
    """A benchmark that was: its folder's name, and what it wrote."""

    name: str
    record: Mapping[str, Any]

    @property
    def date(self) -> str:
        """When it ended, UTC, to the minute."""
        return str(self.record.get("when", ""))[:16].replace("T", " ")


@dataclass(frozen=True)
class Trend:
    """A figure over benchmarks.

    Attributes:
        cell: whose.
        metric: which.
        before: of each that was, oldest first; None: it had no such figure.
        base: of the baseline.
        now: of the newest.
    """

    cell: str
    metric: str
    before: tuple[Metric | None, ...]
    base: Metric
    now: Metric


def question(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a benchmark asked: figures of equal questions may stand in one line."""
    machine = record["machine"]
    of_machine = (machine["kind"], machine["threads"]) if isinstance(machine, Mapping) else (machine, None)
    return record["benchmark"], of_machine, _weights(record), _workload(record)


def differing(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Settings in which two benchmarks of one kind asked different things, in words; a setting that one of both did not
    have yet is none.

    Args:
        now, before: records. `now` is of one that has not begun: what it lacks yet is not compared.
    """
    pairs: list[tuple[str, Any, Any]] = []
    if "command" in now and "command" in before:
        a, b = _weights(now), _weights(before)
        pairs += [(key, a.get(key), b.get(key)) for key in sorted({*a, *b})]
    a, b = _workload(now), _workload(before)
    pairs += [(f"bench.{key}", a[key], b[key]) for key in a if key in b]
    if isinstance(was := before["machine"], Mapping) and "threads" in was:
        pairs.append(("bench.threads", now["machine"]["threads"], was["threads"]))
    return [f"{key}={_said(a)}, which was {_said(b)}" for key, a, b in pairs if a != b]


def _weights(record: Mapping[str, Any]) -> dict[str, str]:
    """What says which weights. Checkpoints are called as their files are, wherever these lie."""
    found = {}
    for override in record.get("command", ()):
        key, _, value = override.lstrip("+~").partition("=")
        if key.partition(".")[0] in WEIGHTS:
            found[key] = place_name(value) if key == "model.source" else value
    return found


def _workload(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a record that was not read back too, where tuples are no lists yet."""
    asked = record.get("workload", {}).items()
    return {key: [*value] if isinstance(value, tuple) else value for key, value in asked if key not in HOW_OFTEN}


def _said(value: Any) -> str:
    return "nothing" if value is None else str(value).replace(" ", "")


def earlier(outputs: Path, run: Path, record: Mapping[str, Any]) -> list[Earlier]:
    """The last `LAST` below `outputs` that asked what `record` asks, oldest first, without the one in `run`. What
    cannot be read is said, and left out."""
    asked, found = question(record), []
    for place in places(outputs):
        file = place.folder / NAME
        if not place.run or place.folder == run or not file.is_file():
            continue
        try:
            known = schemas.read("benchmark", file)
        except SourceError as why:
            text_stream.write(f"! {why}; it is left out of the trend\n")
            continue
        if "when" in known and known["when"] < record["when"] and question(known) == asked:
            found.append(Earlier(place.folder.name, known))
    return sorted(found, key=lambda one: str(one.record["when"]))[-LAST:]


def trends(now: Rows, base: Rows, before: Sequence[Earlier]) -> list[Trend]:
    """Of every figure that is compared: both the baseline and the newest have it."""
    was, known = dict(_figures(base)), [dict(_figures(one.record["rows"])) for one in before]
    return [
        Trend(*key, tuple(one.get(key) for one in known), was[key], metric)
        for key, metric in _figures(now)
        if key in was
    ]


def _figures(rows: Rows) -> Iterator[tuple[tuple[str, str], Metric]]:
    for row in rows:
        if row["state"] == "measured":
            for name, metric in row["metrics"].items():
                yield (f"{row['engine']} {row['quant']}", name), metric


def shown(metric: Metric | None) -> str:
    """A value without its unit, but for bytes."""
    if metric is None:
        return NOT_THERE
    return show_bytes(metric["value"]) if metric["unit"] == "B" else f"{metric['value']:.4g}"


def table(found: Sequence[Trend], before: Sequence[Earlier], against: str) -> Table:
    """Every figure, a row."""
    which = ", ".join(one.date for one in before) if before else "none here asked the same"
    rows = tuple(
        (t.cell, t.metric if t.now["unit"] in ("", "B") else f"{t.metric}, {t.now['unit']}",
         " · ".join(map(shown, t.before)) or NOT_THERE, shown(t.base), shown(t.now), _change(t))
        for t in found
    )  # fmt: skip
    columns = ("cell", "figure", "before, oldest first", "baseline", "now", "since the baseline")
    return Table(f"Trend since {against}; before: {which}", columns, rows)


def _change(trend: Trend) -> str:
    return f"{trend.now['value'] / trend.base['value'] - 1:+.1%}" if trend.base["value"] else NOT_THERE
