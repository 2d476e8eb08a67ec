"""A gpt-oss checkpoint in which every dimension is a different number, so that no transposition can hide.

Names, layouts and configs are spelled out by hand from what transformers and gpt_oss.torch expect; nothing of
Weightmill's own dialects, containers or codecs is used, so that the toy can judge them. Weights are random: the model
runs, and says nothing.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

Naming = Literal["hf", "original"]
Experts = Literal["bf16", "mxfp4"]

LAYERS, EXPERTS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTER, VOCAB = 3, 5, 6, 2, 24, 128, 224, 259
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
DISTINCT = (LAYERS, EXPERTS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTER, VOCAB, Q, KV, Q + 2 * KV, 2 * INTER)
assert len({*DISTINCT, HIDDEN // 32, INTER // 32, 16}) == len(DISTINCT) + 3
TOP_K, WINDOW, CONTEXT, FACTOR = 2, 8, 512, 4.0

SCALING: dict[str, Any] = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": FACTOR,
    "original_max_position_embeddings": CONTEXT,
}
SCALING |= {"rope_type": "yarn", "truncate": False}
HF_CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "eos_token_id": 1,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initial_context_length": CONTEXT,
    "initializer_range": 0.02,
    "intermediate_size": INTER,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 2048,
    "model_type": "gpt_oss",
    "num_attention_heads": HEADS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "num_local_experts": EXPERTS,
    "rms_norm_eps": 1e-5,
    "sliding_window": WINDOW,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}
ROPE_V5 = {"rope_parameters": {**SCALING, "rope_theta": 10000.0}}
ROPE_V4 = {"rope_scaling": SCALING, "rope_theta": 10000.0}
NOT_CONVERTED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
ORIGINAL_CONFIG = {
    "num_hidden_layers": LAYERS,
    "num_experts": EXPERTS,
    "experts_per_token": TOP_K,
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "swiglu_limit": 7.0,
    "head_dim": HEAD_DIM,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "sliding_window": WINDOW,
    "initial_context_length": CONTEXT,
    "rope_theta": 10000.0,
    "rope_scaling_factor": FACTOR,
    "rope_ntk_alpha": 1.0,
    "rope_ntk_beta": 32.0,
}


@dataclass(frozen=True)
class Toy:
    """One checkpoint.

    Attributes:
        config: config.json as it lies in the folder.
        leaves: stored arrays by their name in the files.
        logical: the same tensors under Hugging Face names, matrices [..., out, in]; MXFP4 ones as a pair
            (codes [..., in/2], scales [..., in/32]) of uint8.
    """

    config: dict[str, Any]
    leaves: dict[str, np.ndarray]
    logical: dict[str, Any]


def make(
    naming: Naming = "hf",
    experts: Experts = "bf16",
    seed: int = 0,
    plain_layers: tuple[int, ...] = (),
    v4: bool = False,
) -> Toy:
    """The toy in memory. Tensors depend on `seed` and `experts` only, so that namings can be compared.

    Args:
        naming: `hf` or `original`.
        experts: how expert matrices are stored.
        seed: of all weights.
        plain_layers: layers whose experts stay bf16 in an mxfp4 toy.
        v4: config.json with rope_theta and rope_scaling instead of rope_parameters (`hf` only).
    """
    logical = _logical(experts, np.random.default_rng(seed), plain_layers)
    leaves = _hf_leaves(logical) if naming == "hf" else _original_leaves(logical)
    if naming == "original":
        return Toy(dict(ORIGINAL_CONFIG), leaves, logical)
    config = {**HF_CONFIG, **(ROPE_V4 if v4 else ROPE_V5)}
    if experts == "mxfp4":
        skipped = [*NOT_CONVERTED, *(f"model.layers.{n}.mlp.experts" for n in plain_layers)]
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    return Toy(config, leaves, logical)


def write(folder: Path, toy: Toy, shards: int = 1) -> Path:
    """Write `toy` as a checkpoint folder with the safetensors package; with an index when there are several shards."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(toy.config, indent=2))
    if shards == 1:
        save_file(toy.leaves, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(toy.leaves)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        mine = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        save_file({n: toy.leaves[n] for n in mine}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(mine, file)
    total = sum(a.nbytes for a in toy.leaves.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


def _logical(experts: Experts, rng: np.random.Generator, plain_layers: tuple[int, ...]) -> dict[str, Any]:
    def normal(*shape: int, mean: float = 0.0, sd: float = 0.05) -> np.ndarray:
        return (mean + sd * rng.standard_normal(shape, dtype=np.float32)).astype(ml_dtypes.bfloat16)

    def matrices(layer: int, out: int, width: int) -> Any:
        if experts == "bf16" or layer in plain_layers:
            return normal(EXPERTS, out, width)
        # All 256 byte values occur, −0 among the nibbles; scales around 2⁻⁶ keep activations finite.
        codes = rng.integers(0, 256, (EXPERTS, out, width // 2), dtype=np.uint8)
        return codes, rng.integers(117, 124, (EXPERTS, out, width // 32), dtype=np.uint8)

    t: dict[str, Any] = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN, sd=1.0)}
    for n in range(LAYERS):
        layer = f"model.layers.{n}"
        t[f"{layer}.input_layernorm.weight"] = normal(HIDDEN, mean=1.0)
        for name, rows in (("q", Q), ("k", KV), ("v", KV)):
            t[f"{layer}.self_attn.{name}_proj.weight"] = normal(rows, HIDDEN)
            t[f"{layer}.self_attn.{name}_proj.bias"] = normal(rows)
        t[f"{layer}.self_attn.o_proj.weight"] = normal(HIDDEN, Q)
        t[f"{layer}.self_attn.o_proj.bias"] = normal(HIDDEN)
        t[f"{layer}.self_attn.sinks"] = normal(HEADS, sd=1.0)
        t[f"{layer}.post_attention_layernorm.weight"] = normal(HIDDEN, mean=1.0)
        t[f"{layer}.mlp.router.weight"] = normal(EXPERTS, HIDDEN)
        t[f"{layer}.mlp.router.bias"] = normal(EXPERTS)
        t[f"{layer}.mlp.experts.gate_up_proj"] = matrices(n, 2 * INTER, HIDDEN)
        t[f"{layer}.mlp.experts.gate_up_proj_bias"] = normal(EXPERTS, 2 * INTER)
        t[f"{layer}.mlp.experts.down_proj"] = matrices(n, HIDDEN, INTER)
        t[f"{layer}.mlp.experts.down_proj_bias"] = normal(EXPERTS, HIDDEN)
    t["model.norm.weight"] = normal(HIDDEN, mean=1.0)
    t["lm_head.weight"] = normal(VOCAB, HIDDEN)
    return t


def _blocks(codes: np.ndarray) -> np.ndarray:
    """[E, out, in/2] → [E, out, in/32, 16]."""
    return codes.reshape(*codes.shape[:-1], codes.shape[-1] // 16, 16)


def _hf_leaves(logical: dict[str, Any]) -> dict[str, np.ndarray]:
    leaves = {}
    for name, value in logical.items():
        if isinstance(value, tuple):
            leaves[f"{name}_blocks"], leaves[f"{name}_scales"] = _blocks(value[0]), value[1]
        elif value.ndim == 3:
            leaves[name] = np.ascontiguousarray(value.transpose(0, 2, 1))
        else:
            leaves[name] = value
    return leaves


def _original_leaves(logical: dict[str, Any]) -> dict[str, np.ndarray]:
    leaves = {"embedding.weight": logical["model.embed_tokens.weight"]}
    for n in range(LAYERS):
        t = {k.removeprefix(f"model.layers.{n}."): v for k, v in logical.items() if k.startswith(f"model.layers.{n}.")}
        attn = f"block.{n}.attn"
        leaves[f"{attn}.norm.scale"] = t["input_layernorm.weight"]
        for part in ("weight", "bias"):
            leaves[f"{attn}.qkv.{part}"] = np.concatenate([t[f"self_attn.{x}_proj.{part}"] for x in "qkv"])
            leaves[f"{attn}.out.{part}"] = t[f"self_attn.o_proj.{part}"]
            leaves[f"block.{n}.mlp.gate.{part}"] = t[f"mlp.router.{part}"]
        leaves[f"{attn}.sinks"] = t["self_attn.sinks"]
        leaves[f"block.{n}.mlp.norm.scale"] = t["post_attention_layernorm.weight"]
        for original, hf in (("mlp1", "gate_up_proj"), ("mlp2", "down_proj")):
            value = t[f"mlp.experts.{hf}"]
            if isinstance(value, tuple):
                leaves[f"block.{n}.mlp.{original}_weight.blocks"] = _blocks(value[0])
                leaves[f"block.{n}.mlp.{original}_weight.scales"] = value[1]
            else:
                leaves[f"block.{n}.mlp.{original}_weight"] = value
            leaves[f"block.{n}.mlp.{original}_bias"] = t[f"mlp.experts.{hf}_bias"]
    leaves["norm.scale"] = logical["model.norm.weight"]
    leaves["unembedding.weight"] = logical["lm_head.weight"]
    return leaves
