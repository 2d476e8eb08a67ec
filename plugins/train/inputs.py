"""How large the numbers are that a model's weights are multiplied by, of some examples: what of a weight matters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.ops import Kernel
from plugins.models.common.ops import Ops
from plugins.train.adapters import MatMul, MoE
from plugins.train.stand_in import StandIn
from plugins.train.step import Step


@partial(jax.tree_util.register_dataclass, data_fields=["base"], meta_fields=["name"])
@dataclass(frozen=True, slots=True)
class Watched(StandIn):
    """What a parameter holds whose input is looked at."""

    base: Any
    name: str


@dataclass
class Sums:
    """Of squares of inputs, by the name of the parameter, over the tokens that count.

    Attributes:
        live: `[B, T]` bool.
    """

    live: Any
    of: dict[str, Any] = field(default_factory=dict)

    def add(self, x: Any, w: Any) -> Any:
        """What `w` is; its input is added to the sums, if that is asked for."""
        if not isinstance(w, Watched):
            return w
        rows = jnp.where(self.live.reshape(-1, 1), x.reshape(-1, x.shape[-1]).astype(jnp.float32), 0)
        self.of[w.name] = jnp.sum(jnp.square(rows), axis=0)
        return w.base


@dataclass(frozen=True)
class _MatMul(MatMul):
    sums: Sums | None = field(default=None, compare=False, repr=False)

    def __call__(self, x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
        assert self.sums is not None
        return super().__call__(x, self.sums.add(x, w), bias, out_dtype=out_dtype)

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        assert self.sums is not None
        return super().together(*((x, self.sums.add(x, w), *bias) for x, w, *bias in calls))


@dataclass(frozen=True)
class _MoE(MoE):
    sums: Sums | None = field(default=None, compare=False, repr=False)

    def __call__(
        self, x: Any, chosen: Any, weights: Any, w_in: Sequence[Any], b_in: Sequence[Any], w_out: Any, b_out: Any, *,
        activation: Callable[..., Any], out_dtype: Any = None,
    ) -> Any:  # fmt: skip
        assert self.sums is not None
        w_in = [self.sums.add(x, w) for w in w_in]
        w_out = w_out.base if isinstance(w_out, Watched) else w_out  # what an expert has within, nobody sees
        return super().__call__(
            x, chosen, weights, w_in, b_in, w_out, b_out, activation=activation, out_dtype=out_dtype
        )


def sizes(
    step: Step, frozen: Mapping[str, Any], names: Sequence[str], batches: Sequence[Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Parameter → the root of the mean square of each of its inputs, float32 `[in]`; not of what only experts see.

    Args:
        step: for one device.
        frozen: the weights, by name.
        names: of the parameters that are asked about.
        batches: of examples as the objective takes them, all of one shape.
    """

    def look(frozen: Any, batch: Any) -> tuple[dict[str, Any], Any]:
        leaves = step.bound.leaves({}, frozen, None)
        model = step.bound.model({**leaves, **{name: Watched(leaves[name], name) for name in names}})
        segments = batch.get("segments")
        sums = Sums(batch["weights"] > 0 if segments is None else segments > 0)
        model.ops, model.recompute = watching(model.ops, sums), False
        objective = step.gradients.objective
        objective.sums(model, batch, None, *(() if step.gradients.teacher is None else (model,)))
        return sums.of, sums.live.sum()

    program = jax.jit(look)
    total: Any = None
    for batch in batches:
        found = program(dict(frozen), batch)
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    squares, count = total
    return {name: np.sqrt(np.asarray(square) / max(1, int(count))) for name, square in squares.items()}


def watching(ops: Ops, sums: Sums) -> Ops:
    """The same ops, which add up what goes into a `Watched`."""
    return replace(ops, matmul=_as(_MatMul, ops.matmul, sums), moe=_as(_MoE, ops.moe, sums))


def _as(kind: Any, kernel: Kernel, sums: Sums) -> Any:
    return kind(kernel.op, kernel.backends, kernel.platform, kernel.device, sums=sums)
