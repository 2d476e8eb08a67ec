"""What a model's weights are while something is trained that is added to them: the ops know it, the model does not.

    w · x  becomes  w · x + scale · b · a · dropout(x)        (LoRA, arXiv 2106.09685)

`w` may be packed: gradients go through it to x, and to a and b, and it has none itself (QLoRA, arXiv 2305.14314). Of
experts every one has an a and a b of its own. The product of b and a is never made.

    r rank, E experts
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import pipeline.tensors.pytree  # noqa: F401 - QTensor as a pytree
from pipeline import meter
from pipeline.errors import StageError
from pipeline.ops import Kernel
from plugins.kernels.moe.grouped import grouped
from plugins.models.common.ops import Ops
from plugins.models.common.rounding import Then
from plugins.train.rounding import Rounding
from plugins.train.stand_in import StandIn


@partial(jax.tree_util.register_dataclass, data_fields=["base", "a", "b", "key"], meta_fields=["scale", "dropout"])
@dataclass(frozen=True, slots=True)
class Adapted(StandIn):
    """What a parameter holds instead of a weight.

    Attributes:
        base: array or QTensor, `[out, in]` or `[E, out, in]`.
        a: `[r, in]`; of experts `[E, r, in]`.
        b: `[out, r]`; of experts `[out, r, E]`, as PEFT has them.
        scale: of what is added.
        dropout: share of x's numbers that `a` does not see; the others are scaled up.
        key: of random numbers, where there is dropout.
    """

    base: Any
    a: Any
    b: Any
    key: Any = None
    scale: float = 1.0
    dropout: float = 0.0

    def around(self, base: Any) -> "Adapted":
        """See `plugins.mesh.collectives.Around`."""
        return replace(self, base=base)

    def seen(self, x: Any) -> Any:
        """What `a` is multiplied by."""
        if not self.dropout:
            return x
        kept = jax.random.bernoulli(self.key, 1 - self.dropout, x.shape)
        return jnp.where(kept, x / (1 - self.dropout), jnp.zeros_like(x)).astype(x.dtype)


class MatMul(Kernel):
    """The op `matmul`, which also takes an `Adapted`."""

    def __call__(self, x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
        if isinstance(w, Rounding):
            return super().__call__(w.seen(x), w.base, bias, out_dtype=out_dtype)
        if not isinstance(w, Adapted):
            return super().__call__(x, w, bias, out_dtype=out_dtype)
        y = super().__call__(x, w.base, bias, out_dtype=jnp.float32) + self._added(x, w)
        return y.astype(x.dtype if out_dtype is None else out_dtype)

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        """With what is added put in afterwards; where all round the same x, the first does it for them."""
        rounding = [isinstance(w, Rounding) for _, w, *_ in calls]
        if any(rounding):
            if not all(rounding):
                return [self(*call) for call in calls]
            x = calls[0][1].seen(calls[0][0])
            calls = tuple((x, w.base, *bias) for _, w, *bias in calls)
        found = super().together(*((x, w.base if isinstance(w, Adapted) else w, *bias) for x, w, *bias in calls))
        return [
            (y.astype(jnp.float32) + self._added(x, w)).astype(y.dtype) if isinstance(w, Adapted) else y
            for y, (x, w, *_) in zip(found, calls, strict=True)
        ]

    def _added(self, x: Any, w: Adapted) -> Any:
        few = super().__call__(w.seen(x), w.a)
        return w.scale * super().__call__(few, w.b, out_dtype=jnp.float32)


class MoE(Kernel):
    """The op `moe`, which also takes stacks that are an `Adapted`."""

    def __call__(
        self, x: Any, chosen: Any, weights: Any, w_in: Sequence[Any], b_in: Sequence[Any], w_out: Any, b_out: Any, *,
        activation: Callable[..., Any], out_dtype: Any = None,
    ) -> Any:  # fmt: skip
        if isinstance(w_out, Rounding):
            activation, w_out = Then(activation, w_out.rounder), w_out.base
        if any(isinstance(w, Rounding) for w in w_in):
            if not all(isinstance(w, Rounding) for w in w_in):
                raise StageError("moe: experts round their input for all projections into them, or for none")
            x, w_in = w_in[0].seen(x), [w.base for w in w_in]
        if not any(isinstance(w, Adapted) for w in (*w_in, w_out)):
            return super().__call__(
                x, chosen, weights, w_in, b_in, w_out, b_out, activation=activation, out_dtype=out_dtype
            )
        plain = [w.base if isinstance(w, Adapted) else w for w in (*w_in, w_out)]
        choice = self.resolve(
            x, chosen, weights, tuple(plain[:-1]), tuple(b_in), plain[-1], b_out,
            activation=activation, out_dtype=out_dtype,
        )  # fmt: skip
        if choice.backend not in ("native", "xla"):
            able = "what is added to experts is computed by the backends native and xla"
            raise StageError(f"moe: {able}, not by {choice.backend or choice.reasons}")
        meter.ran(self.op, choice.backend)
        weights = weights.astype(jnp.float32)
        project = partial(_projected, chosen, weights, choice.backend == "native")
        hidden = [project(x, w, b, x.dtype) for w, b in zip(w_in, b_in, strict=True)]
        dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
        y = project(activation(*hidden), w_out, b_out, dtype).astype(jnp.float32).reshape(*chosen.shape, -1)
        share = weights[:, :, None]
        return jnp.sum(jnp.where(share == 0, 0.0, y * share), axis=1).astype(dtype)


def _projected(chosen: Any, weights: Any, native: bool, x: Any, w: Any, bias: Any, dtype: Any) -> Any:
    """`[N · k, out]` of every assignment's row through its expert."""
    rows = partial(grouped, chosen=chosen, weights=weights, native=native)
    y = rows(x, w=w.base if isinstance(w, Adapted) else w)
    if isinstance(w, Adapted):
        few = rows(w.seen(x), w=w.a).astype(x.dtype)
        y = y + w.scale * rows(few, w=jnp.transpose(w.b, (2, 0, 1)))
    if bias is not None:
        y = y + jnp.asarray(bias).astype(jnp.float32)[chosen.reshape(-1)]
    return y.astype(dtype)


def adapting(ops: Ops) -> Ops:
    """The same ops, which also take an `Adapted` where they take weights of linear layers and of experts."""
    return replace(ops, matmul=_as(MatMul, ops.matmul), moe=_as(MoE, ops.moe))


def _as(kind: type[Kernel], kernel: Kernel) -> Kernel:
    return kind(kernel.op, kernel.backends, kernel.platform, kernel.device)
