"""Runs as people meet them: a table of many, and all of one."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from pipeline.errors import ConfigError
from pipeline.figures import SO_FAR, STILL, Figure
from pipeline.records.run import Run, key_of
from pipeline.records.typed import age
from pipeline.reporting.card import Card
from pipeline.tables import table, unbroken
from pipeline.terminal import line
from pipeline.units import show_bytes

if TYPE_CHECKING:  # it brings NumPy along, which a list of runs needs not
    from pipeline.records.summaries import Summary

MAIN = ("perplexity", "kl", "top_1", "accuracy", "loss", "bits_a_weight", "size")  # metrics that come first
MOST = 6  # columns of metrics
LAST = ("bits_a_weight", "size")  # what holds of every run, behind what was found
UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
LONGEST_WHY = 160
PROFILE = "profile by jax.profiler"
KINDS = {
    "states": "checkpoints", "best": "checkpoints", "trace.json": "trace", "trace.jax": "profiles by jax.profiler",
    "trace.parts": "pieces of a trace",
}  # fmt: skip


@dataclass(frozen=True)
class Runs(Card, Sequence[Run]):
    """Runs in order: a sequence that a notebook shows as a table.

    Attributes:
        runs: what it holds.
        outputs: the folder that their names are within.
    """

    runs: tuple[Run, ...]
    outputs: Path

    def __len__(self) -> int:
        return len(self.runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "Run | Runs":
        return Runs(self.runs[index], self.outputs) if isinstance(index, slice) else self.runs[index]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __repr__(self) -> str:
        states = ", ".join(f"{n:,} {state}" for state, n in Counter(run.state for run in self.runs).items())
        return f"{len(self.runs):,} runs{f' ({states})' if states else ''}: {self.outputs}"

    @property
    def shown(self) -> list[Any]:
        return runs_tables(self.runs, self.outputs)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`: a row for each run, metrics under their names, settings as `config.KEY`.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError("pandas is not installed: pip install pandas") from None
        from pipeline.reporting.runs_export import records

        return pandas.DataFrame(list(records(self.runs, settings=True)))


def runs_tables(runs: Sequence[Run], outputs: Path, first: Sequence[str] = ()) -> list[Any]:
    """A row for each; which metrics have a column, the runs say.

    Args:
        first: metrics that were asked for: these stay, however narrow the screen is.
    """
    if not runs:
        return [f"no runs in {unbroken(outputs)}"]
    metrics = main_metrics(runs, first)
    sweeps = dict(sorted((pair for run in runs for pair in zip(run.letters, run.sweeps, strict=True)), key=_by_letter))
    given = {
        "model": [run.model or "–" for run in runs],
        "quant": [run.quant or "–" for run in runs],
        "tags": [" ".join(run.tags) for run in runs],
        "sweep": [" ".join(sorted(run.letters, key=_by_letter)) for run in runs],
    }
    given = {name: cells for name, cells in given.items() if any(c not in ("", "–") for c in cells)}
    figures = {name: [run.metrics.get(name) for run in runs] for name in metrics}
    units = {name: _unit(found) for name, found in figures.items()}
    heads = {n: f"{n} [{units[n]}]" if units[n] not in ("", "B", "×") else n for n in metrics}
    numbers = {
        heads[n]: [f"{_shown(f, bare=heads[n] != n)}{_mark(run, f)}" for run, f in zip(runs, found, strict=True)]
        for n, found in figures.items()
    }
    numbers |= {"age": [show_time(age(run.started)) if run.started else "–" for run in runs]}
    numbers |= {"took": [show_time(run.seconds) if run.seconds is not None else "–" for run in runs]}
    columns: dict[str, list[str]] = {"name": [line(run.name) for run in runs], "state": [_state(run) for run in runs]}
    columns |= {name: [line(c) for c in cells] for name, cells in given.items()} | numbers
    names = list(columns)
    asked = [heads[n] for n in metrics if key_of(n) in map(key_of, first)]
    own = [heads[n] for n in metrics if key_of(n) not in LAST]
    both = [heads[n] for n in metrics if key_of(n) in LAST]
    going = [
        "model",
        *reversed(own[3:]),
        "took",
        *reversed(both),
        "sweep",
        *own[2:3],
        "quant",
        *own[1:2],
        "tags",
        "age",
    ]
    going = [name for name in going if name not in asked]
    right = [i for i, name in enumerate(names) if name in numbers]
    found: list[Any] = [table("Runs", names, zip(*columns.values(), strict=True), right=right, drop=going)]
    if any(_mark(run, figure) for some in figures.values() for run, figure in zip(runs, some, strict=True)):
        found.append(STILL)
    found += [f"sweep {letter}: {unbroken(line(name))}" for letter, name in sweeps.items()]
    for run in runs:
        if run.state in ("failed", "unreadable", "elsewhere"):
            said = line(run.reached)
            found.append(f"{line(run.name)}: {run.state}: {said[:LONGEST_WHY]}{'…' * (len(said) > LONGEST_WHY)}")
    return found


def main_metrics(runs: Iterable[Run], first: Sequence[str] = ()) -> list[str]:
    """Names of those that most of the runs have, the best known first."""
    seen: Counter[str] = Counter(name for run in runs for name in run.metrics)
    rank = {key: i for i, key in enumerate([*map(key_of, first), *(m for m in MAIN if m not in map(key_of, first))])}
    chosen = sorted(seen, key=lambda n: (rank.get(key_of(n), len(MAIN)), -seen[n], n))
    own = [n for n in chosen if key_of(n) not in LAST][: MOST - len(LAST)]
    return [*own, *(n for n in chosen if key_of(n) in LAST)]


def run_tables(run: Run, summaries: Mapping[str, "Summary"], copies: Sequence[Run] = ()) -> list[Any]:
    """All of one run: what it is, what was typed, what it found, and what lies in its folder.

    Args:
        summaries: of its series, by name.
        copies: other folders with the same id.
    """
    began = f"{when(run.started)}, {show_time(age(run.started))} ago" if run.started else ""
    rows = [
        ("state", f"{run.state}: {run.reached}" if run.reached else run.state),
        ("id", run.id),
        ("model", run.model), ("quant", run.quant), ("started", began),
        ("took", show_time(run.seconds) if run.seconds is not None else ""),
        ("on", f"{run.host}, process {run.pid}" if run.host else ""),
        ("sweep", "\n".join(run.sweeps)), ("tags", " ".join(run.tags)), ("notes", "\n".join(run.notes)),
    ]  # fmt: skip
    found: list[Any] = [table(f"Run {line(run.name)}", ("", ""), [row for row in rows if row[1]])]
    typed = [o.partition("=") for o in run.command]
    if typed:
        found.append(table("Typed", ("setting", "value"), [(key, value) for key, _, value in typed]))
    if run.metrics:
        metrics = [(name, str(f), f.better) for name, f in run.metrics.items()]
        title = "Metrics" if run.state == "complete" else "Metrics so far"
        found.append(table(title, ("metric", "value", "better"), metrics, right=(1,)))
    if rows_of_series := [_series(name, one) for name, one in summaries.items() if name not in run.metrics]:
        columns = ("series", "points", "last", "mean", "least", "median", "most", "unit")
        drop = ["mean", "median"]
        found.append(table("Series", columns, rows_of_series, right=range(1, 7), drop=drop))
    if files := files_of(run):
        lines = [(name, what, show_bytes(nbytes)) for name, what, nbytes in files]
        found.append(table("Files", ("file", "what", "size"), lines, right=(2,)))
    found += [f"the same run, copied: {unbroken(one.folder)}" for one in copies]
    return [*found, run.folder]


def files_of(run: Run) -> list[tuple[str, str, int]]:
    """What lies in its folder, and the exports and traces that lie elsewhere: name, what, bytes; folders as one."""
    found = []
    for entry in sorted(run.folder.iterdir(), key=lambda p: p.name):
        if entry.name == ".lock" or entry.is_symlink():
            continue
        nbytes = folder_nbytes(entry) if entry.is_dir() else entry.stat().st_size
        found.append((f"{entry.name}/" if entry.is_dir() else entry.name, kind_of(entry), nbytes))
    for place in run.manifest.get("exports", {}).values() if run.state == "complete" else ():
        path = Path(str(place))
        if path.parent != run.folder and not str(place).startswith(str(run.manifest.get("run"))):
            gone = "" if path.exists() else ", gone"
            found.append((str(path), f"export{gone}", folder_nbytes(path) if path.is_dir() else 0))
    for name, place in run.manifest.get("traces", {}).items() if run.state == "complete" else ():
        path = Path(os.path.normpath(run.folder / str(place)))
        if run.folder not in path.parents:  # of the sweep that it is a job of
            what = kind_of(path.with_name(name)) if "/" not in name else PROFILE
            nbytes = folder_nbytes(path) if path.is_dir() else path.stat().st_size if path.exists() else 0
            found.append((str(path), what if path.exists() else f"{what}, gone", nbytes))
    return found


def kind_of(path: Path) -> str:
    """What a file or folder of a run is."""
    if path.name in KINDS:
        return KINDS[path.name]
    if path.is_dir():
        return "export" if (path / ".weightmill.json").exists() else "folder"
    return {".png": "picture", ".html": "page"}.get(path.suffix, "record")


def folder_nbytes(folder: Path) -> int:
    return sum((Path(base) / n).lstat().st_size for base, _, names in os.walk(folder) for n in names)


def when(started: float) -> str:
    return f"{datetime.fromtimestamp(started):%Y-%m-%d %H:%M:%S}"


def show_time(seconds: float) -> str:
    """2.5 → '2.5 s', 40000 → '11 h'."""
    for length, unit in UNITS:
        if abs(seconds) >= length:
            return f"{seconds / length:.{1 if abs(seconds) < 10 * length else 0}f} {unit}"
    return f"{seconds:.1f} s"


def _series(name: str, one: "Summary") -> tuple[str, ...]:
    numbers = (one.last, one.mean, one.min, one.quantile(0.5), one.max) if one.count else (one.last, *[None] * 4)
    shown = ("–" if x is None else show_bytes(x) if one.unit == "B" else f"{x:.5g}" for x in numbers)
    return (name, f"{one.count + one.not_finite:,}", *shown, "" if one.unit == "B" else one.unit)


def _unit(found: Sequence[Figure | None]) -> str:
    units = {figure.unit for figure in found if figure is not None}
    return units.pop() if len(units) == 1 else ""


def _shown(figure: Figure | None, *, bare: bool) -> str:
    if figure is None:
        return "–"
    return f"{figure.value:{figure.form}}" if bare else str(figure)


def _mark(run: Run, figure: Figure | None) -> str:
    return SO_FAR if figure is not None and run.state != "complete" else ""


def _state(run: Run) -> str:
    """In a word, with how far it is."""
    told = run.percent is not None and run.state in ("running", "interrupted")
    return f"{run.state} {run.percent} %" if told else run.state


def _by_letter(given: "str | tuple[str, str]") -> tuple[int, str]:
    """`z` before `aa`."""
    letter = given if isinstance(given, str) else given[0]
    return len(letter), letter
