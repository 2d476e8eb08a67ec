"""Whether a process that generates again and again takes more memory each time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from pipeline.contender import Contender

PROMPT, NEW = 8, 8  # tokens of each generation
WARM = 0.25  # of the generations that count for nothing: caches fill, pools grow
ERRORS = 3.0  # of the slope: what is less is noise
LEAST = float(1 << 20)  # bytes in all: an allocator takes less now and then, and gives it back late


@dataclass(frozen=True)
class Repeat:
    """A process: many short generations, and its memory after each."""

    contender: Contender
    place: Path
    threads: int
    count: int

    def __call__(self) -> Mapping[str, Any]:
        loaded, process = self.contender.load(self.place, self.threads), psutil.Process()
        seen = []
        for i in range(self.count):
            loaded.decode([[(i + j) % 100 + 1 for j in range(PROMPT)]], NEW, lambda: None)
            seen.append(process.memory_info().rss)
        return {"rss": seen}


def growth(rss: Sequence[int]) -> dict[str, float]:
    """Bytes a generation, by least squares, with the standard error of the slope; and what they come to.

    Args:
        rss: bytes after each generation.
    """
    y = np.asarray(rss[int(WARM * len(rss)) :], np.float64)
    x = np.arange(len(y)) - (len(y) - 1) / 2
    slope = float(x @ y / (x @ x))
    rest = y - y.mean() - slope * x
    error = float(np.sqrt(rest @ rest / (len(y) - 2) / (x @ x)))
    return {"slope": slope, "error": error, "generations": len(rss), "grown": slope * len(y)}


def leak(found: Mapping[str, float]) -> str:
    """What is wrong; empty: memory stays as it is."""
    slope, error = found["slope"], found["error"]
    if slope <= ERRORS * error or found["grown"] <= LEAST:
        return ""
    return f"takes {slope / 1024:.0f} ± {error / 1024:.0f} KiB more with each of {found['generations']:.0f} generations"
