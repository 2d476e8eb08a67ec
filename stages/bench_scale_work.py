"""The work of `flow=bench_scale`: each size prepared, measured in rounds, and gone from the disk again."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.bench import growths
from pipeline.bench.growing import Measured, Preparing
from pipeline.bench.growth_tables import said
from pipeline.bench.growths import Size
from pipeline.bench.turns import Turns
from pipeline.errors import StageError
from pipeline.growth import Growing
from pipeline.running import text_stream
from pipeline.units import show_bytes, show_seconds

SIZES = "sizes"  # folder of what is being measured
SPARE_NBYTES = 1 << 30  # of the disk, for everybody else
LONG_S = 15.0  # a process that takes longer is measured once: what others are at work on is little of it


def most_on_disk(growing: Growing, free: int) -> int:
    """Of the largest size for which there is room; of the smallest where there is none."""
    needed = [growing.disk_nbytes(size) for size in growing.points]
    return max((n for n in needed if n + SPARE_NBYTES <= free), default=needed[0])


@dataclass(frozen=True)
class Work:
    """One benchmark at work. Its attributes are those of `stages.bench_scale.BenchScale`."""

    scales: Mapping[str, Growing]
    seconds: float | None
    exponent: float
    count: int  # of rounds
    turns: Turns

    def rows(self) -> list[dict[str, Any]]:
        """As bench.json has them.

        Raises:
            StageError: nothing could be measured.
        """
        shutil.rmtree(self._place, ignore_errors=True)  # of one that was killed
        found = []
        try:
            for name, growing in self.scales.items():
                found += growths.rows(name, growing, list(self._sizes(name, growing)), self.exponent)
        finally:
            shutil.rmtree(self._place, ignore_errors=True)
        if not any(row["state"] == "measured" for row in found):
            why = next((f"{row['engine']} {row['quant']}: {row['why']}" for row in found if row["why"]), "")
            raise StageError(f"bench: nothing could be measured: {why}")
        return found

    @property
    def _place(self) -> Path:
        return self.turns.folder / SIZES

    def _sizes(self, name: str, growing: Growing) -> Iterator[Size]:
        """Each in its turn; after one that failed or was left out no larger one is begun."""
        taken, why = 0.0, ""
        seen: list[tuple[int, float]] = []  # sizes, and seconds of a process
        for size in growing.points:
            cell = f"{name} {growing.show(size)}"
            if not why:
                why = self._ahead(growing, size, cell, taken, self._expected(size, seen))
            if why:
                yield Size(size, "left out", why, (), 0.0)
                continue
            self._measure(growing, size, cell)
            if cell in self.turns.failed:
                why = f"{growing.show(size)} failed"
                yield Size(size, "failed", self.turns.failed[cell], (), 0.0)
                continue
            rounds = self.turns.found(cell)
            seconds = [r["seconds"] for r in rounds]
            taken += sum(seconds)
            seen.append((size, sum(seconds) / len(seconds)))
            yield Size(size, "measured", "", rounds, self.turns.others(cell))

    def _expected(self, size: int, seen: list[tuple[int, float]]) -> float:
        """Seconds of all its rounds, by a line through the last two sizes, of which the first is mostly start."""
        if not seen:
            return 0.0
        last, seconds = seen[-1]
        before, less = seen[-2] if len(seen) > 1 else (0, 0.0)
        one = seconds + max(0.0, seconds - less) / (last - before) * (size - last)
        return one if one > LONG_S else one * self.count

    def _ahead(self, growing: Growing, size: int, cell: str, taken: float, expected: float) -> str:
        """Why a size is not begun; empty: it is. What was measured already is taken as it is."""
        if self._noted(cell):
            return ""
        if self.seconds is not None and taken + expected > self.seconds:
            return (
                f"would take about {show_seconds(expected)} after {show_seconds(taken)}; "
                f"bench.seconds={self.seconds:g} are allowed, null any"
            )
        needed, free = growing.disk_nbytes(size), shutil.disk_usage(self.turns.folder).free
        if needed + SPARE_NBYTES > free:
            return f"takes {show_bytes(needed)} of the disk, of which {show_bytes(free)} are free"
        return ""

    def _noted(self, cell: str) -> bool:
        return all(self.turns.notes.has(cell, round_) for round_ in range(self._count(cell)))

    def _count(self, cell: str) -> int:
        """Of its rounds."""
        found = self.turns.found(cell)
        return 1 if found and found[0]["seconds"] > LONG_S else self.count

    def _measure(self, growing: Growing, size: int, cell: str) -> None:
        if self._noted(cell):
            return
        place = self._place / cell.replace(" ", "-").replace("/", "-")
        try:
            text_stream.write(f"preparing {cell}\n")
            prepared = f"preparing {cell}"
            if self.turns.once(prepared, Preparing(growing, size, place)) is None:
                self.turns.failed[cell] = f"could not be prepared: {self.turns.failed[prepared]}"
                return
            job = Measured(growing, size, place, self.turns.threads)
            told = said(growths.units(growing))
            self.turns.rounds({cell: job}, 1, told)
            if cell not in self.turns.failed:
                self.turns.rounds({cell: job}, self._count(cell), told)
        finally:
            shutil.rmtree(self._place, ignore_errors=True)
