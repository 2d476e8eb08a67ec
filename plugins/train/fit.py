"""Training without a config: any `nnx.Module` on any arrays.

    fitted = fit(model, {"inputs": x, "targets": y}, Classification(), AdamW(rate=3e-3), steps=500)

The module's parameters are trained as float32, whatever they are held in, and put back into it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.errors import ConfigError
from pipeline.training import Examples, Splits
from plugins.train.loop import Loop, Plan, Programs
from plugins.train.objectives import Objective
from plugins.train.optimizers import AdamW, Optimizer
from plugins.train.step import make_step
from plugins.train.trainer import Looking, Saving

Loss = Callable[[Any, Mapping[str, Any]], Any]
"""(model, batch) → the loss of every example, float [B]."""


@dataclass(frozen=True)
class Arrays:
    """Arrays in memory, whose first dimension counts examples; a `pipeline.training.Examples`."""

    arrays: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        sizes = {name: len(a) for name, a in self.arrays.items()}
        if len(set(sizes.values())) != 1:
            raise ConfigError(f"data: arrays of one length are needed, got {sizes or 'none'}")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def specs(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {name: (a.shape[1:], a.dtype.name) for name, a in self._all.items()}

    @property
    def _all(self) -> dict[str, np.ndarray]:
        return {"weights": np.ones(len(self), np.float32), **self.arrays}

    def batch(self, at: np.ndarray) -> dict[str, np.ndarray]:
        return {name: a[at] for name, a in self._all.items()}


@dataclass(frozen=True)
class _Mean:
    """The objective that a function of losses is."""

    loss: Loss

    def sums(self, model: Any, batch: Mapping[str, Any], key: Any, teacher: Any = None) -> Any:
        weights = batch["weights"]
        return (self.loss(model, batch) * weights).sum(), weights.sum(), {}


@dataclass(frozen=True)
class Fitted:
    """What `fit` found.

    Attributes:
        step: updates that the model has had.
        losses: of each update, in order; of earlier tries too.
        held_out: updates → loss on what is held out.
        stopped: why it ended before the last update; empty: it did not.
    """

    step: int
    losses: tuple[float, ...]
    held_out: Mapping[int, float]
    stopped: str


def fit(
    model: nnx.Module,
    data: Mapping[str, np.ndarray] | Examples | Splits,
    objective: Objective | Loss,
    optimizer: Optimizer | None = None,
    *,
    steps: int,
    batch: int = 32,
    micro: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    save: Saving | None = None,
    look: Looking | None = None,
    device: Any = None,
) -> Fitted:
    """Train a module; its parameters are others then.

    Args:
        model: every `nnx.Param` of it is trained; other variables stay as they are.
        data: arrays by name, whose first dimension counts examples; or numbered examples, with others held out or not.
            `weights` [B] float32 says how much each counts; 1 where there are none.
        objective: a node, such as `plugins.train.objectives.Classification`; or a function of (model, batch) that gives
            the loss of every example.
        optimizer: by default AdamW.
        steps: updates.
        batch: examples of an update.
        micro: of these at once; None: all. It divides `batch`.
        seed: which examples come when, and what is random in the model follow from it.
        folder: where states and rows of metrics are saved; a call with the same arguments goes on from there. None:
            nowhere.
        save: when; by default every five minutes.
        look: when it is evaluated on what is held out, and whether it stops early.
        device: a JAX device; None: JAX's first.

    Raises:
        ConfigError: arrays of several lengths; `micro` does not divide `batch`.
        StageError: a loss or gradient is not finite.
        StorageError: states cannot be saved.
    """
    if batch % (micro or batch):
        raise ConfigError(f"micro={micro} does not divide batch={batch}")
    splits = data if isinstance(data, Splits) else Splits(Arrays(data) if isinstance(data, Mapping) else data)
    goal: Any = objective if hasattr(objective, "sums") else _Mean(objective)
    step = make_step(model, goal, AdamW() if optimizer is None else optimizer, steps=steps)
    device = device or jax.devices()[0]

    def begin() -> Any:
        own = {name: jnp.array(param.get_value(), jnp.float32, copy=True) for name, param in step.bound.params.items()}
        return jax.device_put(step.init(own), device)

    plan = Plan(steps, batch, micro or batch, seed, save or Saving(), look or Looking())
    place = Path(folder).expanduser().absolute() if folder is not None else None
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    with jax.default_device(device):
        found = Loop(plan, Programs(step), splits).run(
            begin, step.described(step.bound.params, device), place, name="fit"
        )
    step.bound.put(model, found.parameters)
    losses = tuple(float(r["loss"]) for r in found.rows if r["kind"] == "train")
    held_out = {int(r["step"]): float(r["loss"]) for r in found.rows if r["kind"] == "held_out"}
    return Fitted(found.step, losses, held_out, found.stopped)
