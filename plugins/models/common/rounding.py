"""Inputs of packed weights rounded as hardware would round them that multiplies narrow numbers: W8A8, W4A4 and others.

Scales are dynamic: of every row alone, made when it is seen. What is multiplied are the values that codes and scales
decode to, in the kernels' own arithmetic, so that the numbers are those of integer or FP8 products with exact sums.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp

from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.quantize.recipe import Recipe


@dataclass(frozen=True)
class Rounder:
    """
    Attributes:
        kernel, scheme, recipe: the op `quantize_dequantize`, and what it is to do.
    """

    kernel: Kernel
    scheme: Scheme
    recipe: Recipe

    def __call__(self, x: Any) -> Any:
        """x `[…, n]`, each row rounded by itself, as a matrix of its own where scales are of one."""
        alone = self.scheme.block_rows != 1 or self.scheme.second is not None
        wide = jnp.asarray(x, jnp.float32)
        rounded = self.kernel(wide[..., None, :] if alone else wide, self.scheme, **asdict(self.recipe))
        return jnp.asarray(rounded).reshape(x.shape).astype(x.dtype)


@dataclass(frozen=True)
class Then:
    """An activation, and rounding after it; equal ones are equal."""

    activation: Callable[..., Any]
    rounder: Rounder

    def __call__(self, *hidden: Any) -> Any:
        return self.rounder(self.activation(*hidden))


@dataclass(frozen=True)
class MatMul:
    """The op `matmul`, whose x is rounded before packed weights."""

    kernel: Any
    rounder: Rounder

    def __call__(self, x: Any, w: Any, *rest: Any, **options: Any) -> Any:
        return self.kernel(self.rounder(x) if isinstance(w, QTensor) else x, w, *rest, **options)

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Calls that share an x round it once."""
        rounded = {id(x): x for x, w, *_ in calls if isinstance(w, QTensor)}
        rounded = {key: self.rounder(x) for key, x in rounded.items()}
        given = [(rounded[id(x)] if isinstance(w, QTensor) else x, w, *rest) for x, w, *rest in calls]
        return self.kernel.together(*given)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MoE:
    """The op `moe`, whose x, and what comes out of the activation, are rounded before packed stacks."""

    kernel: Any
    rounder: Rounder

    def __call__(
        self, x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, *,
        activation: Callable[..., Any], **options: Any,
    ) -> Any:  # fmt: skip
        if all(isinstance(w, QTensor) for w in w_in):
            x = self.rounder(x)
        if isinstance(w_out, QTensor):
            activation = Then(activation, self.rounder)
        return self.kernel(x, chosen, weights, w_in, b_in, w_out, b_out, activation=activation, **options)
