"""Training without a config: any `nnx.Module` on any arrays.

    fitted = fit(model, {"inputs": x, "targets": y}, Classification(), AdamW(rate=3e-3), steps=500)

The module's parameters are trained as float32, whatever they are held in, and put back into it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.errors import ConfigError
from pipeline.training import Examples, Splits
from plugins.train.bound import Bound
from plugins.train.loop import Loop, Plan, Programs
from plugins.train.members import Members
from plugins.train.objectives import Objective
from plugins.train.optimizers import AdamW, Optimizer
from plugins.train.options import Looking, Member, Saving
from plugins.train.step import make_step

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
    splits = _splits(data, batch, micro)
    step = make_step(model, _goal(objective), AdamW() if optimizer is None else optimizer, steps=steps)
    device = device or jax.devices()[0]

    def begin() -> Any:
        own = {name: jnp.array(param.get_value(), jnp.float32, copy=True) for name, param in step.bound.params.items()}
        return jax.device_put(step.init(own), device)

    plan, place = Plan(steps, batch, micro or batch, seed, save or Saving(), look or Looking()), _place(folder)
    with jax.default_device(device):
        found = Loop(plan, Programs(step), splits).run(
            begin, step.described(step.bound.params, device), place, name="fit"
        )
    step.bound.put(model, found.parameters)
    losses = tuple(float(r["loss"]) for r in found.rows if r["kind"] == "train")
    held_out = {int(r["step"]): float(r["loss"]) for r in found.rows if r["kind"] == "held_out"}
    return Fitted(found.step, losses, held_out, found.stopped)


def fit_each(
    models: Sequence[nnx.Module],
    data: Mapping[str, np.ndarray] | Examples | Splits,
    objective: Objective | Loss,
    optimizer: Optimizer | None = None,
    *,
    rates: Sequence[float],
    seeds: Sequence[int] | None = None,
    steps: int,
    batch: int = 32,
    micro: int | None = None,
    folder: str | Path | None = None,
    save: Saving | None = None,
    look: Looking | None = None,
    devices: Sequence[Any] = (),
) -> tuple[Fitted, ...]:
    """Train several modules at once in one program, which differ in their numbers only; each becomes what `fit` would
    make of it. One whose loss is no number any more stays as it was before; the others go on.

    Args:
        models: alike but for what their parameters hold.
        data, objective, optimizer, steps, batch, micro, folder, save: see `fit`.
        rates: of each, instead of the optimizer's.
        seeds: of each, for its examples and what is random in it; None: 0 of all.
        look: when they are evaluated on what is held out; `patience` does not count.
        devices: JAX devices that divide the models; none: JAX's first has all.

    Returns:
        What was found of each.

    Raises:
        ConfigError: see `fit`; or not as many rates and seeds as models, or they do not divide over the devices.
        StageError: none has a loss that is a number.
        StorageError: states cannot be saved.
    """
    seeds = [0] * len(models) if seeds is None else seeds
    if not len(models) == len(rates) == len(seeds) or not models:
        raise ConfigError(f"{len(models)} models, {len(rates)} rates, {len(seeds)} seeds: equally many are needed")
    if devices and len(models) % len(devices):
        raise ConfigError(f"{len(models)} models over {len(devices)} devices: parts have to be equal")
    splits = _splits(data, batch, micro)
    step = make_step(models[0], _goal(objective), AdamW() if optimizer is None else optimizer, steps=steps)
    plan = Plan(steps, batch, micro or batch, 0, save or Saving(), look or Looking())
    own = [Bound(model).params for model in models]
    members = [Member(seed, rate) for seed, rate in zip(seeds, rates, strict=True)]

    def begin(i: int) -> dict[str, np.ndarray]:
        return {name: np.asarray(param.get_value(), np.float32) for name, param in own[i].items()}

    found = Members(plan, step, members, splits, devices).run(begin, _place(folder), name="fit")
    fitted = []
    for i, model in enumerate(models):
        step.bound.put(model, {name: jnp.asarray(np.asarray(values)[i]) for name, values in found.parameters.items()})
        rows = [r for r in found.rows if r["member"] == i]
        losses = tuple(float(r["loss"]) for r in rows if r["kind"] == "train")
        held_out = {int(r["step"]): float(r["loss"]) for r in rows if r["kind"] == "held_out"}
        out = found.progress.out[i]
        fitted.append(Fitted(found.progress.step, losses, held_out, f"no number at update {out}" if out else ""))
    return tuple(fitted)


def _splits(data: Mapping[str, np.ndarray] | Examples | Splits, batch: int, micro: int | None) -> Splits:
    """
    Raises:
        ConfigError: arrays of several lengths; `micro` does not divide `batch`.
    """
    if batch % (micro or batch):
        raise ConfigError(f"micro={micro} does not divide batch={batch}")
    return data if isinstance(data, Splits) else Splits(Arrays(data) if isinstance(data, Mapping) else data)


def _goal(objective: Objective | Loss) -> Any:
    return objective if hasattr(objective, "sums") else _Mean(objective)


def _place(folder: str | Path | None) -> Path | None:
    if folder is None:
        return None
    found = Path(folder).expanduser().absolute()
    found.mkdir(parents=True, exist_ok=True)
    return found
