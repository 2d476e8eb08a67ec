"""Bench convert: the whole command that converts a checkpoint, beside `cp` and beside other programs."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pipeline.bench import conversion
from pipeline.bench.conversion import CP, Conversion, Converter, Copy
from pipeline.bench.measuring import WRITES, Benched, Measuring
from pipeline.bench.rows import unmeasured
from pipeline.bench.turns import Turns
from pipeline.config import extend
from pipeline.errors import ConfigError, StageError
from pipeline.stage import Checkpoint, Context, Footprint, Prediction

HOST_NBYTES = 1 << 30  # of a command with its libraries
BENCHMARK = "convert"
ROOM = "converted"


@dataclass(frozen=True)
class BenchConvert:
    """Convert again and again, each time by a command of its own, until the files are on the disk.

    Attributes:
        ours: settings of ours that are measured, by name: overrides.
        peers: other programs, by name.
        overrides: what is converted, and into what.
        measuring: how often, on how many cores, against what.
    """

    ours: Mapping[str, tuple[str, ...]]
    peers: Mapping[str, Converter]
    overrides: tuple[str, ...]
    measuring: Measuring

    writes: ClassVar[tuple[str, ...]] = WRITES

    def __post_init__(self) -> None:
        for name in (*self.ours, *self.peers):
            if name == CP or (name in self.ours and name in self.peers):
                raise ConfigError(f"bench.ours: {name!r} is what another one is called")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        self.measuring.baseline(BENCHMARK)
        nbytes = sum(checkpoint.stored.values())
        return Prediction(None, Footprint(host_nbytes=HOST_NBYTES + 2 * nbytes, disk_nbytes=2 * nbytes))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Benched:
        """Every command once, so that Python has compiled its modules and files are in memory, and then in rounds.

        Raises:
            StageError: `cp` failed.
        """
        self.measuring.baseline(BENCHMARK)
        begun = time.perf_counter()
        source = checkpoint.source
        assert source is not None  # it was loaded
        turns = Turns(ctx.run_dir, ctx.key, self.measuring.cores)
        room, nbytes = ctx.run_dir / ROOM, sum(checkpoint.stored.values())
        commands: dict[str, tuple[str, ...]] = {CP: tuple(Copy().command(source, room / "out", self._quant))}
        commands |= {name: self._typed(source, room, more) for name, more in self.ours.items()}
        apart = dict(self._apart(source, checkpoint))
        for name, peer in self.peers.items():
            if name not in apart:
                commands[name] = tuple(peer.command(source, room / "out", self._quant))
        jobs = {name: Conversion(command, room, room / "out", nbytes) for name, command in commands.items()}
        turns.rounds({f"warming up {name}": job for name, job in jobs.items()}, 1, conversion.said)
        turns.rounds(jobs, self.measuring.rounds, conversion.said)
        shutil.rmtree(ctx.run_dir / conversion.BYTECODE, ignore_errors=True)
        if CP in turns.failed:
            raise StageError(f"bench: {CP}: {turns.failed[CP]}")
        rows = [self._row(name, turns, apart) for name in (CP, *self.ours, *self.peers)]
        return self.measuring.record(
            ctx.run_dir, BENCHMARK, rows, conversion.tables, conversion.figures(rows),
            seconds=time.perf_counter() - begun,
        )  # fmt: skip

    @property
    def _quant(self) -> str:
        said = [o.partition("=")[2] for o in self.overrides if o.lstrip("+").partition("=")[0] == "quant"]
        return said[-1] if said else "keep"

    def _typed(self, source: Path, room: Path, more: tuple[str, ...]) -> tuple[str, ...]:
        """Our command."""
        from pipeline.config.overrides import quoted  # Hydra's grammar, which no other worker needs

        places = {"model.source": source, "export.path": room / "out/export", "paths.run": room / "run"}
        set_ = [f"{key}={quoted(str(path))}" for key, path in places.items()]
        module = extend.NAME if extend.by_name() else "pipeline"
        return (sys.executable, "-m", module, *self.overrides, "flow=convert", "progress=false", *set_, *more)

    def _apart(self, source: Path, checkpoint: Checkpoint) -> Iterator[tuple[str, tuple[str, str]]]:
        """Peers that are not measured: state, and why."""
        for name, peer in self.peers.items():
            if how := [how for module, how in peer.needs.items() if find_spec(module) is None]:
                yield name, ("missing", f"not installed; {'; '.join(dict.fromkeys(how))}")
            elif why := peer.why_not(source, self._quant, checkpoint.config):
                yield name, ("unsupported", why)

    def _row(self, name: str, turns: Turns, apart: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        if name in apart:
            return unmeasured(name, self._quant, *apart[name])
        if name in turns.failed:
            return unmeasured(name, self._quant, "failed", turns.failed[name])
        return conversion.row(name, self._quant, turns.found(name), turns.found(CP), turns.others(name))
