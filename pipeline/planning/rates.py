"""How fast this machine has done things before: bytes a second for each kind of work, learnt from finished runs.

A small JSON file in the user's cache folder. What was measured with few bytes says little of many (starting and
compiling take their time whatever the size), so measurements are kept by size, in powers of four, and the nearest is
taken. The last few of each are kept, apart: one that was slow is outvoted, and where they disagree that can be said.
There is no rate before there is a measurement.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import log
from pathlib import Path
from statistics import median

from pipeline import cpu
from pipeline.errors import StorageError
from pipeline.files import cache_folder, write_over

MOST_KINDS = 500  # those not measured for longest go first
LAST = 3  # measurements of the same that are kept
VERSION = 2

Sizes = dict[str, list[float]]
"""Exponent of the power of four below the bytes → seconds a byte of the last measurements, the newest last."""


def rates_file() -> Path:
    """Where rates are kept."""
    return cache_folder() / "rates.json"


@cache
def machine() -> str:
    """What a rate is of: the processor, whether it has a matrix unit, how many of its cores this process may use, and
    accelerators."""
    name = " ".join(filter(None, (cpu.model() or os.uname().machine, cpu.numbers())))
    matrices = ", AMX" if "amx_bf16" in cpu.instructions() else ""
    gpus = sorted(p.name for p in Path("/proc/driver/nvidia/gpus").glob("*"))
    return f"{name} × {cores()}{matrices}" + (f", {len(gpus)} GPUs" if gpus else "")


def cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass
class Rates:
    """The measurements of this machine.

    Attributes:
        kinds: kind of work → measurements by size, those measured last at the end.
    """

    kinds: dict[str, Sizes] = field(default_factory=dict)

    @staticmethod
    def load(file: Path | None = None) -> "Rates":
        """What is known; nothing, where there is no file or no whole one."""
        try:
            given = json.loads((file or rates_file()).read_bytes())
            found = given["machines"].get(machine(), {}) if given["version"] == VERSION else {}
            return Rates({str(k): {str(e): [float(s) for s in v] for e, v in s.items()} for k, s in found.items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return Rates()

    def seconds(self, kind: str, nbytes: int) -> float | None:
        """How long `nbytes` would take, by the measurements nearest in size: by the newest of two, by the middle one of
        more; None: never measured."""
        if not (last := self._nearest(kind, nbytes)):
            return None
        return nbytes * (median(last) if len(last) > 2 else last[-1])

    def range(self, kind: str, nbytes: int) -> tuple[float, float]:
        """The least and the most by the same measurements; zeros: never measured."""
        last = self._nearest(kind, nbytes) or [0.0]
        return nbytes * min(last), nbytes * max(last)

    def _nearest(self, kind: str, nbytes: int) -> list[float]:
        sizes = self.kinds.get(kind, {})
        return sizes[min(sizes, key=lambda e: (abs(int(e) - _size(nbytes)), -int(e)))] if sizes else []

    def learn(self, kind: str, nbytes: int, seconds: float) -> None:
        """Take a measurement in; nothing is learnt from none."""
        if nbytes <= 0 or seconds <= 0:
            return
        sizes = self.kinds.pop(kind, {})
        sizes[str(_size(nbytes))] = [*sizes.get(str(_size(nbytes)), []), seconds / nbytes][-LAST:]
        self.kinds[kind] = sizes
        for oldest in list(self.kinds)[: max(0, len(self.kinds) - MOST_KINDS)]:
            del self.kinds[oldest]

    def save(self, file: Path | None = None) -> str | None:
        """Keep them, beside what other machines with the same home have measured; why that cannot be, or None."""
        path = file or rates_file()
        try:
            machines = json.loads(path.read_bytes())["machines"] if path.exists() else {}
        except (OSError, ValueError, TypeError, KeyError):
            machines = {}
        machines = {**machines} if isinstance(machines, Mapping) else {}
        text = json.dumps({"version": VERSION, "machines": {**machines, machine(): self.kinds}})
        try:
            write_over(path, text.encode())
        except StorageError as why:
            return f"the rates of this machine cannot be kept: {why}"
        return None


def _size(nbytes: int) -> int:
    return int(log(max(1, nbytes), 4))
