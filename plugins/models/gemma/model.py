"""Gemma 3 (text): norms before and after each half of a block, norms on heads, local and global layers.

Facts from transformers (`models/gemma3`): every norm multiplies by 1 + weight; embeddings are scaled by √hidden, in the
dtype of activations; local layers (five of six) have a window and a rope of their own (`rope_local_base_freq`, or
`rope_parameters` by layer type); logits of attention are scaled by query_pre_attn_scalar ** -0.5.
"""

from collections.abc import Mapping
from typing import Any

from flax import nnx

from plugins.facts import gemma
from plugins.kernels.rope.frequencies import frequencies
from plugins.models.common.cache import CacheView, LayerShape
from plugins.models.common.decoder import Decoder
from plugins.models.common.layers import ACTIVATIONS, MLP, Attention, AttentionShape, RMSNorm, RopeFrequencies
from plugins.models.common.ops import Ops
from plugins.models.common.settings import ModelSettings
from plugins.models.common.weights import Weights


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
    s = ModelSettings(config)
    # Gemma3TextConfig's defaults: config.json of the small models leaves some of them out.
    hidden, layers = s.count("hidden_size", 2304), s.layers(weights, 26)
    heads, kv_heads = s.heads(8, 4)
    head_dim, inter, vocab = s.count("head_dim", 256), s.count("intermediate_size", 9216), s.count("vocab_size", 262208)
    act = s.one_of("hidden_activation", tuple(ACTIVATIONS), "gelu_pytorch_tanh")
    eps, tied = s.get("rms_norm_eps", float, 1e-6), s.get("tie_word_embeddings", bool, True)
    scale = s.positive("query_pre_attn_scalar", float(gemma.QUERY_SCALE)) ** -0.5
    bias = s.get("attention_bias", bool, False)
    window, every = s.count("sliding_window", 4096), s.count("sliding_window_pattern", gemma.PERIOD)
    types = s.layer_types(layers, gemma.layer_types(layers, every))
    attention_cap = s.positive("attn_logit_softcapping", None)
    final_cap = s.positive("final_logit_softcapping", None)
    s.refuse("use_bidirectional_attention", "only causal attention is supported", False)
    s.check()
    ropes = {}
    for kind in sorted(set(types)):
        inv_freq, concentration = frequencies({**config, "rope_parameters": gemma.rope(config, kind)}, head_dim)
        ropes[kind] = RopeFrequencies(tuple(map(float, inv_freq)), concentration)

    def block(w: Weights, i: int) -> Block:
        shape = AttentionShape(
            hidden, heads, kv_heads, head_dim, ropes[types[i]], scale=scale, softcap=attention_cap, qk_norm=eps,
            window=window if types[i] == gemma.SLIDING else None, plus_one=True, bias=bias, out_bias=bias,
        )  # fmt: skip
        return Block(w, shape, inter, act, eps)

    return Decoder(
        weights, block, layers=layers, vocab=vocab, hidden=hidden, eps=eps, tied=tied, ops=ops, dtype=dtype,
        plus_one=True, embed_scale=hidden**0.5, softcap=final_cap,
    )  # fmt: skip
