"""Bench parts: a step of a model beside its ops, each measured alone: where its time goes."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pipeline.bench import parts
from pipeline.bench.limits import NAME, Limit, Limits, reached
from pipeline.bench.measuring import WRITES, Benched, Measuring
from pipeline.bench.parts import Apart, Steps
from pipeline.bench.turns import Turns
from pipeline.bounds import DAY_S
from pipeline.errors import ConfigError, StageError
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from stages.bench_work import vocabulary

HOST_NBYTES = 1 << 30  # of a process, with its libraries, programs, and what a step leaves
BENCHMARK, JOB = "parts", "the model"


@dataclass(frozen=True)
class BenchParts:
    """Measure steps of a model, whole and op by op, in rounds.

    Attributes:
        apart: who runs them.
        prompts: tokens that are read in a step, at once.
        contexts: tokens before one that is generated.
        seconds: that each part is repeated for, in each round.
        limits: what the machine can do.
        measuring: how often, on how many cores, against what.
    """

    apart: Apart
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: float
    limits: Limits
    measuring: Measuring

    writes: ClassVar[tuple[str, ...]] = WRITES

    def __post_init__(self) -> None:
        if not (self.prompts or self.contexts):
            raise ConfigError("bench.prompts=[], bench.contexts=[]: at least one of them is needed")
        for name in ("prompts", "contexts"):
            given = getattr(self, name)
            if any(n < 1 for n in given) or len({*given}) < len(given):
                raise ConfigError(f"bench.{name}={list(given)}: numbers, 1 or more, each once")
        self.apart.check(self.prompts)
        if not 0 < self.seconds <= DAY_S:
            raise ConfigError(f"bench.seconds={self.seconds}: more than 0 is allowed, {DAY_S:,.0f} at most")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        vocabulary(checkpoint)
        self.measuring.baseline(BENCHMARK)
        nbytes = sum(checkpoint.stored.values())
        return Prediction(None, Footprint(
            host_nbytes=HOST_NBYTES + 2 * nbytes, moved_nbytes=self.measuring.rounds,
            rate=f"parts {nbytes} {self.prompts} {self.contexts} {self.seconds}",
        ))  # fmt: skip

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Benched:
        """
        Raises:
            ConfigError: the baseline is of other weights.
            StageError: the limits, or the model, could not be measured.
        """
        self.measuring.baseline(BENCHMARK, run=ctx.run_dir)
        turns = Turns(ctx.run_dir, ctx.key, self.measuring.cores)
        given = replace(checkpoint, opener=None, keeping=None)  # which no other process needs
        jobs: dict[str, Any] = {
            NAME: Limit(self.limits, turns.threads),
            JOB: Steps(self.apart, given, self.prompts, self.contexts, self.seconds),
        }
        turns.rounds(jobs, self.measuring.rounds, parts.said)
        if JOB in turns.failed:
            raise StageError(f"bench: {JOB}: {turns.failed[JOB]}")
        most = reached(turns)
        rows = parts.rows(turns.found(JOB), most["read"], turns.others(JOB))
        return self.measuring.record(
            ctx.run_dir, BENCHMARK, rows, parts.tables, parts.figures(rows), limits=most,
            **turns.took, workload={"prompts": self.prompts, "contexts": self.contexts},
        )  # fmt: skip
