"""What is compared of many runs: from the index where a run's files are as they were, else read, and kept there."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from pipeline.figures import Figure
from pipeline.records.index import Index
from pipeline.records.points import PATTERN
from pipeline.records.run import CONFIG, DESCRIPTION, MANIFEST, Run, Settings
from pipeline.reporting.compare.measures import Measured, measured
from pipeline.tensors.stats import ErrorStats

MANY = 50  # runs, from which on the whole table is read at once
READ = (DESCRIPTION, MANIFEST, CONFIG)  # beside metrics

Row = tuple[str, str]


def all_measured(runs: Sequence[Run]) -> list[Measured]:
    """What is compared of each, with how long it and its stages took. All of it has been JSON, kept or not, so that
    what is equal is so whatever the index has."""
    places = [run.folder.parents[len(Path(run.name).parts) - 1] for run in runs]
    indexes = {outputs: Index(outputs) for outputs in places}
    known = {outputs: _reader(index, len(runs)) for outputs, index in indexes.items()}
    changed: dict[Path, dict[str, Row]] = {outputs: {} for outputs in places}
    found = []
    for run, outputs in zip(runs, places, strict=True):
        keeps = run.state == "complete" and run.folder == outputs / run.name
        stamp = _stamp(run.folder) if keeps else ""
        kept, text = (known[outputs](run.name) if keeps else None) or ("", "")
        if not stamp or kept != stamp:
            text = _packed(measured(run, timed=True))
            changed[outputs] |= {run.name: (stamp, text)} if stamp else {}
        found.append(_unpacked(text, run))
    for outputs, rows in changed.items():
        if indexes[outputs].file.is_file():  # of folders that nobody lists there is none
            indexes[outputs].keep("measured", rows, ())
    for run in runs:
        if isinstance(run.config, Settings):
            run.config.keep()
    return found


def _reader(index: Index, count: int) -> Callable[[str], Row | None]:
    if not index.file.is_file():
        return lambda name: None
    return index.rows("measured").get if count >= MANY else partial(index.row, "measured")


def _stamp(folder: Path) -> str:
    """Of all files that `measured` reads; empty: they cannot be looked at."""
    found = []
    try:
        with os.scandir(folder) as listed:
            for entry in listed:
                if entry.name in READ or fnmatchcase(entry.name, PATTERN):
                    stat = entry.stat()
                    found.append(f"{entry.name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
    except OSError:
        return ""
    return "\n".join(sorted(found))


def _packed(one: Measured) -> str:
    facts: dict[str, dict[str, Any]] = {}
    for (kind, name), value in one.facts.items():
        facts.setdefault(kind, {})[name] = value
    said: dict[str, Any] = {
        "metrics": {n: [f.value, f.unit, f.form, f.better] for n, f in one.metrics.items()},
        "grounds": dict(one.grounds),
        "errors": [[*key, *stats.to_json()] for key, stats in one.errors.items()],
        "facts": facts, "likeness": one.likeness, "encodings": dict(one.encodings), "problems": one.run.problems,
    }  # fmt: skip
    return json.dumps(said)


def _unpacked(text: str, run: Run) -> Measured:
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:  # it refuses what Python writes of NaN, and of names that are no Unicode
        said = json.loads(text)
    return Measured(
        replace(run, problems=tuple(said["problems"])),
        {name: Figure(*parts) for name, parts in said["metrics"].items()},
        said["grounds"],
        {(group, encoding): ErrorStats.from_json(sums) for group, encoding, *sums in said["errors"]},
        {(kind, name): value for kind, its in said["facts"].items() for name, value in its.items()},
        tuple(said["likeness"]),
        said["encodings"],
    )
