"""The trainings of a sweep beside each other: their losses in one picture, and jobs that differ in their seed alone as
one setting, with mean and deviation.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from pipeline.errors import SourceError
from pipeline.figures import Cell, Figure
from pipeline.records.points import METRICS, rows
from pipeline.reporting.compare.spread import Spread, together

SEED = "seed="

Curve = Mapping[int, float]
"""Updates → loss."""


def settings(names: Sequence[str]) -> dict[str, list[int]]:
    """Names of jobs without their seeds → which jobs these are, by number."""
    return together([without_seed(name) for name in names])


def without_seed(name: str) -> str:
    """The name of a job, of whichever seed."""
    return " ".join(word for word in name.split(" ") if not word.startswith(SEED)) or "all"


def over_seeds(names: Sequence[str], found: Sequence[Mapping[str, Cell]]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of a table: of each setting what its jobs found, on average ± their deviation. No lines, where
    each setting has one job.

    Args:
        found: of each job, figures by name.
    """
    alike = settings(names)
    if all(len(jobs) < 2 for jobs in alike.values()):
        return [], []
    figures = dict.fromkeys(n for one in found for n, value in one.items() if isinstance(value, Figure))
    lines = []
    for setting, jobs in alike.items():
        cells = []
        for name in figures:
            values = [value for job in jobs if isinstance(value := found[job].get(name), Figure)]
            cells.append(Spread.of([v.value for v in values]).shown(values[0]) if values else "–")
        lines.append([setting, str(len(jobs)), *cells])
    return ["setting", "seeds", *figures], lines if figures else []


def curve(run: Path) -> tuple[str, Curve]:
    """What the loss of a training was: on what is held out, or where there is nothing of that, on what it was trained
    on. Empty: nothing was trained."""
    try:
        seen = [row for row in rows(run / METRICS) if row["kind"] in ("held_out", "train")]
    except SourceError:
        return "", {}
    for kind, label in (("held_out", "held-out loss"), ("train", "training loss")):
        found = {r["step"]: r["loss"] for r in seen if r["kind"] == kind and isinstance(r.get("loss"), float)}
        if len(found) > 1:
            return label, found
    return "", {}


def losses(path: Path, names: Sequence[str], curves: Sequence[Curve], label: str) -> None:
    """The losses of each setting: their mean, in a band from the least to the largest."""
    from pipeline.reporting.plots import bands

    given = {}
    for setting, jobs in settings(names).items():
        some = [curves[job] for job in jobs if curves[job]]
        steps = sorted(set.intersection(*(set(c) for c in some))) if some else []
        if steps:
            values = [[c[step] for c in some] for step in steps]
            given[setting] = steps, [*map(fmean, values)], [*map(min, values)], [*map(max, values)]
    bands(path, "Losses", "update", label, given)
