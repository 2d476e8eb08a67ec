"""What of a run needs attention, gathered from wherever its records say it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import SourceError, short, some
from pipeline.figures import Figure
from pipeline.records.sweeps import absent
from pipeline.redact import hide
from pipeline.reporting.html.told import Told
from pipeline.reporting.manifest import Report

MOST_DECLINED = 3  # that are named
OFF = 1.0005  # of a bound, from which on it counts as broken
LONGEST = 300
UNEXPECTED = (KeyError, TypeError, ValueError, AttributeError, IndexError)


def of_run(run: Told) -> list[str]:
    """A line for each thing, the gravest first; none, where nothing needs any."""
    found = [*_state(run), *run.problems]
    if run.report is not None:
        try:
            found += list(_of_report(run, run.report))
        except UNEXPECTED as why:
            found.append(unexpected(why))
    return [hide(short(" ".join(line.split()), LONGEST)) for line in dict.fromkeys(found)]


def unexpected(why: Exception) -> str:
    """What is said of records that are of another version, or somebody's own, where something is missing in them."""
    said = f"missing: {why}" if isinstance(why, KeyError) else str(why)
    return f"The records of this run are not as expected here ({short(said, 200)})."


def _state(run: Told) -> Iterator[str]:
    one = run.run
    if one.state in ("complete", "unreadable"):  # of the latter `problems` has why
        return
    far = f": {one.reached}" if one.reached else ""
    rest = " What it has not found yet is missing here." if one.state in ("running", "elsewhere") else ""
    yield f"The run {'has ' if one.state == 'failed' else 'is '}{one.state}{far}.{rest}"


def _of_report(run: Told, report: Report) -> Iterator[str]:
    if report.exit_code:
        yield f"A comparison found differences: exit code {report.exit_code}."
    if report.nonfinite:
        count, names = sum(row["count"] for row in report.nonfinite), [str(row["name"]) for row in report.nonfinite]
        yield f"NaN or infinities were written as they are, {count:,} of values or scales: {some(names)}."
    yield from _over(report)
    yield from _gone(run, report)
    for stage, said in report.chosen.items():
        if note := said.partition("; ")[2]:
            yield f"{stage}: {note}."
    for stage, result in ((s, r) for s, r in report.results.items() if isinstance(r, Mapping)):
        if result.get("stopped"):
            yield f"{stage} stopped early: {result['stopped']}."
        best, last = result.get("best_step"), result.get("step")
        if result.get("best") is not None and isinstance(best, int) and isinstance(last, int) and best < last:
            yield f"{stage}: the held-out loss was least after update {best:,} of {last:,}."
    for row in report.declined[:MOST_DECLINED]:
        yield f"{row['op']}: {row['backend']} declined ({row['reason']}), {row['ran']} ran instead, {row['times']:,}×."
    if (rest := len(report.declined) - MOST_DECLINED) > 0:
        yield f"{rest:,} more kernels declined: see Environment."
    if report.ignored:
        names = [str(row["tensor"]) for row in report.ignored]
        yield f"Left out: {some(names)} ({report.ignored[0]['reason']})."
    for row in report.unused:
        yield f"Unused: {row['setting']} ({row['reason']})."
    if problem := report.tracked.get("problem"):
        yield f"The tracker was not told all: {problem}."


def _over(report: Report) -> Iterator[str]:
    """Bounds of the plan that were none."""
    for row in report.predicted:
        plan, measured = row.get("planned"), row.get("measured") or 0
        if plan and row.get("unit") == "bytes" and measured > OFF * plan:
            off = f"{100 * (measured / plan - 1):.{0 if measured > 1.1 * plan else 2}f} %"
            yield f"{row['what']}: {Figure(measured, 'B')}, {off} more than the {Figure(plan, 'B')} that were planned."


def _gone(run: Told, report: Report) -> Iterator[str]:
    """What it wrote and is not there any more, or in another size, wherever its folder was moved."""
    gone, other = [], []
    for row in report.outputs:
        path = Path(str(row["path"]))
        if path.is_relative_to(report.run):
            path = run.run.folder / path.relative_to(report.run)
        try:
            if path.stat().st_size != row["nbytes"]:
                other.append(path.name)
        except OSError:
            gone.append(path.name)
    if gone:
        yield f"Gone since it was written: {some(gone)}."
    if other:
        yield f"Changed since it was written: {some(other)}."


def not_there(runs: Sequence[Told]) -> dict[str, str]:
    """Jobs of the sweeps that these runs are of, which have no folder: name → why."""
    ids = {run.run.id for run in runs}
    found: dict[str, str] = {}
    for folder in dict.fromkeys(run.outputs / name for run in runs for name in run.run.sweeps):
        with suppress(SourceError):  # all its runs are named by themselves
            found |= absent(folder, ids)
    return found
