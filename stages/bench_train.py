"""Bench train: an update of a model by our training, beside others from the same weights with the same tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar

from pipeline.bench import training
from pipeline.bench.limits import NAME, Limit, Limits, reached
from pipeline.bench.measuring import WRITES, Benched, Measuring
from pipeline.bench.rows import unmeasured
from pipeline.bench.training import Trainer, Updates
from pipeline.bench.turns import Turns
from pipeline.bounds import outside
from pipeline.errors import ConfigError, did_you_mean
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from stages.bench_work import vocabulary

HOST_NBYTES = 2 << 30  # of a process, with its libraries and what a step leaves between forth and back
MASTERS = 4 * 4  # bytes a value: weights, gradients and two moments
BENCHMARK = "train"
MOST = 1_000_000  # rows, tokens of one, updates: more than any machine does while somebody waits


@dataclass(frozen=True)
class BenchTrain:
    """Measure updates, each trainer in a process of its own, in rounds.

    All begin with the same weights, tokens and rates, so their losses are the same, or one of them is wrong.

    Attributes:
        known: trainers, by name.
        trainers: those that are measured.
        reference: whose losses are what is right, if it could be measured.
        limits: what the machine can do.
        rows, length: tokens of an update.
        steps: updates that count, after two that compile.
        rate: of learning.
        wrong_loss: share of a loss that trainers may lie apart from the reference.
        measuring: how often, on how many cores, against what.
    """

    known: Mapping[str, Trainer]
    trainers: tuple[str, ...]
    reference: str
    limits: Limits
    rows: int
    length: int
    steps: int
    rate: float
    wrong_loss: float
    measuring: Measuring

    writes: ClassVar[tuple[str, ...]] = WRITES

    def __post_init__(self) -> None:
        if not self.trainers:
            raise ConfigError("bench.trainers=[]: at least one is needed")
        for name in self.trainers:
            if name not in self.known:
                raise ConfigError(f"bench.trainers: there is no trainer {name!r}{did_you_mean(name, [*self.known])}")
        if self.reference not in self.known:
            near = did_you_mean(self.reference, [*self.known])
            raise ConfigError(f"bench.reference: there is no trainer {self.reference!r}{near}")
        for name, (least, most) in {"rows": (1, MOST), "length": (2, MOST), "steps": (1, MOST)}.items():
            if why := outside(number := getattr(self, name), least, most):
                raise ConfigError(f"bench.{name}={number}: {why}")
        for name in ("rate", "wrong_loss"):
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"bench.{name}={value}: more than 0 is allowed")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        vocabulary(checkpoint)
        self.measuring.baseline(BENCHMARK, self._workload)
        values = sum(spec.size for spec in checkpoint.store.specs.values())
        return Prediction(None, Footprint(host_nbytes=HOST_NBYTES + MASTERS * values))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Benched:
        """
        Raises:
            ConfigError: the baseline asked something else.
            StageError: the limits could not be measured.
        """
        self.measuring.baseline(BENCHMARK, self._workload, ctx.run_dir)
        turns = Turns(ctx.run_dir, ctx.key, self.measuring.cores)
        given = replace(checkpoint, opener=None, keeping=None)  # which no other process needs
        apart = {name: why for name in self.trainers if (why := self._apart(self.known[name], checkpoint))[0]}
        jobs: dict[str, Any] = {NAME: Limit(self.limits, turns.threads)}
        for name in self.trainers:
            if name not in apart:
                jobs[name] = Updates(
                    self.known[name], given, self.rows, self.length, vocabulary(checkpoint), self.steps, self.rate,
                    turns.threads,
                )  # fmt: skip
        turns.rounds(jobs, self.measuring.rounds, training.said)
        limit = reached(turns)["multiply_add"]
        rows = [self._row(name, turns, apart, limit) for name in self.trainers]
        return self.measuring.record(
            ctx.run_dir, BENCHMARK, rows, training.tables, training.figures(rows), limits={"multiply_add": limit},
            **turns.took, reference=self._reference(turns),
            workload=self._workload,
        )  # fmt: skip

    @property
    def _workload(self) -> dict[str, Any]:
        return {"rows": self.rows, "length": self.length, "steps": self.steps, "rate": self.rate}

    def _apart(self, trainer: Trainer, checkpoint: Checkpoint) -> tuple[str, str]:
        """State and reason of one that is not measured; empty: it is."""
        if how := [how for module, how in trainer.needs.items() if find_spec(module) is None]:
            return "missing", f"not installed; {'; '.join(dict.fromkeys(how))}"
        why = trainer.why_not(checkpoint)
        return ("unsupported" if why else ""), why

    def _reference(self, turns: Turns) -> str:
        """Whose losses are right: the one that was named, else the first that was measured."""
        measured = [name for name in self.trainers if name not in turns.failed and turns.found(name)]
        return self.reference if self.reference in measured else measured[0] if measured else ""

    def _row(self, name: str, turns: Turns, apart: Mapping[str, tuple[str, str]], limit: float) -> dict[str, Any]:
        what = f"{self.rows} × {self.length}"
        if name in apart:
            return unmeasured(name, what, *apart[name])
        if name in turns.failed:
            return unmeasured(name, what, "failed", turns.failed[name])
        right = turns.found(self._reference(turns))[0]["losses"]
        said = [training.wrong(found["losses"], right, self.wrong_loss) for found in turns.found(name)]
        why = next(filter(None, said), "")
        flops = max(r["flops"] for other in self.trainers for r in turns.found(other))  # the model is the same
        return training.row(name, what, turns.found(name), why, flops / limit, turns.others(name))
