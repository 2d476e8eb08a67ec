"""What the training of a run that is not complete has come to: its last values, from the end of its file of metrics."""

import json
import os
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.figures import Better, Figure
from pipeline.files import opened
from pipeline.records.blocks import block
from pipeline.records.points import METRICS, number

TAIL_NBYTES = 1 << 22  # that is looked through: some 40,000 updates
KINDS = {"train": "training", "held_out": "held-out"}  # of rows, and what a manifest's figures call them
OTHERS = ("kind", "step", "time", "stage", "weight", "seconds", "v")  # of an evaluation, no result of it
BETTER: dict[str, Better] = {"loss": "lower", "accuracy": "higher"}


def latest(folder: Path) -> dict[str, Figure]:
    """By the names that figures of a training that is complete have; of members of a population nothing."""
    try:
        lines = _last_lines(folder / METRICS) if (folder / METRICS).is_file() else []
    except (SourceError, OSError):  # `runs show` says what is wrong with it
        return {}
    found = {}
    for kind, named in KINDS.items():
        row = _last(lines, kind)
        for name in ("loss",) if kind == "train" else row:
            if name not in OTHERS and (value := number(row.get(name))) is not None:
                found[f"{named} {name}"] = Figure(value, form=".4f", better=BETTER.get(name, ""))
    return found


def _last_lines(path: Path) -> list[bytes]:
    """Whole lines; what comes behind the last line break is none yet."""
    with opened(path) as fd:
        nbytes = os.fstat(fd).st_size
        begin = max(0, nbytes - TAIL_NBYTES)
        return os.pread(fd, nbytes - begin, begin).split(b"\n")[1 if begin else 0 : -1]


def _last(lines: list[bytes], kind: str) -> dict[str, Any]:
    """The last row of a kind."""
    said = json.dumps(kind).encode()
    for line in reversed(lines):
        for row in block([line], 1).of(kind) if said in line else ():
            if "member" not in row:
                return row
    return {}
