"""A comparison of runs as a file: CSV, JSON, HTML."""

import csv
import io
import json
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.files import write_over
from pipeline.records.schemas import fault
from pipeline.redact import hide
from pipeline.reporting.compare.compared import Compared
from pipeline.reporting.compare.pareto import Pareto
from pipeline.reporting.compare.tolerance import Limits
from pipeline.reporting.manifest import plain

FORMATS = ("table", "csv", "json", "html")
NAME = "comparison"

NO_LIMITS: Limits = {}


def as_text(found: Compared, front: Pareto | None, kind: str, limits: Limits = NO_LIMITS) -> str:
    """What the file says. CSV: a row for each run, with units in the header, as `Compared.rows`.

    Args:
        limits: what was asked of --fail-if, which a page has, too.

    Raises:
        StorageError: it is not as its schema says, which is a bug.
    """
    if kind == "html":
        from pipeline.reporting.html.comparison import html

        return html(found, front, limits)
    if kind == "csv":
        rows = found.rows
        if front is not None:
            on = {row["run"]: row for row in front.rows}
            rows = [{**row, "front": on.get(row["run"], {}).get("front")} for row in rows]
        file = io.StringIO()
        writer = csv.DictWriter(file, list(dict.fromkeys(n for row in rows for n in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: hide(v) if isinstance(v, str) else v for name, v in row.items()} for row in rows)
        return file.getvalue()
    said = found.as_json()
    if front is not None:
        beaten = {name: list(by) for name, by in zip(front.names, front.beaten, strict=True) if by}
        said["pareto"] = plain({
            "metrics": [{"name": m, "better": b} for m, b in zip(front.metrics, front.better, strict=True)],
            "front": list(front.front), "beaten": beaten, "left_out": dict(front.left_out),
        })  # fmt: skip
    if (why := fault("comparison", said)) is not None:
        raise StorageError(f"what was to be written is no comparison: {why}")
    return json.dumps(said, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(found: Compared, front: Pareto | None, kind: str, path: Path, limits: Limits = NO_LIMITS) -> Path:
    """The file, at `path`.

    Raises:
        StorageError: it cannot be written.
    """
    write_over(path, as_text(found, front, kind, limits).encode("utf-8", "backslashreplace"))
    return path
