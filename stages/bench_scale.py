"""Bench scale: what things cost over their size, and how that grows."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipeline.bench import growth_picture
from pipeline.bench.growth_tables import figures, tables
from pipeline.bench.measuring import WRITES, Benched, Measuring
from pipeline.bench.turns import Turns
from pipeline.bounds import DAY_S
from pipeline.errors import ConfigError, did_you_mean
from pipeline.growth import GIVEN, Growing
from pipeline.places import nearest_folder
from pipeline.planning.rates import machine
from pipeline.stage import Context, Footprint, Prediction
from stages.bench_scale_work import Work, most_on_disk

HOST_NBYTES = 128 << 20  # of this process, with what draws, beside those that measure
BENCHMARK = "scale"


@dataclass(frozen=True)
class BenchScale:
    """Measure what is to grow at each of its sizes, fit how it does, and say what grows faster than it should.

    Attributes:
        scales: by name.
        seconds: that the processes of each of them may take in all; larger sizes are left out. None: any.
        exponent: by so much, and by what is not sure of it, an exponent may be above the one expected.
        measuring: how often, on how many cores, against what.
    """

    scales: Mapping[str, Growing]
    seconds: float | None
    exponent: float
    measuring: Measuring

    writes: ClassVar[tuple[str, ...]] = (*WRITES, growth_picture.NAME)

    def __post_init__(self) -> None:
        if not self.scales:
            raise ConfigError("scales=[]: at least one is needed")
        if self.seconds is not None and not 0 < self.seconds <= DAY_S:
            allowed = f"more than 0 is allowed, {DAY_S:,.0f} at most, or null for any"
            raise ConfigError(f"bench.seconds={self.seconds}: {allowed}")
        if not self.exponent >= 0:
            raise ConfigError(f"bench.exponent={self.exponent}: 0 or more is allowed")
        for name, growing in self.scales.items():
            known = [*growing.units, *GIVEN]
            for what, most in growing.expected.items():
                where = f"scales.{name}.expected.{what}"
                if what not in known:
                    raise ConfigError(f"{where}: is not measured{did_you_mean(what, known)}")
                if not most >= 0:
                    raise ConfigError(f"{where}={most}: 0 or more is allowed")

    def plan(self) -> Prediction:
        self.measuring.baseline(BENCHMARK)
        free = shutil.disk_usage(nearest_folder(Path(self.measuring.folder))).free
        disk = max(most_on_disk(growing, free) for growing in self.scales.values())
        host = max(growing.host_nbytes(size) for growing in self.scales.values() for size in growing.points)
        what = ",".join(f"{name}:{growing.show(growing.points[-1])}" for name, growing in self.scales.items())
        return Prediction(None, Footprint(
            host_nbytes=HOST_NBYTES + host, disk_nbytes=disk, moved_nbytes=self.measuring.rounds,
            rate=f"{what} {self.seconds}",
        ))  # fmt: skip

    def run(self, ctx: Context) -> Benched:
        """
        Raises:
            StageError: nothing could be measured.
        """
        self.measuring.baseline(BENCHMARK)
        turns = Turns(ctx.run_dir, ctx.key, self.measuring.cores)
        found = Work(self.scales, self.seconds, self.exponent, self.measuring.rounds, turns).rows()
        if any(row.get("fits") for row in found):
            growth_picture.draw(ctx.run_dir / growth_picture.NAME, machine(), found)
        return self.measuring.record(ctx.run_dir, BENCHMARK, found, tables, figures(found), **turns.took)
