"""Any number of runs beside each other: in what they differ, what became of each metric, and who is on Pareto's front.

A sweep's own table (`pipeline.reporting.compare.jobs`) is of jobs that just ended; this is of whatever lies on disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.errors import ConfigError, some
from pipeline.figures import Figure
from pipeline.records.run import Run
from pipeline.records.schemas import version
from pipeline.reporting.card import Card
from pipeline.reporting.compare.deltas import Change, as_json, change, metric_of
from pipeline.reporting.compare.differences import ABSENT, Differences, differences
from pipeline.reporting.compare.front import dominators
from pipeline.reporting.compare.kept import all_measured
from pipeline.reporting.compare.pareto import FEWEST, MOST, Pareto
from pipeline.reporting.compare.rows import Row, rows_of
from pipeline.reporting.compare.spread import RULE
from pipeline.reporting.compare.tolerance import failures, named, tolerance
from pipeline.reporting.manifest import plain
from pipeline.tensors.spec import UNQUANTIZED, called
from pipeline.tensors.stats import ErrorStats
from pipeline.terminal import line

NOTHING = (ABSENT, "null")  # settings that are none, in data for other programs


@dataclass(frozen=True)
class Compared(Card):
    """Runs beside each other, the first of which is what the others are held against.

    Attributes:
        groups: rows: a run each, or repeats of one.
        differences: in what they differ, with a value for each row.
        changes: of each row its metrics by name, against those of the first row.
    """

    groups: tuple[Row, ...]
    differences: Differences = field(repr=False)
    changes: tuple[Mapping[str, Change], ...] = field(repr=False)

    @property
    def names(self) -> list[str]:
        """What tells the rows apart."""
        return [row.name for row in self.groups]

    @cached_property
    def metrics(self) -> dict[str, Figure]:
        """All that any run has: its name, and a figure with its unit and what is better."""
        found: dict[str, Figure] = {}
        for one in (one for row in self.groups for one in row.runs):
            for name, figure in one.metrics.items():
                if name not in found or (figure.better and not found[name].better):
                    found[name] = figure
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each run, or repeats: settings that differ, and raw numbers, units in their names. What pandas
        takes: `pandas.DataFrame(compared.rows)`."""
        found = []
        for i, (row, changes) in enumerate(zip(self.groups, self.changes, strict=True)):
            one: dict[str, Any] = {"run": row.name, "runs": len(row.runs), "state": row.state}
            settings = [d for d in self.differences.rows if d.kind in ("typed", "setting")]
            one |= {d.name: None if d.values[i] in NOTHING else d.values[i] for d in settings}
            for name, made in changes.items():
                unit = self.metrics[name].unit
                head = f"{name} [{unit}]" if unit else name
                spread = made.after.spread if made.after else None
                one |= {head: spread.mean if spread else None, f"{name} ±": spread.deviation if spread else None}
                one |= {
                    f"{name} change": made.absolute,
                    f"{name} change [%]": _percent(made),
                    f"{name} verdict": made.verdict,
                }
            found.append(one)
        return found

    @property
    def shown(self) -> list[Any]:
        from pipeline.reporting.compare.tables import shown

        return shown(self)

    def __repr__(self) -> str:
        worse = self.regressions
        said = f"; worse: {some([f'{name} of {row}' for row, name in worse])}" if worse else ""
        return f"comparison of {sum(len(r.runs) for r in self.groups)} runs with {line(self.names[0])}{said}"

    @property
    def regressions(self) -> list[tuple[str, str]]:
        """Name of a row, and of a metric that is worse there than in the first row."""
        return [
            (row, name)
            for row, changes in zip(self.names, self.changes, strict=True)
            for name, made in changes.items()
            if made.verdict == "worse"
        ]

    def broken(self, tolerances: Sequence[str]) -> list[str]:
        """Of `perplexity>1%` and the like a line for each row that breaks one (see `tolerance`).

        Raises:
            ConfigError: one cannot be read, no run has its metric, or there is nothing to hold against each other.
        """
        if len(self.groups) < 2:
            raise ConfigError(f"{_many(self.groups)}: nothing to hold against each other, as --fail-if has it")
        return failures(self.names, self.changes, [tolerance(given, self.metrics) for given in tolerances])

    def pareto(self, *metrics: str) -> Pareto:
        """The front over two or three metrics, by name or as typed (`bits_a_weight`), or by a unit that one has
        (`tokens/s`). Repeats count by their mean.

        Raises:
            ConfigError: there is no such metric, nobody says what is better of it, or they are too few or too many.
        """
        where = f"--pareto {','.join(metrics)}"
        if not FEWEST <= len(metrics) <= MOST:
            raise ConfigError(f"{where}: {FEWEST} or {MOST} metrics are expected, with commas between them")
        names = [named(m.strip(), self.metrics, where) for m in metrics]
        if len({*names}) < len(names):
            raise ConfigError(f"{where}: {names[0] if names.count(names[0]) > 1 else names[-1]} stands there twice")
        for name in names:
            if not self.metrics[name].better:
                raise ConfigError(f"{where}: nobody says whether more or less of {name} is better")
        return _front(self, names)

    def errors(self) -> dict[tuple[str, str], list[ErrorStats | None]]:
        """Group of tensors, its encoding → what was lost, of each row; None: it has none such. Of repeats the first."""
        keys = dict.fromkeys(key for row in self.groups for key in row.runs[0].errors)
        return {key: [row.runs[0].errors.get(key) for row in self.groups] for key in sorted(keys)}

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON holds it; numbers that are not finite are text."""
        errors = [
            {"group": group, "encoding": encoding, "values": [_error(e) for e in given]}
            for (group, encoding), given in self.errors().items()
        ]
        found: dict[str, Any] = plain({
            "weightmill": version("comparison"), "rule": RULE,
            "metrics": {n: {"unit": f.unit, "better": f.better} for n, f in self.metrics.items()},
            "rows": [
                {
                    "name": row.name,
                    "runs": [
                        {"id": m.run.id, "name": m.run.name, "folder": str(m.run.folder), "state": m.run.state,
                         "problems": list(m.run.problems)}
                        for m in row.runs
                    ],
                    "metrics": {name: as_json(made) for name, made in changes.items()},
                }
                for row, changes in zip(self.groups, self.changes, strict=True)
            ],
            "differences": [{"kind": d.kind, "name": d.name, "values": list(d.values)} for d in self.differences.rows],
            "equal": dict(self.differences.equal),
            "errors": errors,
        })  # fmt: skip
        return found


def compared(runs: Sequence[Run], baseline: int = 0) -> Compared:
    """Runs beside each other.

    Args:
        baseline: which run, by number, the others are held against.

    Raises:
        ConfigError: there are fewer than two.
    """
    if len(runs) < 2:
        which = f"{runs[0].name} alone" if runs else "no run"
        raise ConfigError(f"compare: {which}: two runs at least are expected")
    rows = rows_of(all_measured(runs), baseline)
    names = dict.fromkeys(name for row in rows for one in row.runs for name in one.metrics)
    found = [{name: metric_of(name, row.runs) for name in names} for row in rows]
    changes = tuple(
        {name: change(found[0][name], metric, baseline=i == 0) for name, metric in one.items()}
        for i, one in enumerate(found)
    )
    return Compared(tuple(rows), differences([row.runs[0].facts for row in rows]), changes)


def place_of_baseline(runs: Sequence[Run], baseline: Sequence[Run] | None) -> tuple[list[Run], int]:
    """All runs, and the number among them of that which the others are held against, the first by default.

    Raises:
        ConfigError: several are meant.
    """
    if baseline is None:
        return list(runs), 0
    folders = {run.folder: i for i, run in enumerate(runs)}
    among = [run for run in baseline if run.folder in folders] if len(baseline) != 1 else list(baseline)
    if len(among) != 1:
        raise ConfigError(f"--baseline: {len(baseline)} runs are meant; one is expected")
    if among[0].folder in folders:
        return list(runs), folders[among[0].folder]
    return [among[0], *runs], 0


def _front(given: Compared, names: Sequence[str]) -> Pareto:
    better = [given.metrics[name].better for name in names]
    rows, left = [], []
    reference = next((c for c in given.changes if all(c[n].after for n in names)), None)
    for row, changes in zip(given.groups, given.changes, strict=True):
        found = [changes[name].after for name in names]
        lacks = [n for n, m in zip(names, found, strict=True) if m is None or m.spread.mean != m.spread.mean]
        other = [] if reference is None or lacks else [n for n in names if _other(reference[n], changes[n])]
        if lacks or other:
            left.append(
                (row.name, f"it has no {' and no '.join(lacks)}" if lacks else f"its {other[0]} is of something else")
            )
        else:
            rows.append((row, [m for m in found if m is not None]))
    points = [
        [m.spread.mean if b == "lower" else -m.spread.mean for m, b in zip(metrics, better, strict=True)]
        for _, metrics in rows
    ]
    repeats = [tuple(tuple(one.metrics[n].value for one in r.runs if n in one.metrics) for n in names) for r, _ in rows]
    return Pareto(
        tuple(names), tuple(better), tuple(row.name for row, _ in rows),
        tuple(tuple(m.figure for m in metrics) for _, metrics in rows), tuple(repeats),
        tuple(tuple(rows[j][0].name for j in by) for by in dominators(points)),
        tuple(left), tuple(packed_as(row) for row, _ in rows),
    )  # fmt: skip


def _other(reference: Change, made: Change) -> bool:
    return change(reference.after, made.after).verdict == "not comparable"


def packed_as(row: Row) -> str:
    """What most of what it quantized is packed as."""
    found: dict[str, int] = {}
    for (_, encoding), e in row.runs[0].errors.items():
        found[encoding] = found.get(encoding, 0) + e.count
    if found:
        return max(found, key=lambda encoding: found[encoding]) or UNQUANTIZED
    return called(row.runs[0].encodings)


def _percent(made: Change) -> float | None:
    return None if made.relative is None else 100 * made.relative


def _error(e: ErrorStats | None) -> dict[str, Any] | None:
    return None if e is None else {"count": e.count, "max_abs": e.max_abs, "rmse": e.rmse, "sqnr_db": e.sqnr_db}


def _many(rows: Sequence[Row]) -> str:
    return f"{len(rows[0].runs)} runs that differ in their seed alone"
