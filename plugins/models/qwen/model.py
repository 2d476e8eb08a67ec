"""Qwen2 (biases on q, k, v), Qwen3 (norms on every head of q and k) and Qwen3-MoE (sparse experts).

Facts from transformers (`models/qwen2`, `models/qwen3`, `models/qwen3_moe`). Unlike gpt-oss, Qwen3-MoE softmaxes over
all experts first, takes the top k of that, and renormalizes them when config.json says `norm_topk_prob`.
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
from plugins.models.common.layers import ACTIVATIONS, MLP, Attention, Linear, RMSNorm
from plugins.models.common.ops import Ops
from plugins.models.common.shapes import AttentionShape
from plugins.models.common.weights import Weights
from plugins.models.qwen.numbers import Numbers


@dataclass(frozen=True, slots=True)
class Gated:
    """gate, up [.., F] → [.., F]; `act` is a key of `ACTIVATIONS`."""

    act: str

    def __call__(self, gate: Any, up: Any) -> Any:
        return ACTIVATIONS[self.act](gate) * up


class Experts(nnx.Module):
    """x [B, T, D] → [B, T, D], by the experts that the router chose. Files hold experts one by one."""

    def __init__(self, w: Weights, hidden: int, inter: int, experts: int, chosen: int, act: str, *, normalize: bool):
        self.router = Linear(w, "gate", (experts, hidden), ("experts_out", "embed"))

        def stack(name: str, rows: int, columns: int, axes: tuple[str, str]) -> nnx.Param[Any]:
            names = [f"experts.{e}.{name}.weight" for e in range(experts)]
            return w.stack(names, (experts, rows, columns), ("experts", *axes))

        self.gate_proj = stack("gate_proj", inter, hidden, ("mlp", "embed"))
        self.up_proj = stack("up_proj", inter, hidden, ("mlp", "embed"))
        self.down_proj = stack("down_proj", hidden, inter, ("embed", "mlp"))
        self.chosen, self.normalize, self.activation = chosen, normalize, Gated(act)

    def __call__(self, x: Any, live: Any, ops: Ops) -> Any:
        """Padding, `live` [B, T] false, reads no expert."""
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = jax.lax.top_k(ops.softmax(self.router(flat, ops).astype(jnp.float32), axis=-1), self.chosen)
        if self.normalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        weights = jnp.where(live.reshape(-1, 1), weights, 0.0)
        out = mixed(
            ops.moe, flat, chosen.astype(jnp.int32), weights, (self.gate_proj.get_value(), self.up_proj.get_value()),
            (None, None), self.down_proj.get_value(), None, activation=self.activation, layout=self.down_proj.layout,
        )  # fmt: skip
        return out.reshape(x.shape)


class Block(nnx.Module):
    """x [B, T, D] → [B, T, D]."""

    def __init__(self, w: Weights, shape: AttentionShape, eps: float, mlp: Experts | MLP):
        self.input_layernorm = RMSNorm(w, "input_layernorm", shape.hidden, "embed", eps)
        self.self_attn = Attention(w.scope("self_attn"), shape)
        self.post_attention_layernorm = RMSNorm(w, "post_attention_layernorm", shape.hidden, "embed", eps)
        self.mlp = mlp

    def __call__(self, x: Any, layer: int, memory: CacheView, ops: Ops) -> Any:
        x = x + self.self_attn(self.input_layernorm(x, ops), layer, memory, ops)
        h = self.post_attention_layernorm(x, ops)
        return x + (self.mlp(h, memory.live, ops) if isinstance(self.mlp, Experts) else self.mlp(h, ops))

    @property
    def cache_shape(self) -> LayerShape:
        return self.self_attn.cache_shape


def build(config: Mapping[str, Any], weights: Weights, ops: Ops, dtype: str) -> Decoder:
    """See `plugins.models.family.Family.build`."""
    c = Numbers.read(config, weights.count)

    def block(w: Weights, i: int) -> Block:
        m = w.scope("mlp")
        mlp = (
            Experts(m, c.hidden, c.moe_inter, c.experts, c.chosen, c.act, normalize=c.normalize)
            if c.sparse[i]
            else MLP(m, c.hidden, c.inter, c.act)
        )
        return Block(w, c.attention[i], c.eps, mlp)

    return Decoder(
        weights, block, layers=len(c.attention), vocab=c.vocab, hidden=c.hidden, eps=c.eps, tied=c.tied, ops=ops,
        dtype=dtype,
    )  # fmt: skip
