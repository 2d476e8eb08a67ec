"""What a tracker is told at the end: figures and files of a run that is complete, and of a sweep."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.digest import identity
from pipeline.errors import StageError
from pipeline.figures import Figure
from pipeline.planning.sweep import Job
from pipeline.records.run import MANIFEST, read
from pipeline.reporting.manifest import Report, versions
from pipeline.reporting.writing import write_manifest
from pipeline.running.journal import locked
from pipeline.running.tracking import FILE, Tracking, told_of
from pipeline.tracker import Point, Tracked, Tracker

FILES = (".json", ".jsonl", ".csv", ".yaml", ".png", ".html", ".svg")  # what records and pictures end in
NO_RECORDS = (FILE, "journal.jsonl")


def completed(tracking: Tracking, report: Report) -> Report:
    """Tell what there is at the end; returns the report with what came of it: as its manifest has it too, and how much.

    Raises:
        StageError: the tracker is required, and was not told; then the run is not complete.
    """
    folder, ended = tracking.run.folder, report.started + report.seconds
    figures = [_point(name, figure, ended) for name, figure in read(folder).metrics.items()]
    files = {file.name: file for file in _records(folder)}
    for name, place in report.exports.items() if tracking.tracker.weights else ():
        files |= {f"{name}/{file.relative_to(place).as_posix()}": file for file in sorted(Path(place).rglob("*"))}
    try:
        tracking.end("complete", figures, {name: file for name, file in files.items() if file.is_file()})
    except StageError:
        (folder / MANIFEST).unlink(missing_ok=True)
        raise
    if tracking.record != report.tracked:
        report = replace(report, tracked=tracking.record)
        write_manifest(folder, report)
    return replace(report, tracked=report.tracked | tracking.shown)


def known(tracker: Tracker, report: Report) -> dict[str, str] | None:
    """See `Report.tracked`, where the tracker was told all of the complete run; None: it was not."""
    there = told_of(Path(report.run))
    told = there.of(tracker.place) if there is not None else None
    if told is None or told.state != "complete":
        return None
    return report.tracked | {"told": told.shown}


@dataclass(frozen=True)
class Swept:
    """What trackers are told of a sweep.

    Attributes:
        by_tracker: of each that any of its jobs has.
    """

    folder: Path
    by_tracker: Mapping[Any, Tracking]

    def end(self, ended: Sequence[tuple[Any, Report | Exception]]) -> list[str]:
        """Tell how it ended; returns a line for people of each tracker: of how many complete runs it was told all.

        Args:
            ended: of each job its tracker, and what came of it.

        Raises:
            StageError: a tracker is required, and was not told.
        """
        files, lines = {file.name: file for file in _records(self.folder)}, []
        failed = any(isinstance(outcome, Exception) for _, outcome in ended)
        for tracker, tracking in self.by_tracker.items():
            tracking.end("failed" if failed else "complete", files=files)
            mine = [outcome.tracked for one, outcome in ended if one == tracker and isinstance(outcome, Report)]
            told = sum("told" in said and "missing" not in said for said in mine)
            well = told == len(mine) and not tracking.problem
            runs = f"{told} of {len(mine)} runs" if mine else "the sweep"
            rest = "" if well else "; not told: the rest; the same command tells it later"
            lines.append(f"tracked: {tracking.record['place']}: {runs}{rest}")
        return lines


@contextmanager
def sweep(jobs: Sequence[Job], folder: Path, say: Callable[[str], None]) -> Iterator[Swept]:
    """The trackers of the jobs are told of the sweep in `folder`, while the body runs it.

    Raises:
        StorageError: another process runs it.
        StageError: a tracker is required, and cannot be told.
    """
    trackers = list(dict.fromkeys(job.run.tracker for job in jobs if job.run.tracker is not None))
    with ExitStack() as stack:
        if trackers:
            stack.enter_context(locked(folder / ".lock", f"{folder}: another sweep is at work in this folder"))
        tags = {"folder": str(folder), "version": versions().get("weightmill", "")}
        run = Tracked(identity([str(folder)]), folder.name, folder, time.time(), tags=tags, sweep=True)
        yield Swept(folder, {one: stack.enter_context(Tracking(one, run, say)) for one in trackers})


def _records(folder: Path) -> list[Path]:
    return [f for f in sorted(folder.iterdir()) if f.suffix in FILES and f.is_file() and f.name not in NO_RECORDS]


def _point(name: str, figure: Figure, time_s: float) -> Point:
    return Point(name, float(figure.value), None, time_s, figure.unit)
