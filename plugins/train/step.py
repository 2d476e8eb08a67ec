"""One update of a model's parameters: gradients of sums over micro-batches, divided once, and the optimizer's turn.

The state is a plain dict: `parameters` (name → float32 master; a stack of experts goes by the first of its tensors, as
layouts do), `optimizer` (optax's, which lies as the parameters do), `step` (int32, the updates so far). What the model
computes with is made of the parameters each time (`Leaves`).
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.errors import PlanError
from pipeline.mesh import Layout
from plugins.engine.spread import Spread
from plugins.train.bound import Bound, Leaves
from plugins.train.gradients import TINY, Gradients
from plugins.train.objectives import Objective
from plugins.train.optimizers import Optimizer, factors

State = dict[str, Any]


class Step:
    """See `make_step`."""

    def __init__(self, bound: Bound, gradients: Gradients, optimizer: Optimizer, steps: int):
        self.bound, self.gradients, self.optimizer, self.steps = bound, gradients, optimizer, steps
        self.jitted = jax.jit(self.update, donate_argnums=(0,))

    def init(self, parameters: Mapping[str, Any]) -> State:
        """A state that begins with these parameters, in float32, each where it is to lie."""
        found: dict[str, Any] = {name: jnp.asarray(w, jnp.float32) for name, w in parameters.items()}
        if problems := list(self.optimizer.schedule.problems(self.steps)):
            raise PlanError(problems)
        factors(self.optimizer, found)
        if self.bound.spread is None:
            return self._begun(found)
        found = self.bound.spread.laid(found, self.bound.shardings(found))
        create = self.optimizer.build(found).init
        kept = jax.jit(create, out_shardings=self._lies(jax.eval_shape(create, found), found))(found)
        return {"parameters": found, "optimizer": kept, "step": self.bound.spread.laid(jnp.int32(0), self._whole)}

    def _begun(self, parameters: Mapping[str, Any]) -> State:
        made = self.optimizer.build(parameters).init(parameters)
        return {"parameters": dict(parameters), "optimizer": made, "step": jnp.int32(0)}

    def described(self, parameters: Mapping[str, Any], device: Any) -> State:
        """Shapes and dtypes of a state, and where each leaf of it lies.

        Args:
            parameters: name → what has a shape.
            device: where all of it lies, unless the step is for several.
        """
        of: Any = jax.ShapeDtypeStruct
        shapes = jax.eval_shape(self._begun, {name: of(p.shape, jnp.float32) for name, p in parameters.items()})
        if self.bound.spread is None:
            whole = jax.sharding.SingleDeviceSharding(device)
            return jax.tree.map(lambda s: of(s.shape, s.dtype, sharding=whole), shapes)  # type: ignore[no-any-return]
        lies = {
            "parameters": self.bound.shardings(shapes["parameters"]),
            "optimizer": self._lies(shapes["optimizer"], shapes["parameters"]),
            "step": self._whole,
        }
        found: State = jax.tree.map(lambda s, lie: of(s.shape, s.dtype, sharding=lie), shapes, lies)
        return found

    @property
    def _whole(self) -> Any:
        assert self.bound.spread is not None
        return NamedSharding(self.bound.spread.devices, P())  # type: ignore[no-untyped-call]

    def _lies(self, kept: Any, parameters: Mapping[str, Any]) -> Any:
        """What an optimizer keeps of a parameter lies as that does; the rest is whole on every device."""
        lie = self.bound.shardings(parameters)

        def of(path: Any, leaf: Any) -> Any:
            name = next((k.key for k in reversed(path) if isinstance(k, jax.tree_util.DictKey) and k.key in lie), None)
            return lie[name] if name is not None and leaf.shape == parameters[name].shape else self._whole

        return jax.tree_util.tree_map_with_path(of, kept)

    def rows(self, count: int) -> np.ndarray:
        """Which of the `count` rows of a micro-batch devices of this process compute, ascending: int64."""
        if self.bound.spread is None:
            return np.arange(count)
        of_row = NamedSharding(self.bound.spread.devices, P(self._rows))  # type: ignore[no-untyped-call]
        parts = of_row.addressable_devices_indices_map((count,)).values()
        return np.array(sorted({row for box in parts for row in range(*(box or (slice(None),))[0].indices(count))}))

    @property
    def _rows(self) -> tuple[str, ...] | None:
        assert self.bound.spread is not None
        return self.bound.spread.mesh.over("batch") or None

    def placed(self, batches: Mapping[str, Any], count: int | None = None) -> dict[str, Any]:
        """Batches `[accumulate, B, …]` of the host, on the devices: each has its rows.

        Args:
            count: rows of a micro-batch, of which those of `rows` are here; None: all are.
        """
        if self.bound.spread is None:
            return {name: jnp.asarray(a) for name, a in batches.items()}
        lies = NamedSharding(self.bound.spread.devices, P(None, self._rows))  # type: ignore[no-untyped-call]

        def put(a: Any) -> Any:
            here = np.arange(a.shape[1]) if count is None else self.rows(count)
            shape = (a.shape[0], len(here) if count is None else count, *a.shape[2:])

            def part(box: Any) -> Any:
                first, last, _ = box[1].indices(shape[1])
                at = int(np.searchsorted(here, first))
                return a[:, at : at + last - first]

            return jax.make_array_from_callback(shape, lies, part)

        return {name: put(np.asarray(a)) for name, a in batches.items()}

    def shared(self, tree: Any) -> Any:
        """What every device needs all of, there; every process has it."""
        if self.bound.spread is None:
            return tree
        return self.bound.spread.laid(tree, jax.tree.map(lambda _: self._whole, tree))

    def __call__(
        self, state: State, batches: Mapping[str, Any], key: Any, frozen: Mapping[str, Any] | None = None,
        taught: Mapping[str, Any] | None = None,
    ) -> tuple[State, dict[str, Any]]:  # fmt: skip
        """One update, compiled; see `update`. `state` is used up."""
        return self.jitted(state, self.placed(batches), key, dict(frozen or {}), dict(taught or {}))  # type: ignore[no-any-return]

    def update(
        self, state: State, batches: Mapping[str, Any], key: Any, frozen: Mapping[str, Any], taught: Mapping[str, Any],
        rate: Any = None,
    ) -> tuple[State, dict[str, Any]]:  # fmt: skip
        """The next state, and figures: float32 numbers, of each parameter in order of names `gradient_norms`, and
        `update_norms` of what was added to it, and the `amount` that the update went through, of tokens or examples.

        Nothing changes, and `step` does not count, where the loss or a gradient is not finite.

        Args:
            batches: name → array `[accumulate, B, …]`.
            key: of random numbers; what is random here follows from it and `step`.
            frozen: name → what is not trained; see `Leaves`.
            taught: name → weights of the teacher.
            rate: instead of the optimizer's.
        """
        parameters, step = state["parameters"], state["step"]
        turn = jax.random.fold_in(key, step)
        (loss, weight, seen), gradients = self.gradients(parameters, batches, turn, frozen, taught)
        norms = {name: jnp.sqrt(jnp.sum(jnp.square(g))) for name, g in sorted(gradients.items())}
        factor = factors(self.optimizer, parameters)
        # What stays as it is counts for no norm, or it would have the rest clipped.
        norm = jnp.sqrt(sum((jnp.square(n) for name, n in norms.items() if factor[name]), jnp.float32(0)))
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        if self.optimizer.clip is not None:
            scale = jnp.minimum(1.0, self.optimizer.clip / jnp.maximum(norm, TINY))
            gradients = jax.tree.map(lambda g: g * scale, gradients)
        rate = (self.optimizer.rate if rate is None else rate) * self.optimizer.schedule.share(step, self.steps)
        changes, kept = self.optimizer.build(parameters).update(gradients, state["optimizer"], parameters)
        changes = {n: c * (rate * factor[n]) for n, c in changes.items()}
        moved = optax.apply_updates(parameters, changes)
        changed = {n: moved[n] if factor[n] else w for n, w in parameters.items()}  # -0 + 0 is +0
        new = {"parameters": changed, "optimizer": kept, "step": step + 1}
        figures = {name: total / jnp.maximum(of, 1e-9) for name, (total, of) in seen.items()}
        figures |= {"loss": loss, "weight": weight, "rate": rate, "gradient_norm": norm}
        figures["amount"] = _amount(batches)
        figures["gradient_norms"] = jnp.stack(list(norms.values()))
        figures["update_norms"] = jnp.stack([jnp.sqrt(jnp.sum(jnp.square(changes[n]))) for n in norms])
        if self.bound.spread is not None:  # every process reads them
            figures = jax.lax.with_sharding_constraint(figures, self._whole)  # type: ignore[no-untyped-call]
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state), figures


def _amount(batches: Mapping[str, Any]) -> Any:
    if "segments" in batches:
        return jnp.count_nonzero(batches["segments"]).astype(jnp.int32)
    count, rows = next(iter(batches.values())).shape[:2]
    return jnp.int32(count * rows)


def make_step(
    model: nnx.Module,
    objective: Objective,
    optimizer: Optimizer,
    *,
    steps: int,
    leaves: Callable[[Bound], Leaves] | None = None,
    recompute: bool = False,
    teacher: nnx.Module | None = None,
    spread: Spread | None = None,
    beside: Mapping[str, Layout] | None = None,
) -> Step:
    """An update as one compiled program.

    Args:
        model: of shapes, as families build it; computes in its `dtype`. On a mesh its parameters say how they lie.
        steps: of the whole run, for the schedule.
        leaves: of a bound model: what its parameters hold, of what is trained and what is not. None: the parameters
            themselves.
        recompute: of a block of the model only its input is kept for the gradient.
        teacher: a model of shapes, for objectives that want one.
        spread: the devices that rows and weights are divided over.
        beside: name → how it lies there, of what is trained and no parameter of the model.
    """
    if recompute:
        cast(Any, model).recompute = True
    bound = Bound(model, spread, beside)
    taught = None if teacher is None else Bound(teacher, spread)
    held = bound.leaves if leaves is None else leaves(bound)
    return Step(bound, Gradients(bound, objective, held, taught), optimizer, steps)
