"""What is to become small, as nodes: sums over the tokens or rows of a batch, which a step divides once.

Each gives (sum of losses, sum of weights, name → (sum, weight) of what else is to be seen), so that micro-batches and
devices add up before anything is divided.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.errors import PlanError, Problem

Sums = tuple[Any, Any, dict[str, tuple[Any, Any]]]


class Objective(Protocol):
    """A plugin node."""

    def sums(self, model: Any, batch: Mapping[str, Any], key: Any) -> Sums:
        """Of one micro-batch, as it lies on one device; float32 numbers.

        Args:
            model: with its weights.
            batch: name → array, whose first dimension counts examples.
            key: of random numbers.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class CausalLM:
    """Cross-entropy of the next token; batches have tokens, targets, weights, positions and segments, `[B, T]` each.

    Attributes:
        z_loss: factor on the square of log Σ exp(logits), which keeps logits from drifting (arXiv 2204.02311, 5).
        logits_nbytes: of logits that stand in memory together, at most, unless one token has more.
    """

    z_loss: float = 0.0
    logits_nbytes: int = 32 << 20

    def __post_init__(self) -> None:
        if not self.z_loss >= 0:
            raise PlanError([Problem("z_loss", f"{self.z_loss}: a factor from 0 is needed")])

    def sums(self, model: Any, batch: Mapping[str, Any], key: Any) -> Sums:
        from plugins.train.losses import next_token

        hidden, _ = model(batch["tokens"], batch["positions"], segments=batch["segments"])
        loss, right = next_token(model, hidden, batch["targets"], batch["weights"], self.z_loss, self.logits_nbytes)
        weight = batch["weights"].sum()
        return loss, weight, {"accuracy": (right, weight)}
