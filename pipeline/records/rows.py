"""A run, or a sweep, as a row of the index has it: JSON, and back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.figures import Figure
from pipeline.records.run import Run
from pipeline.records.sweeps import SweepJob

PLAIN = (
    "id", "state", "started", "seconds", "model", "quant", "why", "host", "pid", "done", "total", "stages_done",
    "stages",
)  # fmt: skip
LISTS = ("command", "problems", "tags", "notes")


def packed(run: Run) -> str:
    """What `unpacked` makes the run of again, whatever its folder is called then."""
    said: dict[str, Any] = {name: value for name in PLAIN if (value := getattr(run, name)) not in ("", None)}
    said |= {name: value for name in LISTS if (value := getattr(run, name))}
    said["metrics"] = {n: [f.value, f.unit, f.form, f.better] for n, f in run.metrics.items()}
    return json.dumps(said)


def unpacked(text: str, folder: Path, name: str, config: Mapping[str, Any]) -> Run:
    """The run; `config`: its settings, which are kept apart."""
    said = json.loads(text)
    lists: dict[str, Any] = {key: tuple(said.pop(key, ())) for key in LISTS}
    metrics = {n: Figure(*parts) for n, parts in said.pop("metrics").items()}
    return Run(folder, said.pop("id", ""), name, said.pop("state"), metrics=metrics, config=config, **lists, **said)


def packed_jobs(jobs: Sequence[SweepJob]) -> str:
    return json.dumps([[job.name, job.run, job.id] for job in jobs])


def unpacked_jobs(text: str) -> list[SweepJob]:
    return [SweepJob(*parts) for parts in json.loads(text)]
