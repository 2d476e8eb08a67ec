"""config.json of Gemma 3 (text), read once: for the model, and for plans, which build none.

Facts from transformers (`models/gemma3`): local layers (five of six) have a window and a rope of their own
(`rope_local_base_freq`, or `rope_parameters` by layer type); logits of attention are scaled by
query_pre_attn_scalar ** -0.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugins.facts import gemma
from plugins.facts.heads import HEAD_DIMS
from plugins.models.common.settings import ModelSettings
from plugins.models.common.shapes import AttentionShape, RopeFrequencies


@dataclass(frozen=True, slots=True)
class Numbers:
    """config.json, checked.

    Attributes:
        softcap: of the logits.
        attention: of each layer.
    """

    vocab: int
    hidden: int
    inter: int
    eps: float
    act: str
    tied: bool
    softcap: float | None
    attention: tuple[AttentionShape, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any], tensors: int | None = None) -> "Numbers":
        """By `ModelSettings`, whose errors it raises, and `RopeFrequencies.read`."""
        s = ModelSettings(config, tensors)
        # Gemma3TextConfig's defaults: config.json of the small models leaves some of them out.
        hidden, layers = s.count("hidden_size", 2304), s.layers(26)
        heads, kv_heads = s.heads(8, 4)
        head_dim, inter = s.count("head_dim", HEAD_DIMS["gemma3_text"]), s.count("intermediate_size", 9216)
        vocab, act = s.count("vocab_size", 262208), s.activation("hidden_activation", "gelu_pytorch_tanh")
        eps, tied = s.positive("rms_norm_eps", 1e-6), s.get("tie_word_embeddings", bool, True)
        scale = s.positive("query_pre_attn_scalar", float(gemma.QUERY_SCALE)) ** -0.5
        bias = s.get("attention_bias", bool, False)
        window, every = s.window(4096), s.count("sliding_window_pattern", gemma.PERIOD)
        types = s.layer_types(layers, gemma.layer_types(layers, every))
        s.slides(types, window)
        final_cap = s.positive("final_logit_softcapping", None)
        s.refuse("attn_logit_softcapping", "only Gemma 2 caps logits of attention; transformers passes it over here")
        s.refuse("use_bidirectional_attention", "only causal attention is supported", False)
        s.check()
        ropes = {kind: RopeFrequencies.read(config, head_dim, gemma.rope(config, kind)) for kind in sorted(set(types))}

        def attention(kind: str) -> AttentionShape:
            return AttentionShape(
                hidden, heads, kv_heads, head_dim, ropes[kind], scale=scale, qk_norm=eps,
                window=window if kind == gemma.SLIDING else None, plus_one=True, bias=bias, out_bias=bias,
            )  # fmt: skip

        return cls(vocab, hidden, inter, eps, act, tied, final_cap, tuple(map(attention, types)))
