"""What a run leaves in its folder, written: config.yaml, errors.csv, metrics.jsonl and, last, manifest.json."""

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline import redact
from pipeline.errors import StorageError
from pipeline.figures import Figure, figures_of
from pipeline.files import write_json
from pipeline.reporting.manifest import Report, plain

METRICS = "metrics.jsonl"
KINDS = ("stage", "error", "tensor", "figure", "run")  # of rows in it, beside those of stages


def write_config(path: Path, tree: Mapping[str, Any]) -> None:
    """The whole config as it was resolved, but for what came from the environment."""
    import yaml

    try:
        path.write_text(yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as why:
        raise StorageError(f"{path}: {why.strerror}") from None


def write_records(run_dir: Path, report: Report) -> None:
    """errors.csv, metrics.jsonl and, last, manifest.json."""
    record = _recorded(report)
    try:
        with (run_dir / "errors.csv").open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            columns = ["name", "group", "encoding", "count", "max_abs", "rmse", "sqnr_db"]
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(report.tensors)
        came = _rows_of_stages(run_dir / METRICS)
        with (run_dir / METRICS).open("w", encoding="utf-8") as file:
            file.writelines(came)
            for kind, rows in (("stage", report.stages), ("error", report.errors), ("tensor", report.tensors)):
                for row in rows:
                    file.write(json.dumps({"kind": kind, **row}) + "\n")
            for name, result in record["results"].items():
                for label, value in figures_of(result).items():
                    number, unit = (value.value, value.unit) if isinstance(value, Figure) else (value, "")
                    said = {"kind": "figure", "stage": name, "name": label, "value": plain(number), "unit": unit}
                    file.write(json.dumps(said) + "\n")
            keys = ("started", "seconds", "nbytes_in", "nbytes_out", "nbytes_bf16", "ratio", "bits_per_weight")
            file.write(json.dumps({"kind": "run", **{k: getattr(report, k) for k in keys}}) + "\n")
    except OSError as why:
        raise StorageError(f"{run_dir}: {why.strerror}") from None
    write_manifest(run_dir, report)


def write_manifest(run_dir: Path, report: Report) -> None:
    """manifest.json."""
    write_json(run_dir / "manifest.json", {"weightmill": 1, **_recorded(report)})


def _recorded(report: Report) -> dict[str, Any]:
    """A report without secrets."""
    return asdict(report) | {key: redact.tree(getattr(report, key)) for key in ("command", "results")}


def _rows_of_stages(file: Path) -> list[str]:
    """The lines of a run's metrics that a stage wrote there while it was at work: those of no kind that is ours."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    return [line for line in lines if json.loads(line).get("kind") not in KINDS]
