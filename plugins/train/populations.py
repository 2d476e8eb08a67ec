"""Many small models in one program: members of a population differ in their weights, their random numbers and their
rates, and in nothing that a compiler sees.

The dimension that counts members may be divided over devices. Each then computes its own, and they exchange nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from plugins.train.step import State, Step


class Population:
    """As many models as there are rates, by one step; all that is theirs has a first dimension that counts members."""

    def __init__(self, step: Step, rates: Any, devices: jax.sharding.Mesh | None = None, axis: str = ""):
        """
        Args:
            step: of one model on one device.
            rates: `[members]`, instead of the optimizer's.
            devices, axis: a mesh, and its axis that divides the members; None: they are all on one device.

        Raises:
            ValueError: the step has a mesh of its own, or members do not divide.
        """
        if step.bound.spread is not None:
            raise ValueError("a member of a population is a model on one device; this step's lies over several")
        self.step, self.rates, self._devices, self._axis = step, jnp.asarray(rates, jnp.float32), devices, axis
        if devices is not None and len(self.rates) % devices.shape[axis]:
            said = f"{len(self.rates)} members over {devices.shape[axis]} devices along {axis!r}"
            raise ValueError(f"{said}: parts have to be equal")
        self._init = jax.jit(self._of_each(step.init, 1))
        self._update = jax.jit(self._of_each(self._one, 4), donate_argnums=(0,))
        self._sums = jax.jit(self._of_each(step.gradients.evaluated, 1))

    def _one(self, state: State, batches: Mapping[str, Any], key: Any, rate: Any) -> tuple[State, dict[str, Any]]:
        return self.step.update(state, batches, key, {}, {}, rate)

    def _of_each(self, fn: Callable[..., Any], own: int) -> Callable[..., Any]:
        """`fn` of every member: its first `own` arguments are members', the others of all."""

        def every(*args: Any) -> Any:
            shared = len(args) - own
            of_all = jax.vmap(fn, in_axes=(0,) * own + (None,) * shared)
            if self._devices is None:
                return of_all(*args)
            lies, whole = P(self._axis), P()  # type: ignore[no-untyped-call]
            specs = (lies,) * own + (whole,) * shared
            return jax.shard_map(of_all, mesh=self._devices, in_specs=specs, out_specs=lies)(*args)

        return every

    def init(self, parameters: Mapping[str, Any]) -> State:
        """The states of members that begin with these: name → `[members, …]`."""
        return self._init(dict(parameters))  # type: ignore[no-any-return]

    def __call__(self, states: State, batches: Mapping[str, Any], keys: Any) -> tuple[State, dict[str, Any]]:
        """One update of each member: their states and figures. `states` are used up.

        Args:
            batches: name → array `[members, accumulate, B, …]`.
            keys: of random numbers, `[members]`.
        """
        return self._update(states, dict(batches), keys, self.rates)  # type: ignore[no-any-return]

    def sums(self, parameters: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        """What the objective gives of each member for a batch that is the same for all, name → `[B, …]`; with nothing
        random in it."""
        return self._sums(dict(parameters), dict(batch), {}, {})
