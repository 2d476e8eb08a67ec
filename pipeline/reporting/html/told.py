"""What a run's folder tells a page: its manifest as a report, metrics with which is better, the edges of its graph,
and what was overridden. What is missing or not as expected is said, and never made up."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.errors import SourceError
from pipeline.figures import Figure
from pipeline.files import read_whole
from pipeline.records.run import DESCRIPTION, Run
from pipeline.redact import hide, tree
from pipeline.reporting.compare.measures import Measured, measured
from pipeline.reporting.manifest import Report


@dataclass(frozen=True)
class Told:
    """Attributes:
    run: it.
    label: what tells it from the others of a page.
    report: its manifest; None, when it has none that can be read.
    problems: what cannot be read, and why.
    """

    run: Run
    label: str
    report: Report | None = field(repr=False)
    problems: tuple[str, ...] = ()

    @cached_property
    def measured(self) -> Measured:
        return measured(self.run)

    @cached_property
    def metrics(self) -> dict[str, Figure]:
        """By name, each with what is better, as far as anybody knows."""
        time = {"time": Figure(self.run.seconds, "s", ".1f", "lower")} if self.run.seconds is not None else {}
        return {**self.measured.metrics, **time}

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

    def overridden(self, key: str) -> str:
        """The override that says what `key` is; empty: none does, it is as the options have it."""
        for word in self.run.command:
            name = word.lstrip("+~").partition("=")[0].replace("/", ".").partition("@")[0]
            if key in (name, f"stages.{name}") or key.startswith((f"{name}.", f"stages.{name}.")):
                return hide(word)
        return ""


def text(value: Any) -> str:
    """A setting as it is typed: `null`, `true`, `[a, b]`."""
    return value if isinstance(value, str) else json.dumps(tree(value), ensure_ascii=False, default=str)


def told(run: Run, label: str = "") -> Told:
    problems = list(run.problems)
    report = None
    try:
        if manifest := run.manifest:
            report = Report.from_json(tree(manifest))
    except (SourceError, TypeError, AttributeError) as why:
        said = str(why)
        if said not in problems:
            problems.append(f"manifest.json: is no record of ours: {said}" if isinstance(why, TypeError) else said)
    return Told(run, label or run.name, report, tuple(problems))


def labels(runs: list[Run]) -> list[str]:
    """What tells runs apart: the overrides in which they differ, or else their names."""
    if len(runs) < 2:
        return [run.name for run in runs]
    everywhere = set.intersection(*(set(run.command) for run in runs))
    found = [" ".join(hide(w) for w in run.command if w not in everywhere) or run.name for run in runs]
    return found if len({*found}) == len(found) else [run.name for run in runs]
