"""Gemma 3 (text): norms before and after each half of a block, norms on heads, local and global layers.

Facts from transformers (`models/gemma3`): every norm multiplies by 1 + weight; embeddings are scaled by √hidden, in the
dtype of activations; local layers (five of six) have a window and a rope of their own (`rope_local_base_freq`, or
`rope_parameters` by layer type); logits of attention are scaled by query_pre_attn_scalar ** -0.5.
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
from plugins.models.gemma.numbers import Numbers


class Block(nnx.Module):
    """x [B, T, D] → [B, T, D]."""

    def __init__(self, w: Weights, shape: AttentionShape, inter: int, act: str, eps: float):
        def norm(name: str) -> RMSNorm:
            return RMSNorm(w, name, shape.hidden, "embed", eps, plus_one=True)

        self.input_layernorm = norm("input_layernorm")
        self.self_attn = Attention(w.scope("self_attn"), shape)
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm")
        self.mlp = MLP(w.scope("mlp"), shape.hidden, inter, act)
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")

    def __call__(self, x: Any, layer: int, memory: CacheView, ops: Ops) -> Any:
        h = self.self_attn(self.input_layernorm(x, ops), layer, memory, ops)
        x = x + self.post_attention_layernorm(h, ops)
        h = self.mlp(self.pre_feedforward_layernorm(x, ops), ops)
        return x + self.post_feedforward_layernorm(h, ops)

    @property
    def cache_shape(self) -> LayerShape:
        return self.self_attn.cache_shape


def build(config: Mapping[str, Any], weights: Weights, ops: Ops, dtype: str) -> Decoder:
    """See `plugins.models.family.Family.build`."""
    c = Numbers.read(config, weights.count)
    return Decoder(
        weights, lambda w, i: Block(w, c.attention[i], c.inter, c.act, c.eps), layers=len(c.attention), vocab=c.vocab,
        hidden=c.hidden, eps=c.eps, tied=c.tied, ops=ops, dtype=dtype, plus_one=True, embed_scale=c.hidden**0.5,
        softcap=c.softcap,
    )  # fmt: skip
