"""Llama 2 and 3 with rope scaling, SmolLM2 with tied embeddings, Mistral with its sliding window.

Facts from transformers (`models/llama`, `models/mistral`).
"""

from collections.abc import Mapping
from typing import Any

from flax import nnx

from plugins.kernels.rope.frequencies import frequencies
from plugins.models.common.cache import CacheView, LayerShape
from plugins.models.common.decoder import Decoder
from plugins.models.common.layers import ACTIVATIONS, MLP, Attention, AttentionShape, RMSNorm, RopeFrequencies
from plugins.models.common.ops import Ops
from plugins.models.common.settings import ModelSettings
from plugins.models.common.weights import Weights


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
    s = ModelSettings(config)
    mistral = config.get("model_type") == "mistral"
    hidden, (heads, kv_heads), layers = s.count("hidden_size"), s.heads(), s.layers(weights)
    head_dim = s.count("head_dim", hidden // heads)
    inter, vocab = s.count("intermediate_size"), s.count("vocab_size")
    act = s.one_of("hidden_act", tuple(ACTIVATIONS), "silu")
    eps, tied = s.get("rms_norm_eps", float, 1e-6), s.get("tie_word_embeddings", bool, False)
    bias, mlp_bias = s.get("attention_bias", bool, False), s.get("mlp_bias", bool, False)
    window = s.config.get("sliding_window") and s.count("sliding_window") if mistral else None
    types = s.layer_types(layers, ["sliding_attention" if window else "full_attention"] * layers)
    s.check()
    inv_freq, concentration = frequencies(config, head_dim)
    rope = RopeFrequencies(tuple(map(float, inv_freq)), concentration)

    def block(w: Weights, i: int) -> Block:
        seen = window if types[i] == "sliding_attention" else None
        shape = AttentionShape(hidden, heads, kv_heads, head_dim, rope, window=seen or None, bias=bias, out_bias=bias)
        return Block(w, shape, inter, act, eps, mlp_bias=mlp_bias)

    return Decoder(weights, block, layers=layers, vocab=vocab, hidden=hidden, eps=eps, tied=tied, ops=ops, dtype=dtype)
