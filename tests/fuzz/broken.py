"""A target that does everything a target must not do, one thing an input: what the fuzzer itself is tested with."""

import os
import random
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import SourceError
from tests.fuzz.driver import MEMORY_NBYTES, Files

_runs = 0


def make(rng: random.Random) -> Files:
    return {"f": b"input"}


def run(files: Mapping[str, bytes], folder: Path) -> None:
    """By the number that the process says it is at."""
    global _runs
    _runs += 1
    if _runs == 1:  # a rehearsal
        return
    number = int(os.environ["FUZZ_BEGIN"]) + _runs - 2
    if number == 1:
        raise ZeroDivisionError
    if number == 2:
        raise SourceError("refused")
    while number == 3:
        pass
    if number == 4:
        os.abort()
    if number == 6:
        bytearray(2 * MEMORY_NBYTES)
