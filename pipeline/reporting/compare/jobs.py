"""The jobs of a sweep beside each other: a line for each as it ends, a table and `sweep.csv` in the end, and pictures.

What was quantized is put beside what it was before: models that jobs compare with have rows of their own.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.names import place_name
from pipeline.errors import StorageError, some
from pipeline.figures import Cell, Figure, cell, figures_of
from pipeline.redact import hide
from pipeline.reporting import console, unused
from pipeline.reporting.card import Card
from pipeline.reporting.compare.trainings import curve, losses, over_seeds, settings
from pipeline.reporting.manifest import Report
from pipeline.tables import shortened, table
from pipeline.tensors.spec import UNQUANTIZED, called

TOOK = "took"  # since its own work began: jobs of one graph take turns, and share what they need
BITS, SIZES, ERRORS, LAST = "bits a weight", ("size", "smaller"), ("max abs", "RMSE", "SQNR"), (TOOK, "result")
GOING = ("max abs", "RMSE", TOOK, "smaller", "SQNR", "top-1", "result")  # of the console's table, in this order
NAMED = 32  # characters of a name in a picture, whose width it has to share
FAILED, OF = "failed", ", of "

Line = dict[str, Cell]
Rows = Sequence[tuple[str, Any]]
"""Names of jobs, and the report of each, or the error that it ended with."""


@dataclass(frozen=True)
class Comparison(Card):
    """The jobs of a sweep beside each other.

    Attributes:
        folder: of the sweep: `sweep.csv`, and pictures.
        rows: of each job, and of what jobs were compared with, raw numbers by name; units stand in the names. What
            pandas takes: `pandas.DataFrame(comparison.rows)`.
        reports: of each job its name, and its report or the error that it ended with.
        pictures: files.
        tables: for people.
    """

    folder: Path
    rows: list[dict[str, Any]] = field(repr=False)
    reports: Sequence[tuple[str, Any]] = field(repr=False)
    pictures: tuple[Path, ...] = field(repr=False)
    tables: tuple[Any, ...] = field(repr=False)

    @property
    def shown(self) -> list[Any]:
        return [*self.tables, *self.pictures, self.folder]

    def __repr__(self) -> str:
        failed = sum(isinstance(r, Exception) for _, r in self.reports)
        return f"sweep of {len(self.reports)} jobs{f', {failed} of them failed' if failed else ''}: {self.folder}"


def compared(rows: Rows, folder: Path) -> Comparison:
    """The comparison, kept in `folder`: sweep.csv with raw numbers, units in its header, and pictures.

    Raises:
        StorageError: it cannot be kept.
    """
    lines = [*_before(rows), *({"job": label, **_figures(result)} for label, result in rows)]
    errors = [c for c in ERRORS if any(c in line for line in lines)]  # nothing may be quantized
    known = ["job", BITS, *SIZES, *errors]
    columns = list(dict.fromkeys([*known, *(c for line in lines for c in line if c not in LAST), *LAST]))
    units = {c: next((v.unit for line in lines if isinstance(v := line.get(c), Figure)), None) for c in columns}
    drawn = _table(lines, columns, units)
    heads = [f"{c} [{units[c]}]" if units[c] else c for c in columns]
    raw = [
        [v.value if isinstance(v, Figure) else hide(v) for c in columns for v in [line.get(c, "")]] for line in lines
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "sweep.csv").open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.writer(file)
            writer.writerows([heads, *raw])
        pictures = (*_picture(rows, folder), *_losses(rows, folder))
    except OSError as why:
        console.out(drawn)
        raise StorageError(f"{folder}: the comparison cannot be kept: {why.strerror}") from None
    whole = [{h: None if v == "" else v for h, v in zip(heads, row, strict=True)} for row in raw]
    typed = unused.in_all([report.unused for _, report in rows if isinstance(report, Report)])
    return Comparison(folder, whole, rows, pictures, (drawn, *_over_seeds(rows), *unused.lines(typed)))


def ended(number: str, name: str, report: Report) -> str:
    """How a job of a sweep ended, in a line: what it was, what it found, where it is."""
    found = _figures(report)
    shown = [f"{found[BITS]} bits a weight", str(found["size"])]
    shown += [f"{name} {value}" for name, value in _found(report).items() if isinstance(value, Figure)]
    shown += ["complete before" if report.reused else f"{TOOK} {found[TOOK]}"]
    return f"[{number}] {name}: {', '.join(shown)}: {report.run}"


def _table(lines: Sequence[Line], columns: Sequence[str], units: Mapping[str, str | None]) -> Any:
    """Units stand above, where they are the same in all rows; what says nothing is left out."""
    plain = [c for c in columns if c != "result" or any(line.get(c) != "done" for line in lines if c in line)]
    above = {c: f"{c} [{units[c]}]" if units[c] and units[c] not in ("B", "×") else c for c in plain}
    rows = [[_shown(line.get(c, "–"), bare=above[c] != c) for c in plain] for line in lines]
    right = [i for i, c in enumerate(plain) if units[c] is not None or c in (BITS, *SIZES, *ERRORS, TOOK)]
    return table("Sweep", [above[c] for c in plain], rows, right=right, drop=[above.get(c, c) for c in GOING])


def _shown(value: Cell, *, bare: bool) -> str:
    if str(value).startswith(FAILED):
        return FAILED  # sweep.csv has why, and it is said as it happens
    return f"{value.value:{value.form}}" if bare and isinstance(value, Figure) else str(value)


def _figures(result: Any) -> Line:
    """What is compared of a job: its report, or the error that it ended with."""
    if not isinstance(result, Report):
        return {"result": f"{FAILED}: {str(result).splitlines()[0]}"}
    found: Line = {
        BITS: Figure(result.bits_per_weight, better="lower"), "size": Figure(result.nbytes_out, "B", better="lower"),
        "smaller": Figure(result.ratio, "×", ".2f", "higher"),
    }  # fmt: skip
    if (e := result.error).count:
        found_errors = [Figure(v, form=".3g", better="lower") for v in (e.max_abs, e.rmse)]
        errors = *found_errors, Figure(e.sqnr_db, "dB", ".2f", "higher")
        found |= zip(ERRORS, errors, strict=True)
    found |= _found(result)
    return found | {
        TOOK: Figure(result.seconds, "s", ".1f", "lower"),
        "result": "complete before" if result.reused else "done",
    }


def _found(report: Report) -> Line:
    """What the results of a job's stages want to see compared."""
    return {name: value for result in report.results.values() for name, value in figures_of(result).items()}


