"""Runs as data for other programs: CSV, JSON and Parquet."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, StorageError
from pipeline.files import spoken
from pipeline.records import schemas
from pipeline.records.run import Run
from pipeline.redact import hide, tree
from pipeline.terminal import line

FIELDS = (
    "name", "folder", "id", "state", "reached", "model", "quant", "started", "seconds", "host", "done", "total",
    "stages_done", "stages",
)  # fmt: skip
LISTS = ("command", "tags", "notes", "sweeps")


def records(runs: Iterable[Run], *, settings: bool) -> Iterator[dict[str, Any]]:
    """A flat row for each run: metrics with their units in brackets, settings as `config.KEY`."""
    for run in runs:
        said: dict[str, Any] = {name: getattr(run, name) for name in FIELDS}
        said |= {"folder": str(run.folder), "started": _iso(run.started)}
        said |= {name: " ".join(getattr(run, name)) for name in LISTS}
        said |= {f"{n} [{f.unit}]" if f.unit else n: f.value for n, f in run.metrics.items()}
        if settings:
            said |= {f"config.{key}": value for key, value in run.config.items()}
        yield tree(said)


def as_json(runs: Iterable[Run], *, settings: bool) -> str:
    """`{"weightmill": 1, "runs": [...]}`, each with its metrics as value, unit and better, held to the schema `runs`.
    What would steer a terminal stands there as JSON's escapes.

    Raises:
        StorageError: it is not as the schema says, which is a bug.
    """
    found = []
    for run in runs:
        said: dict[str, Any] = {name: getattr(run, name) for name in FIELDS}
        said |= {"folder": str(run.folder), "started": _iso(run.started)}
        said |= {name: list(getattr(run, name)) for name in LISTS}
        said["metrics"] = {n: {"value": f.value, "unit": f.unit, "better": f.better} for n, f in run.metrics.items()}
        if settings:
            said["config"] = dict(run.config)
        found.append(_finite(tree(said)))
    return schemas.dumped("runs", {"runs": found}) + "\n"


def as_csv(runs: Iterable[Run], *, settings: bool) -> str:
    """A header, and a line for each; characters that would steer a terminal as their escapes."""
    rows = list(records(runs, settings=settings))
    columns = list(dict.fromkeys([*FIELDS, *LISTS, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([line(column) for column in columns])
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def write_parquet(runs: Iterable[Run], path: Path, *, settings: bool) -> None:
    """
    Raises:
        ConfigError: pyarrow is not installed.
        StorageError: it cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError("--format parquet: pyarrow is not installed: pip install 'weightmill[data]'") from None
    rows = list(records(runs, settings=settings))
    columns = list(dict.fromkeys([*FIELDS, *LISTS, *(name for row in rows for name in row)]))
    arrays = {column: _column([row.get(column) for row in rows]) for column in columns}
    partial = path.with_name(f"{path.name}.partial")
    try:
        parquet.write_table(pyarrow.table(arrays), partial)
        partial.replace(path)
    except OSError as why:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{spoken(path)}: {why.strerror or why}") from None


def _column(values: list[Any]) -> list[Any]:
    """Values of one kind: numbers as floats where they differ, everything else as text."""
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {bool} or (kinds <= {int} and all(abs(v) < 1 << 63 for v in values if v is not None)) or kinds <= {str}:
        return [v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for v in values]
    if kinds <= {int, float}:
        return [None if v is None else float(v) for v in values]
    return [None if v is None else json.dumps(v) if not isinstance(v, str) else v for v in values]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return line(value) if isinstance(value, str) else hide(json.dumps(value)).strip('"')


def _iso(started: float | None) -> str | None:
    return None if started is None else datetime.fromtimestamp(started, timezone.utc).isoformat()  # noqa: UP017


def _finite(value: Any) -> Any:
    """What JSON has no number for, as text."""
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value
