"""What is to become small, as nodes: sums over the tokens or rows of a batch, which a step divides once.

Each gives (sum of losses, sum of weights, name → (sum, weight) of what else is to be seen), so that micro-batches and
devices add up before anything is divided.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from pipeline.errors import PlanError, Problem
from pipeline.hooks import hooks_of

Sums = tuple[Any, Any, dict[str, tuple[Any, Any]]]
LANGUAGE: Mapping[str, str] = {"tokens": "int32", "targets": "int32"}
CLASSES: Mapping[str, str] = {"inputs": "float32", "targets": "int32"}
NUMBERS: Mapping[str, str] = {"inputs": "float32", "targets": "float32"}


class Objective(Protocol):
    """A plugin node."""

    def sums(self, model: Any, batch: Mapping[str, Any], key: Any, teacher: Any = None) -> Sums:
        """Of one micro-batch, as it lies on one device; float32 numbers.

        Args:
            model: with its weights.
            batch: name → array, whose first dimension counts examples.
            key: of random numbers.
            teacher: another model with weights, where the step has one.
        """
        ...


@hooks_of(Objective)
class ObjectiveHooks:
    """What an objective may have beside that."""

    shown: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None
    """Of means over all examples, `loss` too: what is to be shown beside the loss; None: all of them."""

    perplexity: bool = False
    """Whether exp(loss) is a perplexity."""

    reads: Mapping[str, str] = MappingProxyType({})
    """Name of an array → its dtype: of a batch, those that there have to be."""

    wants_teacher: bool = False
    """Whether there has to be a teacher."""


@dataclass(frozen=True, kw_only=True)
class CausalLM:
    """Cross-entropy of the next token; batches have tokens, targets, weights, positions and segments, `[B, T]` each.

    Attributes:
        z_loss: factor on the square of log Σ exp(logits), which keeps logits from drifting (arXiv 2204.02311, 5).
        logits_nbytes: of logits that stand in memory together, about, unless one token has more.
    """

    z_loss: float = 0.0
    logits_nbytes: int = 32 << 20

    reads: ClassVar = LANGUAGE

    @property
    def perplexity(self) -> bool:
        """See `ObjectiveHooks`."""
        return not self.z_loss

    def __post_init__(self) -> None:
        if not self.z_loss >= 0:
            raise PlanError([Problem("z_loss", f"{self.z_loss}: a factor from 0 is needed")])

    def sums(self, model: Any, batch: Mapping[str, Any], key: Any, teacher: Any = None) -> Sums:
        from plugins.train.losses import next_token

        weights = batch["weights"]
        loss, right = next_token(
            model, _hidden(model, batch), batch["targets"], weights, self.z_loss, self.logits_nbytes
        )
        return loss, weights.sum(), {"accuracy": (right, weights.sum())}


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """A teacher's distributions are to be met, and the next token to be found; batches are those of `CausalLM`.

    Attributes:
        teaching: share of the divergence KL(teacher ‖ student) in the loss; the rest is cross-entropy.
        temperature: that logits are divided by for the divergence, which is multiplied by its square.
        logits_nbytes: see `CausalLM`.
    """

    teaching: float = 1.0
    temperature: float = 1.0
    logits_nbytes: int = 32 << 20

    reads: ClassVar = LANGUAGE
    wants_teacher: ClassVar = True

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.teaching <= 1:
            problems.append(Problem("teaching", f"{self.teaching}: a share is needed, above 0 and up to 1"))
        if not self.temperature > 0:
            problems.append(Problem("temperature", f"{self.temperature}: a number above 0 is needed"))
        if problems:
            raise PlanError(problems)

    def sums(self, model: Any, batch: Mapping[str, Any], key: Any, teacher: Any = None) -> Sums:
        from plugins.train.losses import distilled, next_token

        if teacher is None:
            raise PlanError([Problem("objective", "distillation needs a teacher, and this run has none")])
        weights, hidden = batch["weights"], _hidden(model, batch)
        weight = weights.sum()
        theirs = _hidden(teacher, batch)
        kl, same = distilled(model, hidden, teacher, theirs, weights, self.temperature, self.logits_nbytes)
        loss, seen = self.teaching * kl, {"divergence": (kl, weight), "agreement": (same, weight)}
        if self.teaching < 1:
            own, right = next_token(model, hidden, batch["targets"], weights, 0.0, self.logits_nbytes)
            loss, seen = loss + (1 - self.teaching) * own, {**seen, "accuracy": (right, weight)}
        return loss, weight, seen


def _hidden(model: Any, batch: Mapping[str, Any]) -> Any:
    return model(batch["tokens"], batch["positions"], segments=batch.get("segments"))[0]


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Cross-entropy of one class among as many as the model has outputs; batches have inputs `[B, …]`, targets `[B]`
    int32 and weights `[B]`.

    Attributes:
        smoothing: share of the target that is spread over all classes (arXiv 1512.00567, 7).
    """

    smoothing: float = 0.0

    reads: ClassVar = CLASSES

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise PlanError([Problem("smoothing", f"{self.smoothing}: a share is needed, from 0 to below 1")])

    def sums(self, model: Any, batch: Mapping[str, Any], key: Any, teacher: Any = None) -> Sums:
        import jax
        import jax.numpy as jnp

        logits, weights = model(batch["inputs"]).astype(jnp.float32), batch["weights"]
        scores = jax.nn.log_softmax(logits, axis=-1)
        own = jnp.take_along_axis(scores, batch["targets"][:, None], axis=-1)[:, 0]
        loss = -(1 - self.smoothing) * own - self.smoothing * scores.mean(axis=-1)
        right = own >= scores.max(axis=-1)
        seen = {"accuracy": (jnp.where(right, weights, 0.0).sum(), weights.sum())}
        return jnp.where(weights == 0, 0.0, loss * weights).sum(), weights.sum(), seen


@dataclass(frozen=True, kw_only=True)
class Regression:
    """Squared error of one number a row; batches have inputs `[B, …]`, targets `[B]` float32 and weights `[B]`; a model
    gives `[B]` or `[B, 1]`. R² = 1 - loss / (target_squared - target²), of the figures of as many rows as you like.
    """

    reads: ClassVar = NUMBERS

    def shown(self, means: Mapping[str, float]) -> dict[str, float]:
        """See `ObjectiveHooks`."""
        variance = means["target_squared"] - means["target"] ** 2
        return {"R²": 1 - means["loss"] / variance if variance > 0 else 0.0, "absolute error": means["absolute_error"]}

    def sums(self, model: Any, batch: Mapping[str, Any], key: Any, teacher: Any = None) -> Sums:
        import jax.numpy as jnp

        targets, weights = batch["targets"], batch["weights"]
        error = model(batch["inputs"]).astype(jnp.float32).reshape(targets.shape) - targets

        def mean(of: Any) -> tuple[Any, Any]:
            return jnp.where(weights == 0, 0.0, of * weights).sum(), weights.sum()

        seen = {"absolute_error": mean(jnp.abs(error)), "target": mean(targets), "target_squared": mean(targets**2)}
        return mean(jnp.square(error))[0], weights.sum(), seen