def _before(rows: Rows) -> list[Line]:
    """A row for each model that jobs were compared with, and that is none of them."""
    reports = [(name, report) for name, report in rows if isinstance(report, Report)]
    themselves = [_found(report) for _, report in reports if not report.error.count]
    found: dict[tuple[Any, ...], tuple[Line, list[str]]] = {}
    for name, report in reports:
        figures = {n: v for result in report.results.values() for n, v in _of(result, "before").items()}
        if figures and not any(figures.items() <= one.items() for one in themselves):
            what, nbytes, values = _baseline(report)
            bits, smaller = 8 * nbytes / values, 2 * values / nbytes
            line = {
                BITS: Figure(bits, better="lower"), "size": Figure(nbytes, "B", better="lower"),
                "smaller": Figure(smaller, "×", ".2f", "higher"), **figures,
            }  # fmt: skip
            found.setdefault((what, *line.items()), (line, []))[1].append(name)
    several = len(found) > 1
    return [
        {"job": f"{what}{OF}{names[0]}" if several else what, **line} for (what, *_), (line, names) in found.items()
    ]


def _baseline(report: Report) -> tuple[str, int, int]:
    """What the model is called that a job is compared with, its bytes, and how many values these are."""
    given = next((r["baseline"] for r in report.results.values() if isinstance(r, Mapping) and r.get("baseline")), None)
    if given is None:  # a report of earlier days
        return UNQUANTIZED, report.nbytes_bf16, report.nbytes_bf16 // 2
    return called(given["encodings"]), given["nbytes"], given["values"]


