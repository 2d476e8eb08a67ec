"""Updates, one after another, from wherever an earlier try had come: the loop around the step.

All that it does is a function of the update's number: which examples it takes, what is random in it. So a state and
that number are all there is to be saved, and whoever goes on from them gets the same bits.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pipeline import tracing
from pipeline.errors import StageError, shown
from pipeline.hooks import optional
from pipeline.records.points import METRICS
from pipeline.running import member, text_stream
from pipeline.training import Examples, Splits, indices
from plugins.train.checkpoints import Checkpoints
from plugins.train.compiled import Compiled
from plugins.train.objectives import ObjectiveHooks
from plugins.train.options import STATES, Looking, Saving
from plugins.train.step import State, Step
from plugins.train.watch import Line, Metrics, norms_of, types

BEST = "best"

Sampler = Callable[[Mapping[str, Any], int], Mapping[str, str]]


@dataclass(frozen=True)
class Plan:
    """How a loop goes; see `plugins.train.trainer.Trainer`.

    Attributes:
        at_once: examples of a micro-batch.
        flops: of a token, or an example, forth and back; 0: not known.
        peak: FLOP/s of all devices; None: not known.
        look_share: what an evaluation takes, in updates.
        sample: (parameters, update) → prompt → text.
    """

    steps: int
    batch: int
    at_once: int
    seed: int
    save: Saving
    look: Looking
    flops: float = 0.0
    peak: float | None = None
    look_share: float = 0.0
    sample: Sampler | None = None


@dataclass
class Progress:
    """What a saved state has beside its arrays.

    Attributes:
        metrics_nbytes: of the rows up to here.
        amount: tokens, or examples, that updates went through.
        first, last, best: losses on what is held out: before the first update, the latest, the least; None: there was
            no evaluation.
        best_step: updates before the best.
        worse: evaluations since.
        shown: what else the latest evaluation found.
    """

    metrics_nbytes: int = 0
    amount: int = 0
    first: float | None = None
    last: float | None = None
    best: float | None = None
    best_step: int = 0
    worse: int = 0
    shown: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What a loop gives.

    Attributes:
        parameters: name → float32 master.
        step: updates that they have had.
        loss: of the last tenth of all updates, those of earlier tries too, the mean.
        progress: what came of it.
        stopped: why it ended before the last update; empty: it did not.
        seconds: of the updates of this process but its first, which is compiled meanwhile; `made`, how many it made in
            all, and `began`, how many there were before it.
        repeated: these seconds with those of evaluations, and how many updates that is.
        rows: of metrics, those of earlier tries too.
    """

    parameters: Mapping[str, Any]
    step: int
    loss: float
    progress: Progress
    stopped: str
    seconds: float
    made: int
    began: int
    repeated: tuple[float, float]
    rows: Sequence[Mapping[str, Any]]


