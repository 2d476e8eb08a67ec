"""The gradients of one update: sums over its micro-batches, on one device or on a mesh of them, divided once.

On a mesh all of it is one `shard_map`. Rows are divided over some axes (`batch` of the mesh's rules); along these every
device has gradients of its own rows, which are added up when all micro-batches are through. Weights that only lie
divided over such an axis are gathered block by block; on the way back their gradients are added up and divided again.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from plugins.kernels.varying import along, axes_of, zeros
from plugins.train.bound import Bound, Leaves
from plugins.train.objectives import Objective

TINY = float(np.finfo(np.float32).tiny)
Found = tuple[tuple[Any, Any, dict[str, Any]], dict[str, Any]]


class Gradients:
    """Of an objective; see `Gradients.__call__`."""

    def __init__(self, bound: Bound, objective: Objective, leaves: Leaves, teacher: Bound | None):
        self.bound, self.objective, self.leaves, self.teacher = bound, objective, leaves, teacher

    def __call__(
        self, parameters: Mapping[str, Any], batches: Mapping[str, Any], key: Any, frozen: Mapping[str, Any],
        taught: Mapping[str, Any],
    ) -> Found:  # fmt: skip
        """(loss, weight, name → (sum, weight)) and the gradients of the loss, which is a mean.

        Args:
            batches: name → array `[accumulate, B, …]`.
            key: of random numbers.
            frozen: what no gradient is asked for, and `leaves` takes.
            taught: the weights of the teacher, by name.
        """
        args = (dict(parameters), dict(batches), key, dict(frozen), dict(taught))
        (loss, weight, seen), gradients = self._spread(*args) if self.bound.spread else self._summed(*args)
        whole = jnp.maximum(weight, TINY)
        return (loss / whole, weight, seen), jax.tree.map(lambda g: g / whole, gradients)

    def sums(self, parameters: Any, batch: Any, key: Any, frozen: Any, taught: Any) -> Any:
        """Of one micro-batch."""
        rows = axes_of(batch)
        model = self.bound.model(self.leaves(parameters, frozen, key), rows)
        if self.teacher is None:
            return self.objective.sums(model, batch, key)
        teacher = self.teacher.model(self.teacher.leaves({}, taught, key), rows)
        return self.objective.sums(model, batch, key, teacher)

    def evaluated(
        self, parameters: Mapping[str, Any], batch: Mapping[str, Any], frozen: Mapping[str, Any],
        taught: Mapping[str, Any],
    ) -> Any:  # fmt: skip
        """Of one micro-batch, with nothing random in it."""
        if (spread := self.bound.spread) is None:
            return self.sums(parameters, batch, None, frozen, taught)
        rows = spread.mesh.over("batch")

        def local(parameters: Any, batch: Any, frozen: Any, taught: Any) -> Any:
            return jax.tree.map(lambda a: _added(a, rows), self.sums(parameters, batch, None, frozen, taught))

        divided = jax.tree.map(lambda _: P(rows or None), dict(batch))  # type: ignore[no-untyped-call]
        beside = {} if self.teacher is None else self.teacher.specs(taught)
        specs = self.bound.specs(parameters), divided, self.bound.specs(frozen), beside
        return jax.shard_map(
            local, mesh=spread.devices, in_specs=specs,
            out_specs=P(), check_vma=True,  # type: ignore[no-untyped-call]
        )(dict(parameters), dict(batch), dict(frozen), dict(taught))  # fmt: skip

    def _summed(self, parameters: Any, batches: Any, key: Any, frozen: Any, taught: Any) -> Found:
        """Over micro-batches; on a mesh of the rows that lie here."""

        def micro(i: Any, batch: Any) -> Any:
            def loss(trained: Any) -> Any:
                total, weight, seen = self.sums(trained, batch, jax.random.fold_in(key, i), frozen, taught)
                return total, (total, weight, seen)

            gradients, figures = jax.grad(loss, has_aux=True)(parameters)
            return figures, gradients

        count = next(iter(jax.tree.leaves(batches))).shape[0]
        if count == 1:
            return micro(0, jax.tree.map(lambda a: a[0], batches))  # type: ignore[no-any-return]

        def add(so_far: Any, some: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, so_far, micro(*some)), None

        shapes = jax.eval_shape(micro, 0, jax.tree.map(lambda a: a[0], batches))
        return lax.scan(add, jax.tree.map(zeros, shapes), (jnp.arange(count), batches))[0]  # type: ignore[no-any-return]

    def _spread(self, parameters: Any, batches: Any, key: Any, frozen: Any, taught: Any) -> Found:
        spread = self.bound.spread
        assert spread is not None
        rows = spread.mesh.over("batch")

        def local(parameters: Any, batches: Any, key: Any, frozen: Any, taught: Any) -> Found:
            own = along(rows, parameters)
            seed = jax.random.fold_in(key, lax.axis_index(rows)) if rows else key
            figures, gradients = self._summed(own, batches, seed, frozen, taught)
            figures = jax.tree.map(lambda a: _added(a, rows), figures)
            lies = {name: axes_of(w) for name, w in parameters.items()}
            return figures, {
                name: _added(g, tuple(a for a in rows if a not in lies[name])) for name, g in gradients.items()
            }

        trained = self.bound.specs(parameters)
        divided = jax.tree.map(lambda _: P(None, rows or None), batches)  # type: ignore[no-untyped-call]
        beside = {} if self.teacher is None else self.teacher.specs(taught)
        whole = P()  # type: ignore[no-untyped-call]
        return jax.shard_map(
            local, mesh=spread.devices, in_specs=(trained, divided, whole, self.bound.specs(frozen), beside),
            out_specs=(whole, trained), check_vma=True,
        )(parameters, batches, key, frozen, taught)  # fmt: skip


def _added(array: Any, axes: tuple[str, ...]) -> Any:
    return lax.psum(along(axes, array), axes) if axes else array  # type: ignore[no-untyped-call]
