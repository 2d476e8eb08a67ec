"""A Llama checkpoint in which every dimension is a different number, and the same weights as llama.cpp lays them out.

Both sides are spelled out by hand, from `LlamaForCausalLM` of transformers and from `permute` and the tensor names of
llama.cpp's conversion scripts; nothing of Weightmill's dialects is used, so that the toy can judge them.
"""

from typing import Any

import ml_dtypes
import numpy as np

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTER, VOCAB = 3, 6, 2, 16, 128, 192, 67
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
assert len({LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTER, VOCAB, Q, KV}) == 9

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "dtype": "bfloat16",
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}
NAMES = {
    "self_attn.q_proj": ("attn_q", (Q, HIDDEN)),
    "self_attn.k_proj": ("attn_k", (KV, HIDDEN)),
    "self_attn.v_proj": ("attn_v", (KV, HIDDEN)),
    "self_attn.o_proj": ("attn_output", (HIDDEN, Q)),
    "mlp.gate_proj": ("ffn_gate", (INTER, HIDDEN)),
    "mlp.up_proj": ("ffn_up", (INTER, HIDDEN)),
    "mlp.down_proj": ("ffn_down", (HIDDEN, INTER)),
}


def weights(seed: int = 0, tied: bool = False, bias: bool = False) -> dict[str, np.ndarray]:
    """Tensors under Hugging Face names: matrices bf16, everything else fp32."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return (0.1 * rng.standard_normal(shape)).astype(ml_dtypes.bfloat16)

    def vector(n: int) -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)

    t = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN)}
    for n in range(LAYERS):
        layer = f"model.layers.{n}"
        t[f"{layer}.input_layernorm.weight"] = vector(HIDDEN)
        for name, (_, shape) in NAMES.items():
            if name == "mlp.gate_proj":
                t[f"{layer}.post_attention_layernorm.weight"] = vector(HIDDEN)
            t[f"{layer}.{name}.weight"] = matrix(*shape)
            if bias:
                t[f"{layer}.{name}.bias"] = vector(shape[0])
    t["model.norm.weight"] = vector(HIDDEN)
    if not tied:
        t["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    return t


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in llama.cpp's order, one by one."""
    d = rows.shape[0] // heads
    order = [h * d + p * d // 2 + i for h in range(heads) for i in range(d // 2) for p in range(2)]
    return rows[order]


def gguf_leaves(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors under llama.cpp's names, q and k permuted."""
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    out = {}
    for name, array in tensors.items():
        if name in top:
            out[top[name]] = array
            continue
        n, rest = name.removeprefix("model.layers.").split(".", 1)
        module, part = rest.rsplit(".", 1)
        norms = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
        leaf = norms.get(module) or NAMES[module][0]
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(leaf)
        out[f"blk.{n}.{leaf}.{part}"] = permute(array, heads) if heads else array
    return out


KV_METADATA = {
    "general.architecture": ("string", "llama"),
    "llama.block_count": ("uint32", LAYERS),
    "llama.context_length": ("uint32", 512),
    "llama.embedding_length": ("uint32", HIDDEN),
    "llama.feed_forward_length": ("uint32", INTER),
    "llama.attention.head_count": ("uint32", HEADS),
    "llama.attention.head_count_kv": ("uint32", KV_HEADS),
    "llama.attention.layer_norm_rms_epsilon": ("float32", float(np.float32(1e-5))),
    "llama.attention.key_length": ("uint32", HEAD_DIM),
    "llama.rope.dimension_count": ("uint32", HEAD_DIM),
    "llama.rope.freq_base": ("float32", 10000.0),
}
