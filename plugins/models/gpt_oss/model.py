"""gpt-oss: grouped-query attention with sinks, every other layer sliding, YaRN, and a mixture of experts.

Facts from openai/gpt-oss (`gpt_oss/torch/model.py`) and transformers (`models/gpt_oss`): the router takes the top k
logits and softmaxes those; gate and up are interleaved rows of one matrix (gate ::2, up 1::2); the gate is clamped from
above only, the linear part on both sides, at 7; glu · σ(1.702 · glu) · (linear + 1).

N tokens, D hidden, E experts, F intermediate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from plugins.mesh.collectives import mixed
from plugins.models.common.cache import CacheView, LayerShape
from plugins.models.common.decoder import Decoder
from plugins.models.common.layers import Attention, Linear, RMSNorm
from plugins.models.common.ops import Ops
from plugins.models.common.weights import Weights
from plugins.models.gpt_oss.numbers import Numbers


def swiglu(h: Any, *, alpha: float, limit: float) -> Any:
    """[.., 2F] interleaved gate and up → [.., F]."""
    return clamped(h[..., ::2], h[..., 1::2], alpha=alpha, limit=limit)


def clamped(gate: Any, up: Any, *, alpha: float, limit: float) -> Any:
    """[.., F] of gate and up by themselves, [.., F] each; float32 in between, and rounded once."""
    dtype, gate, up = gate.dtype, gate.astype(jnp.float32), up.astype(jnp.float32)
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return (gate * jax.nn.sigmoid(alpha * gate) * (up + 1)).astype(dtype)


@dataclass(frozen=True, slots=True)
class SwiGLU:
    """`swiglu` with its numbers; equal ones are equal, as a `partial` is not."""

    alpha: float
    limit: float

    def __call__(self, h: Any) -> Any:
        return swiglu(h, alpha=self.alpha, limit=self.limit)

    @property
    def apart(self) -> "Clamped":
        """The same of gate and up by themselves; see `plugins.kernels.moe.pairs`."""
        return Clamped(self.alpha, self.limit)


@dataclass(frozen=True, slots=True)
class Clamped:
    """`clamped` with its numbers."""

    alpha: float
    limit: float

    def __call__(self, gate: Any, up: Any) -> Any:
        return clamped(gate, up, alpha=self.alpha, limit=self.limit)


class Experts(nnx.Module):
    """x [N, D] → [N, D], by the experts that the router chose."""

    def __init__(self, w: Weights, c: Numbers):
        self.router = Linear(w, "router", (c.experts, c.hidden), ("experts_out", "embed"), bias=True)
        e = w.scope("experts")
        self.gate_up = e.param("gate_up_proj", (c.experts, 2 * c.inter, c.hidden), ("experts", "mlp", "embed"))
        self.gate_up_bias = e.param("gate_up_proj_bias", (c.experts, 2 * c.inter), ("experts", "mlp"))
        self.down = e.param("down_proj", (c.experts, c.hidden, c.inter), ("experts", "embed", "mlp"))
        self.down_bias = e.param("down_proj_bias", (c.experts, c.hidden), ("experts", "embed"))
        self.chosen = c.chosen
        self.activation = SwiGLU(c.alpha, c.limit)

    def __call__(self, x: Any, live: Any, ops: Ops) -> Any:
        """Padding, `live` [N] false, reads no expert."""
        logits, chosen = jax.lax.top_k(self.router(x, ops), self.chosen)
        weights = jnp.where(live[:, None], ops.softmax(logits.astype(jnp.float32), axis=-1), 0.0)
        return mixed(
            ops.moe, x, chosen.astype(jnp.int32), weights, (self.gate_up.get_value(),),
            (self.gate_up_bias.get_value(),), self.down.get_value(), self.down_bias.get_value(),
            activation=self.activation, layout=self.down.layout,
        )  # fmt: skip


class Block(nnx.Module):
    """x [B, T, D] → [B, T, D]."""

    def __init__(self, w: Weights, c: Numbers, i: int):
        self.input_layernorm = RMSNorm(w, "input_layernorm", c.hidden, "embed", c.eps)
        self.self_attn = Attention(w.scope("self_attn"), c.attention[i])
        self.post_attention_layernorm = RMSNorm(w, "post_attention_layernorm", c.hidden, "embed", c.eps)
        self.mlp = Experts(w.scope("mlp"), c)

    def __call__(self, x: Any, layer: int, memory: CacheView, ops: Ops) -> Any:
        x = x + self.self_attn(self.input_layernorm(x, ops), layer, memory, ops)
        h = self.post_attention_layernorm(x, ops)
        return x + self.mlp(h.reshape(-1, h.shape[-1]), memory.live.reshape(-1), ops).reshape(h.shape)

    @property
    def cache_shape(self) -> LayerShape:
        return self.self_attn.cache_shape


def build(config: Mapping[str, Any], weights: Weights, ops: Ops, dtype: str) -> Decoder:
    """See `plugins.models.family.Family.build`."""
    c = Numbers.read(config, weights.count)
    return Decoder(
        weights, lambda w, i: Block(w, c, i), layers=len(c.attention), vocab=c.vocab, hidden=c.hidden, eps=c.eps,
        tied=False, ops=ops, dtype=dtype,
    )  # fmt: skip
