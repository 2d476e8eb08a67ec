"""What a run leaves in its folder, written: config.yaml, errors.csv, metrics.jsonl and, last, manifest.json."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline import redact
from pipeline.errors import StorageError
from pipeline.figures import Figure, figures_of
from pipeline.files import unwritten
from pipeline.records import points, schemas
from pipeline.records.points import FIGURE, METRICS, RECORDED, Writer
from pipeline.reporting.manifest import Report, plain

ERRORS = ("name", "group", "encoding", "count", "max_abs", "rmse", "sqnr_db")  # columns


def write_config(path: Path, tree: Mapping[str, Any]) -> None:
    """The whole config as it was resolved, but for what came from the environment."""
    text = _dumped(dict(tree))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as why:
        raise unwritten(path, why, len(text.encode())) from None


def _dumped(tree: dict[str, Any]) -> str:
    """By libyaml, where PyYAML came with it, in a quarter of the time; but for names of files that are no text."""
    import yaml

    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True}
    try:
        said = yaml.dump(tree, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), **style)
    except UnicodeEncodeError:
        said = yaml.safe_dump(tree, **style)
    return str(said)


def write_records(run_dir: Path, report: Report) -> None:
    """errors.csv, what the run adds to metrics.jsonl and, last, manifest.json.

    Raises:
        StorageError: one cannot be written, or would not be what its schema says.
    """
    record = _recorded(report)
    try:
        with (run_dir / "errors.csv").open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.DictWriter(file, ERRORS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(report.tensors)
        for i, row in enumerate(report.tensors):
            if (why := schemas.fault("errors", {name: row.get(name) for name in ERRORS})) is not None:
                raise StorageError(f"{run_dir / 'errors.csv'}:{i + 2}: what was written is no row of errors: {why}")
        _add(run_dir / METRICS, list(_rows(report, record)))
    except OSError as why:
        raise StorageError(f"{run_dir}: {why.strerror}") from None
    write_manifest(run_dir, report)


def write_manifest(run_dir: Path, report: Report) -> None:
    """manifest.json."""
    schemas.write("manifest", run_dir / "manifest.json", _recorded(report))


def _recorded(report: Report) -> dict[str, Any]:
    """A report without secrets."""
    return asdict(report) | {key: redact.tree(getattr(report, key)) for key in ("command", "results", "unused")}


def _rows(report: Report, record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a run adds to its metrics as it ends."""
    for kind, rows in (("stage", report.stages), ("error", report.errors), ("tensor", report.tensors)):
        yield from ({"kind": kind, **row} for row in rows)
    ended = report.started + report.seconds
    for name, result in record["results"].items():
        for label, value in figures_of(result).items():
            number, unit, better = (v.value, v.unit, v.better) if isinstance(v := value, Figure) else (v, "", "")
            said = {"kind": FIGURE, "stage": name, "name": label, "value": plain(number)}
            yield said | {"unit": unit, "better": better, "time": ended}
    keys = ("started", "seconds", "nbytes_in", "nbytes_out", "nbytes_bf16", "ratio", "bits_per_weight")
    yield {"kind": "run", **{k: getattr(report, k) for k in keys}}


def _add(path: Path, given: Sequence[Mapping[str, Any]]) -> None:
    """Append what is not there yet: of a run that was killed here, and goes on, the rest."""
    there = {_identity(row) for row in points.rows(path) if row["kind"] in RECORDED} if path.is_file() else set()
    writer = Writer(path)
    try:
        writer.lines([row for row in given if _identity(row) not in there])
    finally:
        writer.close()


def _identity(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