def _of(result: Any, key: str) -> Line:
    given = result.get(key) if isinstance(result, Mapping) else None
    return {str(n): cell(v) for n, v in given.items()} if isinstance(given, Mapping) else {}


def _over_seeds(rows: Rows) -> list[Any]:
    """Jobs that differ in their seed alone, together."""
    done = [(name, _found(report)) for name, report in rows if isinstance(report, Report)]
    columns, lines = over_seeds([name for name, _ in done], [found for _, found in done])
    return [table("Over seeds", columns, lines, right=range(1, len(columns)))] if lines else []


def _losses(rows: Rows, folder: Path) -> list[Path]:
    """losses.png: how the jobs that trained something went."""
    found = [(name, *curve(Path(report.run))) for name, report in rows if isinstance(report, Report)]
    drawn = [(name, points) for name, _, points in found if points]
    labels = {label for _, label, points in found if points}
    if len(drawn) < 2 or len(labels) > 1:
        return []
    losses(folder / "losses.png", [name for name, _ in drawn], [points for _, points in drawn], labels.pop())
    return [folder / "losses.png"]


def _picture(rows: Rows, folder: Path) -> list[Path]:
    """sweep.png: perplexity over bits a weight, of jobs that evaluated; those that differ in their seed are one."""
    from pipeline.reporting.plots import Point, tradeoff

    scored = [
        (name, report, perplexity.value)
        for name, report in rows
        if isinstance(report, Report) and isinstance(perplexity := _found(report).get("perplexity"), Figure)
    ]
    if len(scored) < 2:
        return []
    points = []
    for name, jobs in settings([name for name, *_ in scored]).items():
        values = [scored[job][2] for job in jobs]
        report = scored[jobs[0]][1]
        points.append(Point(name, report.bits_per_weight, values, _scheme(report)))
    kinds = {called(report.encodings) for _, report, _ in scored if not report.error.count}
    for line in _before(rows):
        name, bits, perplexity = str(line["job"]), line[BITS], line.get("perplexity")
        if isinstance(bits, Figure) and isinstance(perplexity, Figure):
            kinds.add(kind := name.partition(OF)[0])
            points.append(Point(name, bits.value, [perplexity.value], kind))
    about = _about([report for _, report, _ in scored])
    tradeoff(folder / "sweep.png", about, BITS, "perplexity", points, {UNQUANTIZED, *kinds})
    return [folder / "sweep.png"]


def _scheme(report: Report) -> str:
    """What most of what it quantized is packed as; where that is nothing, what it was already."""
    found: dict[str, int] = {}
    for row in report.tensors:
        found[row["encoding"]] = found.get(row["encoding"], 0) + row["count"]
    return max(found, key=lambda encoding: found[encoding]) if found else called(report.encodings)


def _about(reports: Sequence[Report]) -> str:
    """Which model, on which text, and how much of it: of all jobs, where it is the same."""
    models = dict.fromkeys(_model(report.command) for report in reports)
    texts: dict[str, None] = {}
    scored: set[int] = set()
    for result in (r for report in reports for r in report.results.values() if isinstance(r, Mapping)):
        given = result.get("texts")
        rows = given if isinstance(given, Mapping) else {}
        texts |= dict.fromkeys(rows)
        scored |= {sum(int(row.get("scored", 0)) for row in rows.values() if isinstance(row, Mapping))} - {0}
    much = f"{' or '.join(f'{n:,}' for n in sorted(scored))} tokens scored" if scored else ""
    names = [shortened(model, NAMED) for model in models if model]
    said = [" and ".join(names), some([shortened(text, NAMED) for text in texts], most=2), much]
    return " · ".join(filter(None, said))


def _model(command: Sequence[str]) -> str:
    """What the overrides call it: after where it lies, or its option."""
    given = {o.lstrip("+").partition("=")[0]: o.partition("=")[2] for o in command}
    source = given.get("model.source", "").strip("'\"")
    return hide(place_name(source) or given.get("model", ""))
