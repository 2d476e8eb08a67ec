"""Which runs are a sweep's: `sweep.json` in its folder; and which of them are not there."""

import csv
import io
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.files import read_whole, spoken, write_json

SWEEP, TABLE = "sweep.json", "sweep.csv"
DESCRIPTION = "run.json"  # which every run begins with
VERSION = 1


@dataclass(frozen=True, slots=True)
class SweepJob:
    """Attributes:
    name: what tells it from the others.
    run: its folder, from that of the sweep.
    id: of the run; empty where it did not begin.
    """

    name: str
    run: str
    id: str = ""


def keep(folder: Path, jobs: Sequence[tuple[str, Path, str]]) -> None:
    """Write down which runs are the sweep's: name, folder and id of each.

    Raises:
        StorageError: it cannot be written.
    """
    rows = [SweepJob(name, os.path.relpath(run, folder), run_id) for name, run, run_id in jobs]
    write_json(folder / SWEEP, {"weightmill": VERSION, "jobs": [asdict(row) for row in rows]})


def jobs_of(folder: Path) -> list[SweepJob]:
    """The jobs of the sweep in `folder`.

    Raises:
        SourceError: its record is partial, or not ours.
    """
    path = folder / SWEEP
    try:
        said = json.loads(read_whole(path))
        return [SweepJob(str(j["name"]), str(j["run"]), str(j["id"])) for j in _ours(said)["jobs"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SourceError(f"{spoken(path)}: is partial, or no record of a sweep") from None


def absent(folder: Path, ids: Collection[str]) -> dict[str, str]:
    """Jobs of the sweep in `folder` that are not there: name → why, as far as the sweep says it.

    Args:
        ids: of runs that are, wherever they were moved.

    Raises:
        SourceError: its record is partial, or not ours.
    """
    places = {job: Path(os.path.normpath(folder / job.run)) for job in jobs_of(folder)}
    missing = {j: p for j, p in places.items() if j.id not in ids and not (p / DESCRIPTION).is_file()}
    told = _told(folder / TABLE) if missing else {}
    return {
        job.name: (f"gone: {place.name} is not there any more" if job.id else told.get(job.name) or "did not begin")
        for job, place in missing.items()
    }


def _told(table: Path) -> dict[str, str]:
    """What became of the jobs of a sweep that has ended, of those that are not done."""
    try:
        rows = csv.DictReader(io.StringIO(read_whole(table).decode("utf-8", "replace")))
        return {str(r["job"]): str(r["result"]) for r in rows if r.get("result") not in (None, "", "done")}
    except (SourceError, KeyError, csv.Error):  # it is at work still, or its table is somebody's
        return {}


def _ours(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict) or said.get("weightmill") != VERSION:
        raise TypeError("not ours")
    return said
