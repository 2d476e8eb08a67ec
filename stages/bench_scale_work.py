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
        for name, growing in self.scales.items():
            found += growths.rows(name, growing, list(self._sizes(name, growing)), self.exponent)
        if not any(row["state"] == "measured" for row in found):
            why = next((f"{row['engine']} {row['quant']}: {row['why']}" for row in found if row["why"]), "")
            raise StageError(f"bench: nothing could be measured: {why}")
        return found

    @property
    def _place(self) -> Path:
        return self.turns.folder / SIZES

    def _sizes(self, name: str, growing: Growing) -> Iterator[Size]:
        """Each in its turn; after one that failed or was left out no larger one is begun."""
        taken, last, why = 0.0, (0, 0.0), ""
        for size in growing.points:
            cell = f"{name} {growing.show(size)}"
            if not why:
                why = self._ahead(growing, size, cell, taken, last)
            if why:
                yield Size(size, "left out", why, (), 0.0)
                continue
            self._measure(growing, size, cell)
            if cell in self.turns.failed:
                why = f"{growing.show(size)} failed"
                yield Size(size, "failed", self.turns.failed[cell], (), 0.0)
                continue
            rounds = self.turns.found(cell)
            seconds = sum(r["seconds"] for r in rounds)
            taken, last = taken + seconds, (size, seconds)
            yield Size(size, "measured", "", rounds, self.turns.others(cell))

    def _ahead(self, growing: Growing, size: int, cell: str, taken: float, last: tuple[int, float]) -> str:
        """Why a size is not begun; empty: it is. What was measured already is taken as it is."""
        if self._noted(cell):
            return ""
        expected = last[1] * size / last[0] if last[0] else 0.0  # at most: what is slow in proportion is a start's
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
        return all(self.turns.notes.has(cell, round_) for round_ in range(self.count))

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
            self.turns.rounds({cell: job}, self.count, said(growths.units(growing)))
        finally:
            shutil.rmtree(self._place, ignore_errors=True)
