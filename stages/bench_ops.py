"""Bench ops: every op with every backend that runs it here, beside peers and beside what the machine can do."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pipeline.bench import limits, op_rows
from pipeline.bench.measuring import WRITES, Benched, Measuring
from pipeline.bench.op import Backends, Measure, Runner, Suite
from pipeline.bench.rows import unmeasured
from pipeline.bench.turns import Turns
from pipeline.bounds import DAY_S
from pipeline.errors import ConfigError, did_you_mean
from pipeline.stage import Context, Footprint, Prediction

HOST_NBYTES = (1 << 30) + (96 << 20)  # of what a limit is measured with: 512 MiB of each of two threads
PROCESS_NBYTES = 400 << 20  # of one that measures: libraries, compiled programs
RECORD_NBYTES = 2 << 20  # of notes, bench.json and programs that are compiled
PROGRAMS = "programs"
BENCHMARK = "ops"


@dataclass(frozen=True)
class BenchOps:
    """Measure ops, each backend in a process of its own, in rounds.

    Every result is held to the op's definition: what is wrong is marked, and has no figures.

    Attributes:
        suites: cases, by op.
        ops: those that are measured.
        backends: of ours, by name or dotted name, and peers, by name.
        ours: what knows ours.
        peers: by name.
        limits: what the machine can do.
        seconds: that each case is repeated for, in each round.
        measuring: how often, on how many cores, against what.
    """

    suites: Mapping[str, Suite]
    ops: tuple[str, ...]
    backends: tuple[str, ...]
    ours: Backends
    peers: Mapping[str, Runner]
    limits: limits.Limits
    seconds: float
    measuring: Measuring

    writes: ClassVar[tuple[str, ...]] = WRITES

    def __post_init__(self) -> None:
        for key, given in (("bench.ops", self.ops), ("bench.backends", self.backends)):
            if not given:
                raise ConfigError(f"{key}=[]: at least one is needed")
            if twice := [name for i, name in enumerate(given) if name in given[:i]]:
                raise ConfigError(f"{key}: {twice[0]} is named twice")
        for op in self.ops:
            if op not in self.suites:
                raise ConfigError(f"bench.ops: there is no op {op!r}{did_you_mean(op, [*self.suites])}")
        if not 0 < self.seconds <= DAY_S:
            raise ConfigError(f"bench.seconds={self.seconds}: more than 0 is allowed, {DAY_S:,.0f} at most")
        assert self._runners(None)

    def _runners(self, programs: Path | None) -> dict[str, Runner]:
        """
        Args:
            programs: where ours may keep what they compile.

        Raises:
            ConfigError: there is no such backend.
        """
        known = [*self.ours.names, *self.peers, "the dotted name of a module"]
        for name in self.backends:
            if "." not in name and name not in known:
                raise ConfigError(f"bench.backends: there is no backend {name!r}{did_you_mean(name, known)}")
        return {
            name: self.peers[name] if name in self.peers else self.ours.of(name, programs) for name in self.backends
        }

    def plan(self) -> Prediction:
        self.measuring.baseline(BENCHMARK)
        sizes = [self.suites[op].nbytes for op in self.ops]
        return Prediction(None, Footprint(
            host_nbytes=max(HOST_NBYTES, PROCESS_NBYTES + max(sizes)), disk_nbytes=RECORD_NBYTES,
            moved_nbytes=self.measuring.rounds * sum(sizes), rate=f"{','.join(self.backends)} {','.join(self.ops)}",
        ))  # fmt: skip

    def run(self, ctx: Context) -> Benched:
        """
        Raises:
            StageError: the limits could not be measured, or nothing could.
        """
        self.measuring.baseline(BENCHMARK)
        turns = Turns(ctx.run_dir, ctx.key, self.measuring.cores)
        suites = {op: self.suites[op] for op in self.ops}
        programs = ctx.run_dir / PROGRAMS
        runners, lacking = self._runners(programs), {}
        for name, runner in runners.items():
            if how := [how for module, how in runner.needs.items() if find_spec(module) is None]:
                lacking[name] = f"not installed; {'; '.join(dict.fromkeys(how))}"
        jobs: dict[str, Any] = {limits.NAME: limits.Limit(self.limits, turns.threads)}
        jobs |= {name: Measure(suites, runner, self.seconds) for name, runner in runners.items() if name not in lacking}
        try:
            turns.rounds(jobs, self.measuring.rounds, op_rows.said)
        finally:
            shutil.rmtree(programs, ignore_errors=True)
        most = limits.reached(turns)
        rows = [row for name in runners for row in self._rows(name, turns, lacking, most)]
        return self.measuring.record(
            ctx.run_dir, BENCHMARK, rows, op_rows.tables, op_rows.figures(rows), limits=most,
            **turns.took, workload={"ops": self.ops, "seconds": self.seconds},
        )  # fmt: skip

    def _rows(
        self, name: str, turns: Turns, lacking: Mapping[str, str], most: Mapping[str, float]
    ) -> list[op_rows.Row]:
        if name in lacking:
            return [unmeasured(name, op_rows.EVERY, "missing", lacking[name])]
        if name in turns.failed:
            return [unmeasured(name, op_rows.EVERY, "failed", turns.failed[name])]
        return op_rows.of_runner(name, turns.found(name), most, turns.others(name))
