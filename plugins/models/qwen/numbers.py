"""config.json of Qwen2, Qwen3 and Qwen3-MoE, read once: for the model, and for plans, which build none.

Facts from transformers (`models/qwen2`, `models/qwen3`, `models/qwen3_moe`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugins.facts.heads import usual_head_dim
from plugins.models.common.settings import ModelSettings
from plugins.models.common.shapes import AttentionShape, RopeFrequencies


@dataclass(frozen=True, slots=True)
class Numbers:
    """config.json, checked.

    Attributes:
        normalize: weights of the chosen experts add up to one.
        sparse: for each layer, whether it has experts.
        attention: of each layer.
    """

    vocab: int
    hidden: int
    inter: int
    eps: float
    act: str
    tied: bool
    experts: int
    chosen: int
    moe_inter: int
    normalize: bool
    sparse: tuple[bool, ...]
    attention: tuple[AttentionShape, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any], tensors: int | None = None) -> "Numbers":
        """By `ModelSettings`, whose errors it raises, and `RopeFrequencies.read`."""
        s = ModelSettings(config, tensors)
        qwen2, moe = config["model_type"] == "qwen2", config["model_type"] == "qwen3_moe"
        hidden, (heads, kv_heads), layers = s.count("hidden_size"), s.heads(), s.layers()
        head_dim = s.count("head_dim", usual_head_dim(config["model_type"], hidden, heads))
        vocab, inter = s.count("vocab_size"), s.count("intermediate_size")
        act, eps = s.activation("hidden_act", "silu"), s.positive("rms_norm_eps", 1e-6)
        tied, bias = s.get("tie_word_embeddings", bool, False), s.get("attention_bias", bool, False)
        window = s.window(4096) if s.get("use_sliding_window", bool, False) else None
        first = 0 if moe else s.get("max_window_layers", int, 28)
        late = [f"{'sliding' if window and i >= first else 'full'}_attention" for i in range(layers)]
        # Qwen3MoeConfig knows no kinds of layers: a window is of all of them.
        types = tuple(late) if moe else s.layer_types(layers, late)
        s.slides(types, window, "use_sliding_window is not true, or it is null")
        experts = chosen = moe_inter = 0
        sparse: list[bool] = [False] * layers
        if moe:
            experts = s.many("num_experts", s.get("num_local_experts", int, 128))
            chosen, moe_inter = s.count("num_experts_per_tok", 8), s.count("moe_intermediate_size")
            fits = chosen <= experts or not s.sound("num_experts", "num_experts_per_tok")
            s.require("num_experts_per_tok", fits, f"{chosen} of {experts} experts")
            step, dense = s.count("decoder_sparse_step", 1), frozenset(s.items("mlp_only_layers", int))
            sparse = [i not in dense and (i + 1) % step == 0 for i in range(layers)]
            all_of_them = sum(sparse) * experts
            text = f"{experts} in each of {sum(sparse)} layers are too many: {s.because}"
            s.require("num_experts", all_of_them <= s.most, text)
        normalize = s.get("norm_topk_prob", bool, False)
        s.check()
        rope = RopeFrequencies.read(config, head_dim)

        def attention(kind: str) -> AttentionShape:
            return AttentionShape(
                hidden, heads, kv_heads, head_dim, rope, window=window if kind == "sliding_attention" else None,
                qk_norm=None if qwen2 else eps, bias=qwen2 or bias, out_bias=bias and not qwen2,
            )  # fmt: skip

        return cls(
            vocab=vocab, hidden=hidden, inter=inter, eps=eps, act=act, tied=tied, experts=experts, chosen=chosen,
            moe_inter=moe_inter, normalize=normalize, sparse=tuple(sparse), attention=tuple(map(attention, types)),
        )  # fmt: skip
