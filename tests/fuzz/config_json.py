"""config.json and its companions beside the weights of tiny models: through load, every writer and every family."""

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.tensors.spec import TensorSpec
from plugins.formats.gguf.archs import ARCHS
from plugins.formats.gguf.config import sizes_of
from plugins.formats.gguf.table import entries
from plugins.formats.safetensors.container import SafeTensors
from tests.fuzz.driver import Files, put
from tests.fuzz.loading import config, opened, used
from tests.fuzz.mutate import changed_json, one, value

ORIGINAL = {
    "num_hidden_layers": 2, "num_experts": 3, "experts_per_token": 2, "vocab_size": 40, "hidden_size": 32,
    "intermediate_size": 64, "swiglu_limit": 7.0, "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
    "sliding_window": 8, "initial_context_length": 16, "rope_theta": 150000.0, "rope_scaling_factor": 4.0,
    "rope_ntk_alpha": 1.0, "rope_ntk_beta": 32.0,
}  # fmt: skip
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*norm.*"],
    "config_groups": {"group_0": {"targets": ["Linear"], "format": None, "weights": {
        "num_bits": 4, "type": "int", "symmetric": True, "group_size": 32, "strategy": "group", "dynamic": False,
    }}},
}  # fmt: skip
QUANTIZATION: tuple[Any, ...] = (
    None, COMPRESSED, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, {"quant_method": "mxfp4"},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
)  # fmt: skip
COMPANION = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}


@cache
def weights(name: str, original: bool = False) -> bytes:
    """A file of zeros with the tensors of a tiny model."""
    specs = {e.logical: TensorSpec(e.shape, "BF16") for e in entries(ARCHS[name], sizes_of(config(name)))}
    if original:
        specs = {
            "block.0.attn.qkv.weight": TensorSpec((64, 32), "BF16"),
            "unembedding.weight": TensorSpec((40, 32), "BF16"),
        }
    if name == "gpt-oss":  # files hold stacks of experts as [E, in, out]
        specs = {
            n: TensorSpec((s.shape[0], s.shape[2], s.shape[1]), s.dtype)
            if n.endswith("_proj") and len(s.shape) == 3
            else s
            for n, s in specs.items()
        }
    (plan,) = SafeTensors().layout(specs, {}, None).files
    return plan.prefix + bytes(plan.nbytes - len(plan.prefix))


def make(rng: random.Random) -> Files:
    name = one(rng, tuple(ARCHS))
    kind = rng.randrange(12)
    files = {"model.safetensors": weights(name, kind == 0)}
    content: Any = ORIGINAL if kind == 0 else config(name)
    if kind in (1, 2):
        content = {**content, "quantization_config": one(rng, QUANTIZATION)}
    if kind == 3:
        files["hf_quant_config.json"] = changed_json(rng, COMPANION)
        content.pop("quantization_config", None)
    if kind in (0, 4):
        files["hf_config.json"] = changed_json(rng, config("gpt-oss"))
    if kind == 5:
        files["gguf_metadata.json"] = changed_json(
            rng, {"general.name": ["string", "x"], "general.tags": ["array:string", []]}
        )
    if kind == 6:
        files["generation_config.json"] = changed_json(rng, {"eos_token_id": [1, 2], "bos_token_id": 0})
    if rng.random() < 0.3 and kind:
        content = {**content, one(rng, tuple(content)): value(rng)}
    files["config.json"] = changed_json(rng, content, least=rng.random() < 0.9)
    return files


def run(files: Mapping[str, bytes], folder: Path) -> None:
    put(files, folder)
    used(opened(folder))
