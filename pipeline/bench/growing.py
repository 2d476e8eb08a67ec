"""What one process of `flow=bench_scale` does: it prepares a size, or measures it once."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import StageError
from pipeline.growth import Growing
from pipeline.running import peak

STARTED = 21  # of /proc/self/stat, after the name: proc(5) counts from 1 and the name and what precedes it are two


@dataclass(frozen=True)
class Preparing:
    growing: Growing
    size: int
    folder: Path

    def __call__(self) -> Mapping[str, Any]:
        self.folder.mkdir(parents=True)
        self.growing.prepare(self.size, self.folder)
        return {}


@dataclass(frozen=True)
class Measured:
    """Attributes:
    growing: what is measured.
    """

    growing: Growing
    size: int
    folder: Path
    threads: int

    def __call__(self) -> Mapping[str, Any]:
        """
        Raises:
            StageError: it found something else than it said.
        """
        found = dict(self.growing.measure(self.size, self.folder, self.threads))
        if found.keys() != (units := self.growing.units).keys():
            raise StageError(f"{sorted(found)} was found, and {sorted(units)} is what it says that it finds")
        return {**found, "seconds": age_s(), "cpu": time.process_time(), "peak": peak.nbytes()}


def age_s() -> float:
    """Seconds since this process began; the kernel counts in hundredths."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    began = int(fields[STARTED - 2]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began
