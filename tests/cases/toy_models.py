"""Toy checkpoints of every family, made and saved by transformers: nothing of Weightmill's has a hand in them.

Every dimension is a different number, so that no transposition can hide; weights are random, norms, biases and sinks
included, and large enough that every part of a model shows in its logits. They are exact in bfloat16.
"""

import json
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 192, 320, 8, 2, 16, 3, 211
EXPERTS, CHOSEN, EXPERT_INTER, WINDOW, CONTEXT = 9, 5, 64, 7, 24
ROWS, LENGTH = 4, 44  # of what the models are shown: past the window and the original context
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
DISTINCT = (
    HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, EXPERTS, CHOSEN, EXPERT_INTER, WINDOW, CONTEXT, Q, KV,
    ROWS, LENGTH,
)  # fmt: skip
assert len(set(DISTINCT)) == len(DISTINCT)

_SHAPE = {
    "hidden_size": HIDDEN, "intermediate_size": INTER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 768,
    "rms_norm_eps": 1e-5, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_MOE = {"num_experts_per_tok": CHOSEN, "num_experts": EXPERTS, "moe_intermediate_size": EXPERT_INTER}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": CONTEXT,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 1500.0, "factor": 32.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": CONTEXT,
}  # fmt: skip
_GPT_OSS = {
    "num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "sliding_window": WINDOW,
    "swiglu_limit": 2.0,  # so low that much is clamped
}  # fmt: skip
_GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 7000.0},
}


def _default(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


@dataclass(frozen=True)
class Kind:
    """A config class of transformers and its options; `plus_one`: norms multiply by 1 + weight."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    plus_one: bool = False

    @property
    def moe(self) -> bool:
        return "num_experts_per_tok" in self.options


KINDS = {
    "llama2": Kind("Llama", {"rope_parameters": _default(900.0)}),
    "llama3": Kind("Llama", {"rope_parameters": _LLAMA3}),
    "llama-linear-biases": Kind(
        "Llama",
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 700.0, "factor": 4.0},
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_act": "gelu",
        },
    ),
    "smollm2": Kind("Llama", {"rope_parameters": _default(800.0), "tie_word_embeddings": True}),
    "mistral": Kind("Mistral", {"rope_parameters": _default(600.0), "sliding_window": WINDOW}),
    "ministral": Kind(
        "Ministral",
        {
            "rope_parameters": _default(600.0),
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen2": Kind("Qwen2", {"rope_parameters": _default(500.0)}),
    "qwen2-window": Kind(
        "Qwen2",
        {
            "rope_parameters": _default(500.0),
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
        },
    ),
    "qwen3": Kind("Qwen3", {"rope_parameters": _default(400.0), "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-moe": Kind(
        "Qwen3Moe", {**_MOE, "rope_parameters": _default(400.0), "norm_topk_prob": True, "mlp_only_layers": [1]}
    ),
    "qwen3-moe-unnormalized": Kind(
        "Qwen3Moe", {**_MOE, "rope_parameters": _default(400.0), "norm_topk_prob": False, "decoder_sparse_step": 2}
    ),
    "gemma3": Kind(
        "Gemma3",
        {
            "rope_parameters": _GEMMA_ROPES,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 20,
        },
        plus_one=True,
    ),
    "gemma3-capped": Kind(
        "Gemma3",
        {
            "rope_parameters": _GEMMA_ROPES,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 20,
            "final_logit_softcapping": 9.0,
            "tie_word_embeddings": False,
        },
        plus_one=True,
    ),
    "gpt-oss": Kind("GptOss", {**_GPT_OSS, "rope_parameters": _YARN}),
    "gpt-oss-truncated": Kind("GptOss", {**_GPT_OSS, "rope_parameters": {**_YARN, "truncate": True}}),
}


def make(folder: Path, name: str, **options: Any) -> Any:
    """Save a toy as bfloat16 to `folder`; returns transformers' model of it in float32, with eager attention.

    Args:
        name: a key of `KINDS`.
        options: of its config, over the kind's own.
    """
    import torch
    import transformers

    kind = KINDS[name]
    config = getattr(transformers, f"{kind.name}{'Text' * (kind.name == 'Gemma3')}Config")(
        **{**_SHAPE, **kind.options, **options, "dtype": "bfloat16"}
    )
    torch.manual_seed(len(name))
    family = getattr(transformers, f"{kind.name}ForCausalLM")
    model = family(config).to(torch.float32)
    with torch.no_grad():
        for path, p in model.named_parameters():
            p.copy_(_random(path, p, kind.plus_one, config.tie_word_embeddings))
    model.to(torch.bfloat16).save_pretrained(folder)  # rounds the rotary frequencies as well: read anew
    return read(folder, name)


def read(folder: Path, name: str) -> Any:
    """transformers' model in float32 of a folder that `make` wrote."""
    import transformers

    family = getattr(transformers, f"{KINDS[name].name}ForCausalLM")
    return family.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()


@dataclass(frozen=True)
class Toy:
    """A toy, and what transformers computes from `ids` [ROWS, LENGTH]: hidden states by layer, and logits."""

    folder: Path
    ids: Any
    taps: dict[str, Any]

    @property
    def logits(self) -> Any:
        return self.taps["logits"]


_FOLDER = tempfile.TemporaryDirectory(prefix="toys-")


@cache
def toy(name: str) -> Toy:
    """The toy `name`, made once a process."""
    folder = Path(_FOLDER.name) / name
    model = make(folder, name)
    ids = np.random.default_rng(len(name)).integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    return Toy(folder, ids, taps(model, ids))


def taps(model: Any, ids: Any) -> dict[str, Any]:
    """What comes out of each part of a transformers model: embed, layers.0, …, norm, logits."""
    import torch

    found: dict[str, Any] = {}

    def hook(name: str) -> Any:
        def keep(module: Any, args: Any, out: Any) -> None:
            found[name] = (out[0] if isinstance(out, tuple) else out).numpy()

        return keep

    parts = {"embed": model.model.embed_tokens, "norm": model.model.norm}
    parts |= {f"layers.{i}": layer for i, layer in enumerate(model.model.layers)}
    handles = [part.register_forward_hook(hook(name)) for name, part in parts.items()]
    with torch.no_grad():
        found["logits"] = model(torch.tensor(ids, dtype=torch.int64), use_cache=False).logits.numpy()
    for handle in handles:
        handle.remove()
    return found


def _random(path: str, p: Any, plus_one: bool, tied: bool) -> Any:
    import torch

    noise = torch.randn(p.shape)
    if path.endswith(("norm.weight", "layernorm.weight")):
        return 0.3 * noise if plus_one else 1 + 0.3 * noise
    if "bias" in path or p.ndim == 1:
        return 0.4 * noise
    if "embed_tokens" in path:
        return noise / p.shape[-1] ** 0.5 if plus_one or tied else noise  # Gemma scales them by √hidden
    return 1.5 * noise / p.shape[-2 if path.endswith(("gate_up_proj", "down_proj")) and _transposed(p) else -1] ** 0.5


def _transposed(p: Any) -> bool:
    """Whether an expert stack lies [E, in, out], as transformers' gpt-oss has it."""
    return tuple(p.shape) in {(EXPERTS, HIDDEN, 2 * INTER), (EXPERTS, INTER, HIDDEN)}


def as_version_4(folder: Path) -> None:
    """Rewrite config.json as transformers 4 spells it: rope_theta and rope_scaling, no layer_types, torch_dtype."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    if local := rope.get("sliding_attention"):
        config["rope_local_base_freq"] = local["rope_theta"]
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern", 2)
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    path.write_text(json.dumps(config, indent=2))
