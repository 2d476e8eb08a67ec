"""Llama 2 and 3 with rope scaling, SmolLM2 with tied embeddings, Mistral with its sliding window.

Facts from transformers (`models/llama`, `models/mistral`).
"""

from collections.abc import Mapping
from typing import Any

from flax import nnx

from plugins.models.common.cache import CacheView, LayerShape
from plugins.models.common.decoder import Decoder
from plugins.models.common.layers import MLP, Attention, RMSNorm
from plugins.models.common.ops import Ops
from plugins.models.common.shapes import AttentionShape
from plugins.models.common.weights import Weights
from plugins.models.llama.numbers import Numbers


class Block(nnx.Module):
    """x [B, T, D] → [B, T, D]."""

    def __init__(self, w: Weights, shape: AttentionShape, inter: int, act: str, eps: float, *, mlp_bias: bool):
        self.input_layernorm = RMSNorm(w, "input_layernorm", shape.hidden, "embed", eps)
        self.self_attn = Attention(w.scope("self_attn"), shape)
        self.post_attention_layernorm = RMSNorm(w, "post_attention_layernorm", shape.hidden, "embed", eps)
        self.mlp = MLP(w.scope("mlp"), shape.hidden, inter, act, bias=mlp_bias)

    def __call__(self, x: Any, layer: int, memory: CacheView, ops: Ops) -> Any:
        x = x + self.self_attn(self.input_layernorm(x, ops), layer, memory, ops)
        return x + self.mlp(self.post_attention_layernorm(x, ops), ops)

    @property
    def cache_shape(self) -> LayerShape:
        return self.self_attn.cache_shape


def build(config: Mapping[str, Any], weights: Weights, ops: Ops, dtype: str) -> Decoder:
    """See `plugins.models.family.Family.build`."""
    c = Numbers.read(config, weights.count)

    def block(w: Weights, i: int) -> Block:
        return Block(w, c.attention[i], c.inter, c.act, c.eps, mlp_bias=c.mlp_bias)

    return Decoder(
        weights, block, layers=len(c.attention), vocab=c.vocab, hidden=c.hidden, eps=c.eps, tied=c.tied, ops=ops,
        dtype=dtype,
    )  # fmt: skip
