"""Bench convert: the whole command that converts a checkpoint, beside `cp` and beside other programs."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pipeline.bench import conversion
from pipeline.bench.conversion import CP, Conversion, Converter, Copy
from pipeline.bench.converted import Right
from pipeline.bench.measuring import WRITES, Benched, Measuring
from pipeline.bench.rows import unmeasured
from pipeline.bench.turns import Turns
from pipeline.config import extend
from pipeline.errors import ConfigError, StageError
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Context, Footprint, Prediction

HOST_NBYTES = 512 << 20  # of a command with its libraries, and of the process that waits for it and looks at the files
HELD = 4  # times the source: whole tensors of a peer, in float32 beside what it makes of them (see BENCHMARKS.md)
MOST = 1.1  # of the source: what is written of it is no larger, but for headers
LEAST_NBYTES = 80 << 20  # of what Python keeps of modules (torch has 60 MiB), logs and records
BENCHMARK = "convert"
ROOM = "converted"


@dataclass(frozen=True)
class BenchConvert:
    """Convert again and again, each time by a command of its own, until the files are on the disk.

    Attributes:
        ours: settings of ours that are measured, by name: overrides.
        peers: other programs, by name.
        overrides: what is converted, and into what.
        unpack: decodes what is packed, to look at what was written.
        measuring: how often, on how many cores, against what.
    """

    ours: Mapping[str, tuple[str, ...]]
    peers: Mapping[str, Converter]
    overrides: tuple[str, ...]
    measuring: Measuring
    unpack: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    writes: ClassVar[tuple[str, ...]] = WRITES

    def __post_init__(self) -> None:
        for name in (*self.ours, *self.peers):
            if name == CP or (name in self.ours and name in self.peers):
                raise ConfigError(f"bench.ours: {name!r} is what another one is called")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        self.measuring.baseline(BENCHMARK)
        nbytes = sum(checkpoint.stored.values())
        names = ",".join((*self.ours, *self.peers))
        return Prediction(None, Footprint(
            host_nbytes=HOST_NBYTES + HELD * nbytes, disk_nbytes=int(MOST * nbytes) + LEAST_NBYTES,
            moved_nbytes=nbytes * (self.measuring.rounds + 1), rate=f"{self._quant} {names}",
        ))  # fmt: skip

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Benched:
        """Every command once, so that Python has compiled its modules and files are in memory, and then in rounds.

        Raises:
            ConfigError: the baseline is of other weights.
            StageError: `cp` failed.
        """
        self.measuring.baseline(BENCHMARK, run=ctx.run_dir)
        source, opener = checkpoint.source, checkpoint.opener
        assert source is not None  # it was loaded
        assert opener is not None
        turns = Turns(ctx.run_dir, ctx.key, self.measuring.cores)
        room, nbytes = ctx.run_dir / ROOM, sum(checkpoint.stored.values())
        commands: dict[str, tuple[str, ...]] = {CP: tuple(Copy().command(source, room / "out", self._quant))}
        commands |= {name: self._typed(source, room, more) for name, more in self.ours.items()}
        apart = dict(self._apart(source, checkpoint))
        for name, peer in self.peers.items():
            if name not in apart:
                commands[name] = tuple(peer.command(source, room / "out", self._quant))
        right = Right(checkpoint.store, opener, self.unpack)
        jobs = {name: Conversion(command, room, room / "out", nbytes, right) for name, command in commands.items()}
        try:
            turns.rounds({f"warming up {name}": job for name, job in jobs.items()}, 1, conversion.said)
            turns.rounds(jobs, self.measuring.rounds, conversion.said)
        finally:
            for rest in (room, ctx.run_dir / conversion.BYTECODE):
                shutil.rmtree(rest, ignore_errors=True)
        if CP in turns.failed:
            raise StageError(f"bench: {CP}: {turns.failed[CP]}")
        rows = [self._row(name, turns, apart) for name in (CP, *self.ours, *self.peers)]
        return self.measuring.record(
            ctx.run_dir, BENCHMARK, rows, conversion.tables, conversion.figures(rows),
            **turns.took,
        )  # fmt: skip

    @property
    def _quant(self) -> str:
        said = [o.partition("=")[2] for o in self.overrides if o.lstrip("+").partition("=")[0] == "quant"]
        return said[-1] if said else "keep"

    def _typed(self, source: Path, room: Path, more: tuple[str, ...]) -> tuple[str, ...]:
        """Our command, which finds nothing that an earlier run has left."""
        from pipeline.config.overrides import quoted  # Hydra's grammar, which no other worker needs

        places = {
            "model.source": source, "export.path": room / "out/export", "paths.run": room / "run",
            "paths.outputs": room / "runs",
        }  # fmt: skip
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
