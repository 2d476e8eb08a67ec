"""What a benchmark of training is made of: programs that make updates of one model, and what a process of one finds."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Protocol

import numpy as np

from pipeline.bench import tables as common
from pipeline.bench.rows import BUSY, Metric
from pipeline.figures import Cell, Figure
from pipeline.running import peak
from pipeline.stage import Checkpoint, Table
from pipeline.units import show_bytes

COMPILING = 2  # updates before those that count


class Trainer(Protocol):
    """Who trains a model: AdamW at a rate that stays, 0.9 and 0.95, decay 0.1 but for norms and biases, gradients
    clipped to a norm of 1, all in float32; the loss is the mean cross-entropy of the next tokens."""

    @property
    def needs(self) -> Mapping[str, str]:
        """Modules, and what to type where they are not installed."""

    def why_not(self, checkpoint: Checkpoint) -> str:
        """Why it cannot train this, in words; empty: it can."""

    def begin(self, checkpoint: Checkpoint, tokens: Any, rate: float, threads: int) -> Callable[[], float]:
        """What makes an update with `tokens` [B, T] int32, always the same, and gives the loss before it."""

    def flops_of_token(self, checkpoint: Checkpoint) -> float:
        """That an update takes; 0: it is not known."""

    def versions(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Updates:
    """A process: some updates of a model.

    Attributes:
        rows, length: tokens of an update, at random and always the same, below `vocab`.
        steps: that count.
    """

    trainer: Trainer
    checkpoint: Checkpoint
    rows: int
    length: int
    vocab: int
    steps: int
    rate: float
    threads: int

    def __call__(self) -> Mapping[str, Any]:
        tokens = np.random.default_rng(0).integers(self.vocab, size=(self.rows, self.length)).astype(np.int32)
        start = time.perf_counter()
        update = self.trainer.begin(self.checkpoint, tokens, self.rate, self.threads)
        losses, took = [], []
        for _ in range(COMPILING + self.steps):
            losses.append(float(update()))
            now = time.perf_counter()
            took.append(now - start)
            start = now
        return {
            "s": statistics.median(took[COMPILING:]), "first": took[0], "losses": losses, "peak": peak.nbytes(),
            "tokens": self.rows * self.length, "flops": self.trainer.flops_of_token(self.checkpoint),
            "versions": dict(self.trainer.versions()),
        }  # fmt: skip


def said(found: Mapping[str, Any]) -> str:
    """What a round found, in a line."""
    if "losses" not in found:
        return f"{found['multiply_add'] / 1e9:.0f} GFLOP/s"
    return f"{1e3 * found['s']:.0f} ms, {found['tokens'] / found['s']:.0f} tokens/s, loss {found['losses'][-1]:.4f}"


def wrong(losses: Sequence[float], reference: Sequence[float], most: float) -> str:
    """Why a trainer computes something else than the reference; empty: it does not.

    Args:
        most: share of a loss that two may lie apart.
    """
    if not all(map(isfinite, losses)):
        return "its losses are not finite"
    for i, (a, b) in enumerate(zip(losses, reference, strict=True)):
        if abs(a - b) > most * abs(b):
            return f"loss {a:.4f} of update {i + 1}, and {b:.4f} of the reference"
    return ""


def row(
    name: str, what: str, rounds: Sequence[Mapping[str, Any]], why_wrong: str, least: float, others: float
) -> dict[str, Any]:
    """As bench.json has it.

    Args:
        least: seconds that a token takes where the machine does nothing but multiply and add.
    """
    step = Metric.of([1e3 * r["s"] for r in rounds], "ms", "lower")
    memory = Metric.of([r["peak"] for r in rounds], "B", "lower")
    tokens = rounds[0]["tokens"]
    return {
        "engine": name, "quant": what, "state": "measured", "why": "", "wrong": why_wrong, "others": others,
        "busy": others > BUSY, "metrics": {"step": asdict(step), "peak memory": asdict(memory)},
        "tokens_per_s": 1e3 * tokens / step.value, "first_s": statistics.median(r["first"] for r in rounds),
        "of_multiply_add": least * tokens / (step.value / 1e3), "losses": rounds[0]["losses"],
        "versions": rounds[0]["versions"],
    }  # fmt: skip


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Tokens a second."""
    return {r["engine"]: Figure(r["tokens_per_s"], "tokens/s", ".0f", "higher") for r in rows if r["metrics"]}


def tables(rows: Sequence[Mapping[str, Any]], worse: Sequence[str], against: str | None) -> tuple[Table, ...]:
    """What was measured, what was not, and what got worse."""
    measured = [r for r in rows if r["state"] == "measured"]
    columns = (
        "", "ms a step", "tokens/s", "of multiplying", "first step, s", "peak memory", "first loss", "last loss",
        "others, cores", "verdict",
    )  # fmt: skip
    shown = Table(common.titled("Training", measured), columns, tuple(tuple(_cells(r)) for r in measured))
    return (shown, *common.rest(rows, ("by", "tokens"), worse, against))


def _cells(found: Mapping[str, Any]) -> Iterator[Cell]:
    step = found["metrics"]["step"]
    yield f"✗ {found['engine']}" if found["wrong"] else found["engine"]
    yield f"{step['value']:.0f}{common.apart(step)}"
    yield f"{found['tokens_per_s']:.0f}"
    yield f"{found['of_multiply_add']:.0%}" if found["of_multiply_add"] else "–"
    yield f"{found['first_s']:.1f}"
    yield show_bytes(found["metrics"]["peak memory"]["value"])
    yield f"{found['losses'][0]:.4f}"
    yield f"{found['losses'][-1]:.4f}"
    yield f"{found['others']:.1f}{common.BUSY if found['busy'] else ''}"
    yield f"✗ wrong: {found['wrong']}" if found["wrong"] else "right"