class Programs:
    """A step and its loss alone, compiled where they are first used.

    Attributes:
        update: see `plugins.train.step.Step.update`; uses up the state that it is given.
        sums: (parameters, frozen, taught, batch [1, B, …]) → what the objective gives, with nothing random in it.
        shown, perplexity: see `plugins.train.objectives.ObjectiveHooks`.
        placed, rows: batches of the host, on the devices; and which rows of one this process has.
        shared: what every device needs all of, on the devices.
        frozen, taught: what both take beside the parameters, and nothing changes; the latter are a teacher's weights.
    """

    def __init__(
        self, step: Step, options: Mapping[str, Any] | None = None, frozen: Mapping[str, Any] | None = None,
        taught: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        """
        Args:
            options: for the compiler.
        """
        self.frozen, self.taught = dict(frozen or {}), dict(taught or {})
        self.placed, self.rows, self.shared = step.placed, step.rows, step.shared
        self.perplexity = optional(step.gradients.objective, ObjectiveHooks, "perplexity")
        self.shown = optional(step.gradients.objective, ObjectiveHooks, "shown")

        def sums(parameters: Any, frozen: Any, taught: Any, batch: Any) -> Any:
            return step.gradients.evaluated(parameters, jax.tree.map(lambda a: a[0], batch), frozen, taught)

        self.update = Compiled(step.update, options, donate=(0,))
        self.sums = Compiled(sums, options)


class Loop:
    """The updates of one training."""

    def __init__(self, plan: Plan, programs: Programs, data: Splits):
        self.plan, self.programs, self.data = plan, programs, data
        self.unit = "tokens" if "tokens" in data.train.specs else "examples"
        self.key = programs.shared(jax.random.key(plan.seed))

    def run(
        self, begin: Callable[[], State], shapes: State, folder: Path | None = None, files: tuple[Path, ...] = (),
        picture: Path | None = None, resume: Path | None = None, name: str = "train",
    ) -> Found:  # fmt: skip
        """Train, from the latest state that is saved in `folder`, or else from that which `begin` gives.

        Args:
            shapes: of a state, and where it lies; see `plugins.train.step.Step.described`.
            folder: where states are saved; None: nowhere.
            files: where rows of metrics go, too.
            picture: where the losses are drawn, however it ends.
            resume: a folder of another training, whose latest state is begun with where `folder` has none.
            name: for people.

        Raises:
            StageError: a loss or gradient is not finite.
            StorageError: states or metrics cannot be saved.
        """
        with ExitStack() as stack:
            saves = _opened(stack, folder, STATES, self.plan.save.keep)
            best = _opened(stack, folder, BEST, 1) if self.plan.look.patience is not None else None
            found = saves.latest(shapes) if saves is not None else None
            if found is None and resume is not None:
                found = _taken_over(stack, resume, folder, shapes, self.plan.steps)
            held, progress = (begin(), Progress()) if found is None else (found[0], Progress(**found[1]))
            rows = (folder / METRICS, *files) if folder is not None else files
            metrics = Metrics(rows, progress.metrics_nbytes, types(self.unit)) if member.first() else Metrics(())
            stack.callback(metrics.close)
            if picture is not None and member.first():
                stack.callback(metrics.picture, picture)
            if found is not None:
                text_stream.write(f"{name}: going on after update {int(held['step'])}\n")
            return _Run(self, name, held, progress, metrics, saves, best).updates()

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """What the update after `step` others goes through, [accumulate, B, …]: of B the rows of this process."""
        plan = self.plan
        at = indices(plan.seed, step, plan.batch, len(self.data.train)).reshape(-1, plan.at_once)
        at = at[:, self.programs.rows(plan.at_once)]
        found = self.data.train.batch(at.reshape(-1))
        return {n: a.reshape(*at.shape, *a.shape[1:]) for n, a in found.items()}

    def batches(self, begin: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """(updates before it, batch on the devices) from `begin`; the next is made while one is at work."""
        with ThreadPoolExecutor(1) as aside:
            due = aside.submit(self.batch, begin)
            for step in range(begin, self.plan.steps):
                start = tracing.clock() if tracing.active else 0.0
                batch = due.result()
                tracing.done("wait for the batch", "data", start, step=step + 1)
                if step + 1 < self.plan.steps:
                    due = aside.submit(self.batch, step + 1)
                yield step, self.programs.placed(batch, self.plan.at_once)

    def held_out(self, parameters: Mapping[str, Any]) -> dict[str, float]:
        """The mean `loss` on what is held out, and what else the objective shows; empty: nothing is held out."""
        if (examples := self.data.held_out) is None or not len(examples):
            return {}
        totals: dict[str, np.ndarray] = {}
        own, at_once = self.programs, self.plan.at_once
        for batch in through(examples, self.plan.look.examples, at_once, own.rows(at_once)):
            placed = own.placed({name: a[None] for name, a in batch.items()}, at_once)
            loss, weight, seen = jax.device_get(own.sums(parameters, own.frozen, own.taught, placed))
            for name, sums in {"loss": (loss, weight), **seen}.items():
                totals[name] = totals.get(name, np.zeros(2)) + np.asarray(sums, np.float64)
        means = {name: float(total / weight) for name, (total, weight) in totals.items() if weight}
        shown = means if self.programs.shown is None else {"loss": means["loss"], **self.programs.shown(means)}
        return shown if "loss" in means else {}


class _Run:
    """A loop at work."""

    def __init__(
        self, loop: Loop, name: str, state: State, progress: Progress, metrics: Metrics, saves: Checkpoints | None,
        best: Checkpoints | None,
    ):  # fmt: skip
        self.loop, self.name, self.state, self.progress, self.metrics = loop, name, state, progress, metrics
        self.saves, self.best = saves, best
        self.names = sorted(state["parameters"])
        self._looked: list[float] = []  # seconds of evaluations
        self.line = Line(name, loop.plan.steps, loop.unit, loop.plan.flops, loop.plan.peak)

    def updates(self) -> Found:
        """All that are left."""
        plan, progress, programs = self.loop.plan, self.progress, self.loop.programs
        began = step = int(self.state["step"])
        if not step:
            self._look(0)
        saved, spent, stopped = time.monotonic(), 0.0, ""
        for before, batch in self.loop.batches(began):
            self.line.begin()
            start = tracing.clock() if tracing.active else 0.0
            self.state, figures = programs.update(self.state, batch, self.loop.key, programs.frozen, programs.taught)
            self._row(before, dict(jax.device_get(figures)))
            step = before + 1
            if start:
                tracing.done("update", "execute", start, step=step)
            spent += self.metrics.rows[-1]["seconds"] if before > began else 0.0
            last = step == plan.steps
            if last or (plan.look.every and step % plan.look.every == 0):
                stopped = "" if self._look(step) else f"no better for {plan.look.patience} evaluations"
            if stopped:
                break
            due = plan.save.seconds is not None and member.agreed(time.monotonic() - saved >= plan.save.seconds)
            if not last and (due or (plan.save.every and step % plan.save.every == 0)):
                self._save(step)
                saved = time.monotonic()
        parameters, made = self.state["parameters"], step - began
        if self.best is not None and progress.best is not None and progress.best_step != step:
            self.best.wait()
            if (found := self.best.latest(parameters)) is not None:
                parameters, step = found[0], progress.best_step
        losses = [row["loss"] for row in self.metrics.rows if row["kind"] == "train"]
        tail = losses[-max(1, len(losses) // 10) :]
        loss = float(np.mean(tail)) if tail else float("nan")
        looked = self._looked[1:]  # the first is compiled meanwhile
        repeated = spent + sum(looked), max(0, made - 1) + len(looked) * plan.look_share
        return Found(parameters, step, loss, progress, stopped, spent, made, began, repeated, self.metrics.rows)

    def _row(self, before: int, figures: dict[str, Any]) -> None:
        """Write down what the update after `before` others was like.

        Raises:
            StageError: it is not finite, or a gradient is not.
        """
        amount = int(figures.pop("amount"))
        norms, changes = (
            dict(zip(self.names, map(float, figures[f"{of}_norms"]), strict=True)) for of in ("gradient", "update")
        )
        numbers, groups = {n: float(v) for n, v in figures.items() if np.ndim(v) == 0}, self.loop.plan.look.groups
        said = numbers | norms_of(groups, norms, "gradient") | norms_of(groups, changes, "update")
        speed, nbytes = self.line.update(before + 1, numbers, amount), self.metrics.nbytes
        self.metrics.row("train", step=before + 1, **said, **{self.loop.unit: amount}, **speed)
        if not (isfinite(numbers["loss"]) and isfinite(numbers["gradient_norm"])):
            self._not_finite(before, numbers, norms, nbytes)
        self.progress.amount += amount

    def _not_finite(self, before: int, numbers: Mapping[str, float], norms: Mapping[str, float], nbytes: int) -> None:
        """
        Args:
            nbytes: of the rows before this update's, which whoever goes on makes again.
        """
        kept = ""
        if self.saves is not None:  # the step has left the state as it was before
            self._save(before, nbytes)
            self.saves.wait()
            member.agreed()  # all have; who hears of this ends those that have not
            kept = f"; the state after update {before} is kept in {self.saves.folder}"
        bad = [f"{name}: {norm}" for name, norm in norms.items() if not isfinite(norm)]
        where = f"; gradients that are not finite: {', '.join(shown(bad))}" if bad else "; all gradients are finite"
        raise StageError(
            f"{self.name}: update {before + 1}: the loss is {numbers['loss']}, the norm of all gradients "
            f"{numbers['gradient_norm']}{where}{kept}. A lower rate, a longer warmup or clipping may help"
        )

    def _look(self, step: int) -> bool:
        """Evaluate; returns whether it is worth going on."""
        progress, plan = self.progress, self.loop.plan
        parameters, start = self.state["parameters"], time.perf_counter()
        if found := self.loop.held_out(parameters):
            loss = found["loss"]
            self.metrics.row("held_out", step=step, **found)
            said = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            text_stream.write(f"{self.name}: after update {step}: held-out {said}\n")
            progress.shown = {name: value for name, value in found.items() if name != "loss"}
            progress.first = loss if step == 0 else progress.first
            progress.last = loss
            if progress.best is None or loss < progress.best:
                progress.best, progress.best_step, progress.worse = loss, step, 0
                if self.best is not None:
                    self.best.save(step, parameters, {})
            else:
                progress.worse += 1
        if plan.sample is not None:
            for prompt, text in plan.sample(parameters, step).items():
                self.metrics.row("sample", step=step, prompt=prompt, text=text)
                text_stream.write(f"{self.name}: after update {step}: {prompt}{text}\n")
        self._looked.append(time.perf_counter() - start)
        if tracing.active:
            tracing.done("evaluate", "execute", start, self._looked[-1], step=step)
        return plan.look.patience is None or progress.worse < plan.look.patience

    def _save(self, step: int, nbytes: int | None = None) -> None:
        """
        Args:
            nbytes: of the rows that belong to the state; None: all that there are.
        """
        if self.saves is not None:
            self.progress.metrics_nbytes = self.metrics.nbytes if nbytes is None else nbytes
            if self.best is not None:
                self.best.wait()  # what a state calls the best is there
            self.saves.save(step, self.state, asdict(self.progress))


def _taken_over(
    stack: ExitStack, resume: Path, folder: Path | None, like: State, steps: int
) -> tuple[State, dict[str, Any]]:
    """The latest state of another training, and its rows of metrics in `folder`.

    Args:
        steps: updates in all.

    Raises:
        StageError: it has none, or one of other parameters or another optimizer, or after more updates.
        StorageError: none can be read.
    """
    found = None
    if (resume / STATES).is_dir():
        other = Checkpoints(resume / STATES, None)
        stack.callback(other.close)
        if unlike := other.unlike(like):
            text = "its state is not of these parameters and this optimizer"
            raise StageError(f"train.resume={resume}: {text}: {unlike}; without train.resume a training begins anew")
        found = other.latest(like)
    if found is None:
        raise StageError(f"train.resume={resume}: no state of a training is there")
    if (come := int(found[0]["step"])) > steps:
        text = f"its state is after update {come}, and these are {steps} in all"
        raise StageError(
            f"train.resume={resume}: {text}; train.steps={come} gives its weights as they are, more goes on"
        )
    if folder is not None and member.first():
        shutil.copyfile(resume / METRICS, folder / METRICS)
    return found


def _opened(stack: ExitStack, folder: Path | None, name: str, keep: int) -> Checkpoints | None:
    if folder is None:
        return None
    found = Checkpoints(folder / name, keep)
    stack.callback(found.close)
    return found


def through(examples: Examples, most: int | None, at_once: int, rows: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Examples in batches of one shape, of which these rows; what fills the last one up has no weight."""
    count = len(examples) if most is None else min(most, len(examples))
    for begin in range(0, count, at_once):
        at = begin + rows
        batch = examples.batch(np.minimum(at, count - 1))
        batch["weights"] = np.where((at < count).reshape(-1, *[1] * (batch["weights"].ndim - 1)), batch["weights"], 0)
        yield batch
