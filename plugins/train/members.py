"""A population from its first update to its last: seeds × rates of one small model, trained at once in one program.

Every member is what it would be alone: with the weights, the examples and the random numbers of its seed. One whose
loss is no number any more stays as it was before, and is out; the others go on.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pipeline import tracing
from pipeline.errors import StageError
from pipeline.records.points import METRICS
from pipeline.reporting.plots import Points, curves
from pipeline.running import text_stream
from pipeline.training import Splits
from plugins.train.checkpoints import Checkpoints
from plugins.train.loop import Loop, Plan, Programs, through
from plugins.train.options import STATES, Member
from plugins.train.populations import Population
from plugins.train.step import State, Step
from plugins.train.watch import Line, Metrics, types

MOST_CURVES = 12


@dataclass
class Progress:
    """What a saved state has beside its arrays; of lists an entry for each member.

    Attributes:
        metrics_nbytes: of the rows up to here.
        step: updates.
        losses: the last ones.
        held_out: losses on what is held out, the latest; empty: there was no evaluation.
        out: update in which a loss was no number; 0: none was.
    """

    metrics_nbytes: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    out: list[int] = field(default_factory=list)

    @property
    def judged(self) -> list[float]:
        """What a member is judged by; infinite: it is out, or it is no number."""
        losses = zip(self.held_out or self.losses, self.out, strict=True)
        return [loss if isfinite(loss) and not out else float("inf") for loss, out in losses]

    @property
    def best(self) -> int:
        """The member with the least loss."""
        return int(np.argmin(self.judged))


@dataclass(frozen=True)
class Trained:
    """What members have become.

    Attributes:
        parameters: name → `[members, …]` float32.
        progress: what came of it.
        rows: of metrics.
    """

    parameters: Mapping[str, Any]
    progress: Progress
    rows: Sequence[Mapping[str, Any]]


class Members:
    """The updates of a population."""

    def __init__(
        self, plan: Plan, step: Step, members: Sequence[Member], data: Splits, devices: Sequence[Any] = (),
    ):  # fmt: skip
        """
        Args:
            plan: of each; its seed, evaluations by patience and texts count for nothing.
            devices: JAX devices that divide the members; none: all are on JAX's first.
        """
        self.plan, self.members, self.data = plan, members, data
        where = jax.sharding.Mesh(np.array(devices), ("member",)) if len(devices) > 1 else None
        self.population = Population(step, [m.rate for m in members], where, "member")
        programs = Programs(step)
        self._of_seed = {m.seed: Loop(replace(plan, seed=m.seed), programs, data) for m in members}
        self.unit = next(iter(self._of_seed.values())).unit
        self._shown = programs.shown

    def run(
        self, begin: Callable[[int], Mapping[str, Any]], folder: Path | None = None, files: tuple[Path, ...] = (),
        picture: Path | None = None, name: str = "train",
    ) -> Trained:  # fmt: skip
        """Train, from the latest state that is saved in `folder`.

        Args:
            begin: number of a member → its parameters before its first update.
            folder: where states are saved; None: nowhere.
            files: where rows of metrics go, too.
            picture: where the losses are drawn, however it ends.
            name: for people.

        Raises:
            StageError: no member has a loss that is a number.
            StorageError: states or metrics cannot be saved.
        """
        with ExitStack() as stack:
            saves = None if folder is None else Checkpoints(folder / STATES, self.plan.save.keep)
            if saves is not None:
                stack.callback(saves.close)
            each = [begin(i) for i in range(len(self.members))]
            states = self.population.init({n: np.stack([np.asarray(w[n]) for w in each]) for n in each[0]})
            progress = Progress(out=[0] * len(self.members))
            if saves is not None and (found := saves.latest(states)) is not None:
                states, progress = found[0], Progress(**found[1])
                text_stream.write(f"{name}: going on after update {progress.step}\n")
            rows = (folder / METRICS, *files) if folder is not None else files
            metrics = Metrics(rows, progress.metrics_nbytes, types(self.unit))
            stack.callback(metrics.close)
            if picture is not None:
                stack.callback(self._draw, picture, metrics)
            return self._updates(name, states, progress, metrics, saves)

    def _updates(
        self, name: str, states: State, progress: Progress, metrics: Metrics, saves: Checkpoints | None
    ) -> Trained:
        plan, keys = self.plan, jax.vmap(jax.random.key)(np.array([m.seed for m in self.members]))
        line = Line(name, plan.steps, self.unit, plan.flops, plan.peak)
        saved = time.monotonic()
        if not progress.step:
            self._look(name, states, progress, metrics)
        for before, batch in self._batches(progress.step):
            line.begin()
            start = tracing.clock() if tracing.active else 0.0
            states, seen = self.population(states, batch, keys)
            self._row(name, before, jax.device_get(seen), progress, metrics, line)
            if start:
                tracing.done("update", "execute", start, step=progress.step, members=len(self.members))
            last = progress.step == plan.steps
            if last or (plan.look.every and progress.step % plan.look.every == 0):
                self._look(name, states, progress, metrics)
            due = plan.save.seconds is not None and time.monotonic() - saved >= plan.save.seconds
            due = due or bool(plan.save.every and progress.step % plan.save.every == 0)
            if saves is not None and due and not last:
                progress.metrics_nbytes = metrics.nbytes
                saves.save(progress.step, states, asdict(progress))
                saved = time.monotonic()
        return Trained(states["parameters"], progress, metrics.rows)

    def _batches(self, begin: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """(updates before it, name → `[members, accumulate, B, …]`); the next is made while one is at work."""

        def of(step: int) -> dict[str, Any]:
            own = {seed: loop.batch(step) for seed, loop in self._of_seed.items()}
            first = next(iter(own.values()))
            return {n: np.stack([own[m.seed][n] for m in self.members]) for n in first}

        with ThreadPoolExecutor(1) as aside:
            due = aside.submit(of, begin)
            for step in range(begin, self.plan.steps):
                start = tracing.clock() if tracing.active else 0.0
                batch = due.result()
                tracing.done("wait for the batch", "data", start, step=step + 1)
                if step + 1 < self.plan.steps:
                    due = aside.submit(of, step + 1)
                yield step, batch

    def _row(
        self, name: str, before: int, seen: Mapping[str, Any], progress: Progress, metrics: Metrics, line: Line
    ) -> None:
        """Write down what the update after `before` others was like for each member.

        Raises:
            StageError: all are out.
        """
        numbers = {n: np.asarray(v) for n, v in seen.items() if np.ndim(v) == 1}
        progress.losses, progress.step = [float(loss) for loss in numbers["loss"]], before + 1
        for i, member in enumerate(self.members):
            loss, norm = progress.losses[i], float(numbers["gradient_norm"][i])
            if not (isfinite(loss) and isfinite(norm)) and not progress.out[i]:
                progress.out[i] = before + 1
                text_stream.write(
                    f"{name}: {member} is out: update {before + 1}: the loss is {loss}, the norm {norm}\n"
                )
        best, amount = progress.best, int(numbers.pop("amount").sum())
        speed = line.update(before + 1, {"loss": progress.judged[best], "rate": float(numbers["rate"][best])}, amount)
        for i, member in enumerate(self.members):
            own = {n: float(values[i]) for n, values in numbers.items()}
            said = {"step": before + 1, "member": i, "seed": member.seed, "peak_rate": member.rate}
            metrics.row("train", **said, **own, **{self.unit: amount}, **speed)
        if all(progress.out):
            raise StageError(
                f"{name}: update {before + 1}: no member has a loss that is a number; lower rates may help"
            )

    def _look(self, name: str, states: State, progress: Progress, metrics: Metrics) -> None:
        """Evaluate every member on what is held out."""
        if (examples := self.data.held_out) is None or not len(examples):
            return
        totals: dict[str, np.ndarray] = {}
        at_once = self.plan.at_once
        for batch in through(examples, self.plan.look.examples, at_once, np.arange(at_once)):
            loss, weight, seen = jax.device_get(self.population.sums(states["parameters"], batch))
            for what, sums in {"loss": (loss, weight), **seen}.items():
                totals[what] = totals.get(what, 0.0) + np.stack([np.asarray(s, np.float64) for s in sums], axis=-1)
        means = {n: of[:, 0] / of[:, 1] for n, of in totals.items() if of[:, 1].all()}
        if "loss" not in means:
            return
        progress.held_out = [float(loss) for loss in means["loss"]]
        for i, member in enumerate(self.members):
            own = {n: float(values[i]) for n, values in means.items()}
            shown = own if self._shown is None else {"loss": own["loss"], **self._shown(own)}
            said = {"step": progress.step, "member": i, "seed": member.seed, "peak_rate": member.rate}
            metrics.row("held_out", **said, **shown)
        best = progress.best
        text = f"after update {progress.step}: the least held-out loss is {progress.held_out[best]:.4f}"
        text_stream.write(f"{name}: {text}, of {self.members[best]}\n")

    def _draw(self, path: Path, metrics: Metrics) -> None:
        """The losses of the members over updates."""
        given: dict[str, Points] = {}
        for i, member in enumerate(self.members[:MOST_CURVES]):
            rows = [
                r for r in metrics.rows if r["kind"] == "train" and r["member"] == i and isinstance(r["loss"], float)
            ]
            if rows:
                given[str(member)] = ([r["step"] for r in rows], [r["loss"] for r in rows])
        if given:
            curves(path, "Loss", "update", "loss", given)
