"""Which runs are a sweep's: `sweep.json` in its folder."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.files import read_whole, spoken, write_json

SWEEP = "sweep.json"
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


def _ours(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict) or said.get("weightmill") != VERSION:
        raise TypeError("not ours")
    return said
