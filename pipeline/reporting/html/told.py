"""What a run's folder tells a page: its manifest as a report, metrics with which is better, the edges of its graph,
and what was overridden. What is missing or not as expected is said, and never made up."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.figures import Figure, SoFar
from pipeline.files import read_whole
from pipeline.records.run import DESCRIPTION, Run, key_of
from pipeline.redact import hide, tree
from pipeline.reporting.compare.measures import WHOLE, Measured, apart, measured
from pipeline.reporting.html.overrides import said_by
from pipeline.reporting.manifest import Report
from pipeline.tensors.spec import UNQUANTIZED, called

TIME = "time"  # what a run took, which comparisons call `WHOLE`
BESIDE = ("sqnr", "rmse", "max_abs", TIME)  # metrics that no stage's figures have


@dataclass(frozen=True)
class Told:
    """Attributes:
    run: it.
    label: what tells it from the others of a page.
    report: its manifest; None, when it has none that can be read.
    problems: what cannot be read, and why.
    page_file: where the page will be, which links start from; None: nobody knows, and it has none.
    """

    run: Run
    label: str
    report: Report | None = field(repr=False)
    problems: tuple[str, ...] = ()
    page_file: Path | None = None

    @property
    def page(self) -> Path | None:
        """The folder that the page will be in."""
        return self.page_file.parent if self.page_file else None

    @property
    def outputs(self) -> Path:
        """The folder of outputs, as far as its name tells: what is below moves together."""
        return self.run.folder.parents[len(Path(self.run.name).parts) - 1]

    @cached_property
    def measured(self) -> Measured:
        return measured(self.run)

    @cached_property
    def metrics(self) -> dict[str, Figure]:
        """By name, each with what is better, as far as anybody knows."""
        time = {TIME: Figure(self.run.seconds, "s", ".1f", "lower")} if self.run.seconds is not None else {}
        found = {**self.measured.metrics, **time}
        return found if self.run.state == "complete" else {name: SoFar.of(f) for name, f in found.items()}

    @cached_property
    def main(self) -> dict[str, Figure]:
        """Of the metrics those that stages found, what was lost and the time: without where curves went."""
        return {n: f for n, f in self.metrics.items() if n in self.run.metrics or key_of(n) in BESIDE}

    @cached_property
    def description(self) -> dict[str, Any]:
        """`run.json`, or nothing."""
        try:
            return dict(json.loads(read_whole(self.run.folder / DESCRIPTION)))
        except (SourceError, ValueError, TypeError):
            return {}

    @cached_property
    def edges(self) -> list[tuple[str, str, str]]:
        """From which stage to which, and as what, by the keys that `run.json` has."""
        nodes = self.description.get("nodes", {})
        made = {str(n.get("key")): name for name, n in nodes.items()}
        made |= {str(n["found"].get("key")): name for name, n in nodes.items() if isinstance(n.get("found"), Mapping)}
        takes = ((name, node.get("parts", {}).get("takes", {})) for name, node in nodes.items())
        return [(made[key], name, param) for name, given in takes for param, key in given.items() if key in made]

    @cached_property
    def config(self) -> dict[str, str]:
        """Resolved settings as text, by dotted key."""
        return {str(key): text(value) for key, value in self.run.config.items()}

    @cached_property
    def overridden(self) -> dict[str, str]:
        """Setting → the override that says what it is, of those that are not as the options have them."""
        found = {
            key: said_by(key, self.run.command, many=isinstance(value, list)) for key, value in self.run.config.items()
        }
        return {key: hide(word) for key, word in found.items() if word}


def incomparable(runs: Sequence[Told]) -> dict[str, list[str]]:
    """Metrics that were not measured on the same in all runs that have them, each with what differs, such as texts:
    none of their values is better than another."""
    found: dict[str, dict[str, None]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        ground = WHOLE if name == TIME else name
        first, *rest = (run.measured.grounds.get(ground, {}) for run in runs if name in run.metrics)
        for other in rest:
            found.setdefault(name, {}).update(dict.fromkeys(apart(first, other)))
    return {name: list(what) for name, what in found.items() if what}


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


def text(value: Any) -> str:
    """A setting as it is typed: `null`, `true`, `[a, b]`."""
    return value if isinstance(value, str) else json.dumps(tree(value), ensure_ascii=False, default=str)


def told(run: Run, label: str = "", page: Path | None = None) -> Told:
    problems = list(run.problems)
    report = None
    try:
        if manifest := run.manifest:
            report = Report.from_json(tree(manifest))
    except (SourceError, TypeError, AttributeError) as why:
        said = str(why)
        if said not in problems:
            problems.append(f"manifest.json: is no record of ours: {said}" if isinstance(why, TypeError) else said)
    return Told(run, label or run.name, report, tuple(problems), page)


def labels(runs: list[Run]) -> list[str]:
    """What tells runs apart: the overrides in which they differ, or else their names."""
    if len(runs) < 2:
        return [run.name for run in runs]
    everywhere = set.intersection(*(set(run.command) for run in runs))
    found = [" ".join(hide(w) for w in run.command if w not in everywhere) or run.name for run in runs]
    return found if len({*found}) == len(found) else [run.name for run in runs]
