"""Layers that every family has: linear, norm, attention, gated MLP. Shapes: B batch, T tokens, H heads, K KV heads.

No layer asks whether a weight is quantized: ops take arrays and QTensors alike.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from plugins.kernels.varying import along
from plugins.mesh.collectives import over, summed
from plugins.models.common.cache import CacheView, LayerShape
from plugins.models.common.ops import Ops
from plugins.models.common.shapes import AttentionShape
from plugins.models.common.weights import Weights

# hidden_act of config.json, as transformers names them.
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


class Linear(nnx.Module):
    """x [..., in] → [..., out]."""

    def __init__(self, w: Weights, name: str, shape: tuple[int, int], axes: tuple[str, str], *, bias: bool = False):
        self.weight = w.param(f"{name}.weight", shape, axes)
        self.bias = w.param(f"{name}.bias", shape[:1], axes[:1]) if bias else None

    def __call__(self, x: Any, ops: Ops) -> Any:
        bias = None if self.bias is None else self.bias.get_value()
        return summed(ops.matmul, x, self.weight.get_value(), bias, over(self.weight.layout, 1))


def together(x: Any, linears: Sequence[Linear], ops: Ops) -> list[Any]:
    """What each of `linears` makes of the same x, asked for at once."""
    divided = tuple(dict.fromkeys(axis for one in linears for axis in over(one.weight.layout, 0)))
    x = along(divided, x)  # once for all: its gradient is then added up over devices once
    biases = (None if one.bias is None else one.bias.get_value() for one in linears)
    return ops.matmul.together(*((x, one.weight.get_value(), b) for one, b in zip(linears, biases, strict=True)))


class RMSNorm(nnx.Module):
    """x [..., D] → the same shape; `plus_one` is Gemma's 1 + weight."""

    def __init__(self, w: Weights, name: str, dim: int, axis: str, eps: float, *, plus_one: bool = False):
        self.weight = w.param(f"{name}.weight", (dim,), (axis,))
        self.eps, self.plus_one = eps, plus_one

    def __call__(self, x: Any, ops: Ops) -> Any:
        return ops.rms_norm(x, self.weight.get_value(), eps=self.eps, plus_one=self.plus_one)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions: x [B, T, hidden] → [B, T, hidden]."""

    def __init__(self, w: Weights, shape: AttentionShape):
        s = shape
        d, q, kv = s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.q_proj = Linear(w, "q_proj", (q, d), ("heads", "embed"), bias=s.bias)
        self.k_proj = Linear(w, "k_proj", (kv, d), ("kv_heads", "embed"), bias=s.bias)
        self.v_proj = Linear(w, "v_proj", (kv, d), ("kv_heads", "embed"), bias=s.bias)
        self.o_proj = Linear(w, "o_proj", (d, q), ("embed", "heads"), bias=s.out_bias)
        eps = s.qk_norm
        self.q_norm = RMSNorm(w, "q_norm", s.head_dim, "head", eps, plus_one=s.plus_one) if eps is not None else None
        self.k_norm = RMSNorm(w, "k_norm", s.head_dim, "head", eps, plus_one=s.plus_one) if eps is not None else None
        self.sinks = w.param("sinks", (s.heads,), ("heads",)) if s.sinks else None
        self.shape = shape

    def __call__(self, x: Any, layer: int, memory: CacheView, ops: Ops) -> Any:
        s = self.shape
        lead = x.shape[:2]
        # The heads that lie here.
        q, k, v = (y.reshape(*lead, -1, s.head_dim) for y in together(x, (self.q_proj, self.k_proj, self.v_proj), ops))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, ops), self.k_norm(k, ops)
        inv_freq = jnp.asarray(s.rope.inv_freq, jnp.float32)
        q = ops.rope(q, memory.positions, inv_freq, concentration=s.rope.concentration)
        k = ops.rope(k, memory.positions, inv_freq, concentration=s.rope.concentration)
        keys, values, key_positions = memory.extend(layer, k, v, s.window)
        out = ops.attention(
            q, keys, values, memory.positions, key_positions,
            scale=s.head_dim**-0.5 if s.scale is None else s.scale, window=s.window, softcap=s.softcap,
            sinks=None if self.sinks is None else self.sinks.get_value(), segments=memory.segments,
        )  # fmt: skip
        return self.o_proj(out.reshape(*lead, -1), ops)

    @property
    def cache_shape(self) -> LayerShape:
        return LayerShape(self.shape.kv_heads, self.shape.head_dim, self.shape.window)


class MLP(nnx.Module):
    """down(act(gate(x)) · up(x)): x [..., hidden] → [..., hidden]."""

    def __init__(self, w: Weights, hidden: int, inter: int, act: str, *, bias: bool = False):
        self.gate_proj = Linear(w, "gate_proj", (inter, hidden), ("mlp", "embed"), bias=bias)
        self.up_proj = Linear(w, "up_proj", (inter, hidden), ("mlp", "embed"), bias=bias)
        self.down_proj = Linear(w, "down_proj", (hidden, inter), ("embed", "mlp"), bias=bias)
        self.act = act

    def __call__(self, x: Any, ops: Ops) -> Any:
        gate, up = together(x, (self.gate_proj, self.up_proj), ops)
        return self.down_proj(ACTIVATIONS[self.act](gate) * up, ops)
