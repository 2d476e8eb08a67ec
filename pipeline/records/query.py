"""Conditions on runs, as typed: `quant=mxfp4`, `kl<0.01`, `state!=complete`."""

import re
from collections.abc import Sequence

from pipeline.records.run import Run

CONDITION = re.compile(r"([\w.@-]+)\s*(!=|<=|>=|=|<|>)\s*(.*)")


def is_condition(word: str) -> bool:
    return CONDITION.fullmatch(word) is not None


def matching(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """Those of which all conditions hold."""
    if conditions:
        raise NotImplementedError("conditions")
    return list(runs)
