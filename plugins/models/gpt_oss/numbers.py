"""config.json of gpt-oss, read once: for the model, and for plans, which build none.

Facts from openai/gpt-oss (`gpt_oss/torch/model.py`) and transformers (`models/gpt_oss`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugins.facts import gpt_oss
from plugins.facts.heads import usual_head_dim
from plugins.models.common.settings import ModelSettings
from plugins.models.common.shapes import AttentionShape, RopeFrequencies


@dataclass(frozen=True, slots=True)
class Numbers:
    """config.json, checked.

    Attributes:
        alpha, limit: of `plugins.models.gpt_oss.model.swiglu`.
        attention: of each layer.
    """

    vocab: int
    hidden: int
    inter: int
    experts: int
    chosen: int
    eps: float
    alpha: float
    limit: float
    attention: tuple[AttentionShape, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any], tensors: int | None = None) -> "Numbers":
        """By `ModelSettings`, whose errors it raises, and `RopeFrequencies.read`."""
        s = ModelSettings(config, tensors)
        hidden, (heads, kv_heads), layers = s.count("hidden_size"), s.heads(), s.layers()
        # 20b and 120b alternate, sliding first; transformers' default where `layer_types` is absent.
        types = s.layer_types(layers, gpt_oss.layer_types(layers))
        window = s.window(gpt_oss.WINDOW)
        s.slides(types, window)
        head_dim = s.count("head_dim", usual_head_dim(gpt_oss.FAMILY, hidden, heads))
        experts = s.count("num_local_experts")
        chosen = s.count("num_experts_per_tok", gpt_oss.CHOSEN)
        if config.get("num_experts_per_tok") is None:
            text = f"transformers reads num_experts_per_tok, and takes {chosen} where that is absent"
            s.refuse("experts_per_token", text, chosen)
        fits = chosen <= experts or not s.sound("num_local_experts", "num_experts_per_tok")
        s.require("num_experts_per_tok", fits, f"{chosen} of {experts} experts")
        s.one_of("hidden_act", (gpt_oss.ACTIVATION,), gpt_oss.ACTIVATION)
        s.refuse("tie_word_embeddings", "gpt-oss has a head of its own", False)
        eps, alpha = s.positive("rms_norm_eps", gpt_oss.EPS), s.get("swiglu_alpha", float, gpt_oss.SWIGLU_ALPHA)
        limit = s.get("swiglu_limit", float, gpt_oss.SWIGLU_LIMIT)
        vocab, inter = s.count("vocab_size"), s.count("intermediate_size")
        kv_heads = s.count("num_key_value_heads")
        bias = s.get("attention_bias", bool, True)
        s.check()
        rope = RopeFrequencies.read(config, head_dim, gpt_oss.rope(config))

        def attention(kind: str) -> AttentionShape:
            return AttentionShape(
                hidden, heads, kv_heads, head_dim, rope, window=window if kind == "sliding_attention" else None,
                sinks=True, bias=bias, out_bias=bias,
            )  # fmt: skip

        return cls(
            vocab=vocab, hidden=hidden, inter=inter, experts=experts, chosen=chosen, eps=eps, alpha=alpha, limit=limit,
            attention=tuple(map(attention, types)),
        )  # fmt: skip
