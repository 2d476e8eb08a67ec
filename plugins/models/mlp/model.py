"""A multilayer perceptron: layers with a nonlinearity after each, and a head."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from plugins.kernels.varying import axes_of
from plugins.models.common.layers import ACTIVATIONS, Linear
from plugins.models.common.ops import Ops
from plugins.models.common.weights import Weights, gather
from plugins.models.mlp.parameters import Numbers


class Network(nnx.Module):
    """inputs [B, …] float32 → [B, outputs] float32.

    Attributes:
        dtype: name of the dtype that activations have (`bfloat16`, `float32`).
    """

    def __init__(self, w: Weights, c: Numbers, ops: Ops, dtype: str):
        *layers, (head, out, into) = c.layers
        axes = "embed", "head"
        self.layers = nnx.List([Linear(w, name, (o, i), axes, bias=True) for name, o, i in layers])
        self.head = Linear(w, head, (out, into), axes, bias=True)
        self.act, self.ops, self.dtype = c.act, ops, dtype

    def __call__(self, inputs: Any) -> Any:
        x = inputs.reshape(len(inputs), -1).astype(jnp.dtype(self.dtype))
        for layer in self.layers:
            gather(layer, rows=axes_of(inputs))
            x = ACTIVATIONS[self.act](layer(x, self.ops))
        gather(self.head, rows=axes_of(inputs))
        return self.head(x, self.ops).astype(jnp.float32)


def build(config: Mapping[str, Any], weights: Weights, ops: Ops, dtype: str) -> Network:
    """See `plugins.models.family.Family.build`."""
    return Network(weights, Numbers.read(config, weights.count), ops, dtype)
