"""What tables and images share: the rows that are held out, and whether a model fits them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.errors import PlanError, Problem, SourceError
from pipeline.stage import Checkpoint
from pipeline.training import Splits
from plugins.data.faults import Faults
from plugins.data.rows import Rows

INPUTS, OUTPUTS = "inputs", "outputs"  # of a config.json, what a model of rows takes and gives


def divided(rows: Rows, out: np.ndarray, facts: Mapping[str, Any]) -> Splits:
    """Those rows to train on for which `out` is not set, and the others.

    Raises:
        PlanError: there is none to train on.
    """
    train, apart = np.flatnonzero(~out), np.flatnonzero(out)
    if not len(train):
        raise PlanError([Problem("data", "all rows are held out")], exit_code=SourceError.exit_code)
    held_out = replace(rows, chosen=apart, mirrored=False) if len(apart) else None
    return Splits(replace(rows, chosen=train), held_out, facts)


def fits(checkpoint: Checkpoint | None, inputs: int, outputs: int, faults: Faults) -> None:
    """Whether a model whose config.json says how many numbers it takes and gives is one for these rows."""
    config = {} if checkpoint is None else checkpoint.config
    for key, has in ((INPUTS, inputs), (OUTPUTS, outputs)):
        given = config.get(key, has)
        if given != has and not (isinstance(given, list) and math.prod(given) == has):
            faults.add(f"config.json {key}", f"is {given!r:.60}; the data have {has:,}")
