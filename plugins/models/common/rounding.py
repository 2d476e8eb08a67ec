"""Inputs of packed weights rounded as hardware would round them that multiplies narrow numbers: W8A8, W4A4 and others.

Scales are of every row alone, made when it is seen; or they were calibrated, and come with the weights (`Fed`). What is
multiplied are the values that codes and scales decode to, in the kernels' own arithmetic, so that the numbers are those
of integer or FP8 products with exact sums. Before that inputs are rotated in blocks where their weights were. On a mesh
each device does that to the inputs that it has, of which no block is cut.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_pytree_node

from pipeline.errors import StageError
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.rotation import Rotation, blocks
from pipeline.tensors.scheme import Scheme
from plugins.kernels.quantize.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Turn:
    """What rotates the inputs of a weight.

    Attributes:
        rotation: in blocks.
        over: the axes of the mesh that divide these inputs, where a model runs on one.
    """

    rotation: Rotation
    over: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Fed(QTensor):
    """A packed weight that comes with what is to be done with its inputs; static: programs have it as constants.

    Attributes:
        inputs: their scale, fp32; None: each row has one of its own.
        turn: rotates them, as it did the weight's columns; None: nothing.
    """

    inputs: float | None = None
    turn: Turn | None = None

    @classmethod
    def of(cls, w: QTensor, inputs: float | None, turn: Turn | None = None) -> "Fed":
        return cls(w.codes, w.scales, w.scheme, w.zeros, w.second, inputs, turn)

    @property
    def bare(self) -> QTensor:
        """The weight, as kernels take it: programs for other scales are theirs too."""
        return QTensor(self.codes, self.scales, self.scheme, self.zeros, self.second)


register_pytree_node(
    Fed,
    lambda w: ((w.codes, w.scales, w.zeros, w.second), (w.scheme, w.inputs, w.turn)),
    lambda static, arrays: Fed(arrays[0], arrays[1], static[0], arrays[2], arrays[3], *static[1:]),
)


def bare(w: Any) -> Any:
    """A weight without what is to be done with its inputs."""
    return w.bare if isinstance(w, Fed) else w


def turn_of(w: Any) -> Turn | None:
    """What rotates the inputs of a weight."""
    return w.turn if isinstance(w, Fed) else None


def turned(x: Any, turn: Turn) -> Any:
    """x `[…, n]`, each block of a row times its matrix, fp32; of a divided row the blocks that are here."""
    parts = lax.axis_size(turn.over) if turn.over else 1
    each = jnp.asarray(blocks(turn.rotation, x.shape[-1] * parts))
    if turn.over:
        each = lax.dynamic_index_in_dim(
            each.reshape(parts, -1, *each.shape[1:]), lax.axis_index(turn.over), keepdims=False
        )
    wide = jnp.asarray(x, jnp.float32).reshape(*x.shape[:-1], *each.shape[:2])
    return jnp.einsum("...kb,kbc->...kc", wide, each, precision=lax.Precision.HIGHEST).reshape(x.shape)


@dataclass(frozen=True)
class Rounder:
    """
    Attributes:
        kernel, scheme, recipe: the op `quantize_dequantize`, and what it is to do.
        fed: scales come with weights.
        scale: that came with one.
        turn: that came with one: rotates before.
    """

    kernel: Kernel
    scheme: Scheme
    recipe: Recipe
    fed: bool = False
    scale: float | None = None
    turn: Turn | None = None

    def before(self, *ws: Any) -> "Rounder":
        """What rounds the inputs of these weights, which share them and are rotated alike."""
        turn = turn_of(ws[0])
        if not self.fed:
            return self if turn is None else replace(self, turn=turn)
        scales = [w.inputs for w in ws]  # of a weight without one an AttributeError, which plans see to
        return replace(self, scale=min(scales) if self.scheme.second == "inverse_f32" else max(scales), turn=turn)

    def __call__(self, x: Any) -> Any:
        """x `[…, n]`, each row rounded by itself, as a matrix of its own where scales are of one; or all under the
        scale that came with a weight."""
        wide = jnp.asarray(x, jnp.float32) if self.turn is None else turned(x, self.turn)
        if self.scale is not None:
            return jnp.asarray(self.kernel(wide, self.scheme, scale=self.scale, **asdict(self.recipe))).astype(x.dtype)
        alone = self.scheme.block_rows != 1 or self.scheme.second is not None
        rounded = self.kernel(wide[..., None, :] if alone else wide, self.scheme, **asdict(self.recipe))
        return jnp.asarray(rounded).reshape(x.shape).astype(x.dtype)


@dataclass(frozen=True)
class Turner:
    """As `Rounder`, where inputs are rotated alone.

    Attributes:
        turn: that came with a weight; None: x stays as it is.
    """

    turn: Turn | None = None

    def before(self, *ws: Any) -> "Turner":
        """What rotates the inputs of these weights, which share them and are rotated alike."""
        return Turner(turn_of(ws[0]))

    def __call__(self, x: Any) -> Any:
        return x if self.turn is None else turned(x, self.turn).astype(x.dtype)


@dataclass(frozen=True)
class Then:
    """An activation, and rounding after it; equal ones are equal."""

    activation: Callable[..., Any]
    rounder: Rounder | Turner

    def __call__(self, *hidden: Any) -> Any:
        return self.rounder(self.activation(*hidden))


@dataclass(frozen=True)
class MatMul:
    """The op `matmul`, whose x is rounded before packed weights."""

    kernel: Any
    rounder: Rounder | Turner

    def __call__(self, x: Any, w: Any, *rest: Any, **options: Any) -> Any:
        return self.kernel(self.rounder.before(w)(x) if isinstance(w, QTensor) else x, bare(w), *rest, **options)

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Calls that share an x, rotated alike, round it once, under one scale."""
        shared: dict[Any, list[Any]] = {}
        for x, w, *_ in calls:
            if isinstance(w, QTensor):
                shared.setdefault((id(x), turn_of(w)), [x]).append(w)
        rounded = {key: self.rounder.before(*ws)(x) for key, (x, *ws) in shared.items()}
        given = [(rounded[id(x), turn_of(w)] if isinstance(w, QTensor) else x, bare(w), *r) for x, w, *r in calls]
        return self.kernel.together(*given)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MoE:
    """The op `moe`, whose x, and what comes out of the activation, are rounded before packed stacks."""

    kernel: Any
    rounder: Rounder | Turner

    def __call__(
        self, x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, *,
        activation: Callable[..., Any], **options: Any,
    ) -> Any:  # fmt: skip
        """
        Raises:
            StageError: of gate and up, which are given one x, one is rotated and the other is not.
        """
        if len({turn_of(w) for w in w_in}) > 1:
            text = "gate and up of experts are given the same, and one of them alone is rotated"
            raise StageError(f"activations_rotate: {text}; both are to be quantized, or neither")
        if all(isinstance(w, QTensor) for w in w_in):
            x = self.rounder.before(*w_in)(x)
        if isinstance(w_out, QTensor):
            activation = Then(activation, self.rounder.before(w_out))
        w_in = tuple(bare(w) for w in w_in)
        return self.kernel(x, chosen, weights, w_in, b_in, bare(w_out), b_out, activation=activation, **options)
