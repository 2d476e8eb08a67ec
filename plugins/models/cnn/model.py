"""A small convolutional network: filters, a norm over the channels of each place, a nonlinearity; where a layer changes
neither size nor channels, what went into it is added. The head sees the mean over all places.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from plugins.kernels.varying import axes_of
from plugins.models.cnn.parameters import Numbers
from plugins.models.common.layers import ACTIVATIONS, Linear, RMSNorm
from plugins.models.common.ops import Ops
from plugins.models.common.weights import Weights, gather


class Layer(nnx.Module):
    """x [B, H, W, in] → [B, ⌈H / stride⌉, ⌈W / stride⌉, out]."""

    def __init__(self, w: Weights, into: int, out: int, stride: int, c: Numbers):
        self.conv = Linear(w, "conv", (out, c.kernel**2 * into), ("embed", "head"), bias=True)
        self.norm = RMSNorm(w, "norm", out, "embed", c.eps)
        self.kernel, self.stride, self.act = c.kernel, stride, c.act

    def __call__(self, x: Any, ops: Ops) -> Any:
        y = ACTIVATIONS[self.act](self.norm(self.conv(patches(x, self.kernel, self.stride), ops), ops))
        return x + y if x.shape == y.shape else y


def patches(x: Any, kernel: int, stride: int) -> Any:
    """What each filter sees: x [B, H, W, C] → [B, ⌈H / stride⌉, ⌈W / stride⌉, kernel² · C], zeros beyond the edges."""
    side = kernel // 2
    high, wide = (-(-n // stride) for n in x.shape[1:3])
    x = jnp.pad(x, ((0, 0), (side, side), (side, side), (0, 0)))
    rows, columns = (range(kernel),) * 2
    seen = [
        x[:, i : i + stride * (high - 1) + 1 : stride, j : j + stride * (wide - 1) + 1 : stride]
        for i in rows
        for j in columns
    ]
    return jnp.concatenate(seen, axis=-1)


class Network(nnx.Module):
    """inputs [B, H, W, C] float32 → [B, outputs] float32.

    Attributes:
        dtype: name of the dtype that activations have (`bfloat16`, `float32`).
    """

    def __init__(self, w: Weights, c: Numbers, ops: Ops, dtype: str):
        sizes = zip(c.channels[:-1], c.channels[1:], c.strides, strict=True)
        self.layers = nnx.List([Layer(w.scope(f"layers.{i}"), *size, c) for i, size in enumerate(sizes)])
        self.head = Linear(w, "head", (c.outputs, c.channels[-1]), ("embed", "head"), bias=True)
        self.ops, self.dtype = ops, dtype

    def __call__(self, inputs: Any) -> Any:
        x = inputs.astype(jnp.dtype(self.dtype))
        for layer in self.layers:
            gather(layer, rows=axes_of(inputs))
            x = layer(x, self.ops)
        gather(self.head, rows=axes_of(inputs))
        return self.head(x.mean(axis=(1, 2)), self.ops).astype(jnp.float32)


def build(config: Mapping[str, Any], weights: Weights, ops: Ops, dtype: str) -> Network:
    """See `plugins.models.family.Family.build`."""
    return Network(weights, Numbers.read(config, weights.count), ops, dtype)
