"""One update of a model's parameters: gradients of sums over micro-batches, divided once, and the optimizer's turn.

The state is a plain dict: `parameters` (name → float32 master; a stack of experts goes by the first of its tensors, as
layouts do), `optimizer` (optax's), `step` (int32, the updates so far). What the model computes with is made of it each
time: matrices in the dtype of its activations, everything of one dimension as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from plugins.engine.load import parameters as params_of
from plugins.models.common.decoder import Decoder
from plugins.train.objectives import Objective
from plugins.train.optimizers import Optimizer, factors

State = dict[str, Any]
Leaves = Callable[[Mapping[str, Any], Mapping[str, Any], Any], Mapping[str, Any]]
"""(parameters, frozen, key) → name → what the model's parameter holds; without a key nothing is random."""


class Bound:
    """A model of shapes, to be given its weights by name."""

    def __init__(self, model: Decoder):
        self.dtype = jnp.dtype(model.dtype)
        self.params = {p.names[0]: p for p in params_of(model)}
        self._graph, state = nnx.split(model)
        self._flat = nnx.to_flat_state(state)

    def model(self, leaves: Mapping[str, Any]) -> Decoder:
        """With `leaves`: name → what a parameter is to hold, an array or whatever its op takes."""
        flat = [(path, v.replace(leaves[v.names[0]])) for path, v in self._flat]
        found: Decoder = nnx.merge(self._graph, nnx.from_flat_state(flat))
        return found

    def held(self, parameters: Mapping[str, Any], frozen: Mapping[str, Any], key: Any) -> dict[str, Any]:
        """Leaves of the model where nothing is in between: parameters, matrices of them in the dtype of activations."""
        return {name: self._computed(w) for name, w in {**frozen, **parameters}.items()}

    def _computed(self, w: Any) -> Any:
        wide = isinstance(w, jax.Array) and w.ndim > 1 and jnp.issubdtype(w.dtype, jnp.floating)
        return w.astype(self.dtype) if wide else w


class Step:
    """See `make_step`."""

    def __init__(self, model: Decoder, objective: Objective, optimizer: Optimizer, steps: int, leaves: Any = None):
        self.bound, self.objective, self.optimizer, self.steps = Bound(model), objective, optimizer, steps
        self.leaves: Leaves = self.bound.held if leaves is None else leaves(self.bound)
        self.jitted = jax.jit(self.update, donate_argnums=(0,))

    def init(self, parameters: Mapping[str, Any]) -> State:
        """A state that begins with these parameters, float32."""
        found = {name: jnp.asarray(w, jnp.float32) for name, w in parameters.items()}
        return {"parameters": found, "optimizer": self.optimizer.build(found).init(found), "step": jnp.int32(0)}

    def __call__(
        self, state: State, batches: Mapping[str, Any], key: Any, frozen: Mapping[str, Any] | None = None
    ) -> tuple[State, dict[str, Any]]:
        """One update; see `update`. `state` is used up."""
        return self.jitted(state, dict(batches), key, dict(frozen or {}))  # type: ignore[no-any-return]

    def update(
        self, state: State, batches: Mapping[str, Any], key: Any, frozen: Mapping[str, Any], rate: Any = None
    ) -> tuple[State, dict[str, Any]]:
        """The next state, and figures: float32 numbers, and `gradient_norms` of each parameter in order of names.

        Nothing changes, and `step` does not count, where a loss or a gradient is not finite.

        Args:
            batches: name → array `[accumulate, B, …]`.
            key: of random numbers; what is random here follows from it and `step`.
            rate: instead of the optimizer's.
        """
        parameters, step = state["parameters"], state["step"]
        (loss, weight, seen), gradients = self.gradients(parameters, batches, jax.random.fold_in(key, step), frozen)
        norms = {name: jnp.sqrt(jnp.sum(jnp.square(g))) for name, g in sorted(gradients.items())}
        norm = jnp.sqrt(sum(jnp.square(n) for n in norms.values()))
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        if self.optimizer.clip is not None:
            scale = jnp.minimum(1.0, self.optimizer.clip / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
            gradients = jax.tree.map(lambda g: g * scale, gradients)
        rate = (self.optimizer.rate if rate is None else rate) * self.optimizer.schedule.share(step, self.steps)
        changes, kept = self.optimizer.build(parameters).update(gradients, state["optimizer"], parameters)
        factor = factors(self.optimizer, parameters)
        changed = optax.apply_updates(parameters, {n: c * (rate * factor[n]) for n, c in changes.items()})
        new = {"parameters": changed, "optimizer": kept, "step": step + 1}
        figures = {name: total / jnp.maximum(of, 1e-9) for name, (total, of) in seen.items()}
        figures |= {"loss": loss, "weight": weight, "rate": rate, "gradient_norm": norm}
        figures["gradient_norms"] = jnp.stack(list(norms.values()))
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state), figures

    def gradients(
        self, parameters: Mapping[str, Any], batches: Mapping[str, Any], key: Any, frozen: Mapping[str, Any]
    ) -> tuple[tuple[Any, Any, dict[str, Any]], dict[str, Any]]:
        """(loss, weight, name → (sum, weight)), and the gradients of the loss, of all micro-batches together."""

        def sums(trained: Any, batch: Any, key: Any) -> Any:
            model = self.bound.model(self.leaves(trained, frozen, key))
            loss, weight, seen = self.objective.sums(model, batch, key)
            return loss, (weight, seen)

        def micro(i: Any, batch: Any) -> Any:
            return jax.value_and_grad(sums, has_aux=True)(dict(parameters), batch, jax.random.fold_in(key, i))

        count = next(iter(batches.values())).shape[0]
        if count == 1:
            found = micro(0, {name: a[0] for name, a in batches.items()})
        else:

            def add(so_far: Any, some: Any) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, so_far, micro(*some)), None

            each = jnp.arange(count), dict(batches)
            first = jax.eval_shape(lambda e: micro(*jax.tree.map(lambda a: a[0], e)), each)
            zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), first)
            found = jax.lax.scan(add, zero, each)[0]
        (loss, (weight, seen)), gradients = found
        over = jnp.maximum(weight, jnp.finfo(jnp.float32).tiny)
        return (loss / over, weight, seen), jax.tree.map(lambda g: g / over, gradients)


def make_step(
    model: Decoder,
    objective: Objective,
    optimizer: Optimizer,
    *,
    steps: int,
    leaves: Callable[[Bound], Leaves] | None = None,
) -> Step:
    """An update as one compiled program.

    Args:
        model: of shapes, as families build it; computes in its `dtype`.
        steps: of the whole run, for the schedule.
        leaves: gives `Leaves` for the model. None: the parameters themselves, in the dtype of activations.

    Raises:
        PlanError: a group of the optimizer's that has no parameter, or a schedule that does not fit into `steps`.
    """
    return Step(model, objective, optimizer, steps, leaves)
