"""A linear layer whose weights are packed, for NNX modules of anybody's own."""

from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx

import pipeline.tensors.pytree  # noqa: F401 - QTensor as a pytree
from pipeline.errors import Unsupported
from pipeline.method import Method
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from plugins.live.devices import packed, transposed, unpacked
from plugins.live.rules import chosen
from plugins.mesh.store import held_spec


class Packed(nnx.Variable[Any]):
    """Holds a QTensor. No `nnx.Param`: it has no gradient, so what trains the parameters of a module leaves it out."""


class QuantizedLinear(nnx.Module):
    """x `[..., in]` → `[..., out]` of x's dtype, by weights that stay packed; gradients go to x and to the bias.

    Attributes:
        weight: holds a QTensor, logical shape `[out, in]`, of any scheme.
        bias: `[out]`, or None; an `nnx.Variable` is shared.
        dtype: that x is taken in; None: as it comes.
        matmul: the kernel that multiplies. `xla` is the one that runs everywhere, under `jax.vmap` and with weights
            that lie divided over devices.
    """

    def __init__(self, weight: QTensor, bias: Any = None, *, dtype: Any = None, matmul: tuple[str, ...] = ("xla",)):
        if not isinstance(weight, QTensor) or len(weight.shape) != 2:
            given = f"shape {weight.shape}" if hasattr(weight, "shape") else type(weight).__name__
            raise TypeError(f"weight of {given}: a QTensor [out, in] is needed; from_linear makes one")
        self.weight = Packed(weight)
        self.bias = nnx.data(bias if bias is None or isinstance(bias, nnx.Variable) else nnx.Param(bias))
        self.dtype = dtype
        self.matmul = Kernel("matmul", matmul)

    def __call__(self, x: Any) -> Any:
        x = jnp.asarray(x, self.dtype)
        bias = None if self.bias is None else self.bias.get_value()
        return self.matmul.on(jax.default_backend())(x, self.weight.get_value(), bias)

    @property
    def in_features(self) -> int:
        return int(self.weight.get_value().shape[1])

    @property
    def out_features(self) -> int:
        return int(self.weight.get_value().shape[0])

    @classmethod
    def from_linear(cls, linear: nnx.Linear, quant: str | Method, *, on_host: bool = False, **options: Any) -> Self:
        """An `nnx.Linear` with its weights packed, by their devices and on them; its bias is shared.

        Args:
            quant: a quant option of the pipeline, by name, or a method.
            on_host: codes that no device can make are made on the host; see `plugins.live.trees.quantize`.
            options: as of the constructor.

        Raises:
            PlanError: the weights do not fit the scheme, or the layer multiplies in a way of its own.
            ValueRangeError: a value that the scheme cannot hold.
        """
        weight = {"kernel": turned(linear)}
        specs = {"kernel": held_spec(weight["kernel"])}
        method = chosen(weight, specs, quant, {"kernel": "quant"}, unfit={}, again=False, on_host=on_host)["kernel"]
        return cls.around(linear, packed("kernel", weight["kernel"], method), **options)

    @classmethod
    def around(cls, linear: nnx.Linear, weight: QTensor, **options: Any) -> Self:
        """`weight` in the place of that of `linear`."""
        return cls(weight, linear.bias, dtype=linear.dtype, **options)

    def to_linear(self, dtype: Any = jnp.float32) -> nnx.Linear:
        """An `nnx.Linear` with the values that the packed weights stand for; the bias is shared."""
        q = self.weight.get_value()
        found: Any = nnx.eval_shape(
            lambda: nnx.Linear(
                *q.shape[::-1], use_bias=self.bias is not None, dtype=self.dtype, param_dtype=dtype, rngs=nnx.Rngs(0)
            )
        )
        found.kernel.set_value(transposed(unpacked(q, dtype)))
        if self.bias is not None:
            found.bias = self.bias
        linear: nnx.Linear = found
        return linear


def turned(linear: nnx.Linear) -> Any:
    """The weights of `linear` as `[out, in]`.

    Raises:
        Unsupported: the layer multiplies in a way of its own, or they are packed already.
    """
    if linear.dot_general is not jax.lax.dot_general:
        raise Unsupported("has a dot_general of its own, which packed weights would not go through")
    kernel = linear.kernel.get_value()
    held_spec(kernel)
    if isinstance(kernel, QTensor):
        raise Unsupported("is packed already, along its outputs")
    return transposed(kernel)
