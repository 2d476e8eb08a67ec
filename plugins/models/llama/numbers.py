"""config.json of Llama 2 and 3, SmolLM2 and Mistral, read once: for the model, and for plans, which build none.

Facts from transformers (`models/llama`, `models/mistral`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugins.facts import mistral
from plugins.models.common.settings import ModelSettings
from plugins.models.common.shapes import AttentionShape, RopeFrequencies


@dataclass(frozen=True, slots=True)
class Numbers:
    """config.json, checked.

    Attributes:
        attention: of each layer.
    """

    vocab: int
    hidden: int
    inter: int
    eps: float
    act: str
    tied: bool
    mlp_bias: bool
    attention: tuple[AttentionShape, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any], tensors: int | None = None) -> "Numbers":
        """By `ModelSettings`, whose errors it raises, and `RopeFrequencies.read`."""
        s = ModelSettings(config, tensors)
        slides = config.get("model_type") in mistral.FAMILIES
        hidden, (heads, kv_heads), layers = s.count("hidden_size"), s.heads(), s.layers()
        head_dim = s.count("head_dim", hidden // heads)
        inter, vocab = s.count("intermediate_size"), s.count("vocab_size")
        act = s.activation("hidden_act", "silu")
        eps, tied = s.positive("rms_norm_eps", 1e-6), s.get("tie_word_embeddings", bool, False)
        bias, mlp_bias = s.get("attention_bias", bool, False), s.get("mlp_bias", bool, False)
        window = s.window(mistral.WINDOW) if slides else None
        types = s.layer_types(layers, ["sliding_attention" if window else "full_attention"] * layers)
        if slides:
            s.slides(types, window)
        s.check()
        rope = RopeFrequencies.read(config, head_dim)

        def attention(kind: str) -> AttentionShape:
            seen = window if kind == "sliding_attention" else None
            return AttentionShape(hidden, heads, kv_heads, head_dim, rope, window=seen, bias=bias, out_bias=bias)

        return cls(vocab, hidden, inter, eps, act, tied, mlp_bias, tuple(map(attention, types)))
