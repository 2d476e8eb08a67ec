"""The `Load` of the command line, and everything that is asked of a checkpoint before any data is read."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.options import CONF
from pipeline.config.resolve import Resolver
from pipeline.errors import WeightmillError
from pipeline.stage import Checkpoint, Context
from plugins.formats.gguf.archs import ARCHS
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.gpt_oss.dialect import Original
from plugins.formats.safetensors.hugging_face import HuggingFaceDialect
from stages.export import _taken
from stages.load import Load

WRITERS = (HuggingFaceDialect(), Original(), GgufDialect(), GgufDialect(pre="gpt-4o"))
NUMBERS = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 40, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "num_experts_per_tok": 2,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 16}, "eos_token_id": [1, 2]},
    "qwen2": {"use_sliding_window": False, "max_window_layers": 1, "sliding_window": 8},
    "qwen3": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}},
    "qwen3moe": {"num_experts": 3, "moe_intermediate_size": 32, "norm_topk_prob": True, "mlp_only_layers": []},
    "gpt-oss": {
        "num_local_experts": 3, "sliding_window": 8, "swiglu_limit": 7.0, "initial_context_length": 16,
        "rope_scaling": {**YARN, "original_max_position_embeddings": 16},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma3": {
        "sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"], "rope_local_base_freq": 1e4,
    },
}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    """A config.json of the architecture."""
    arch = ARCHS[name]
    return {
        "architectures": [arch.causal_lm],
        "model_type": arch.model_type,
        **NUMBERS,
        **CONFIGS[name],
        "dtype": "bfloat16",
    }


@cache
def load() -> Load:
    """conf/stages/load.yaml without a remote, for any model."""
    node = OmegaConf.to_container(OmegaConf.load(CONF / "stages" / "load.yaml"))
    assert isinstance(node, dict)
    resolver = Resolver()
    alone = {key: node[key] for key in ("_target_", "containers", "dialects", "carry")}
    built = resolver.build({**alone, "source": ""}, "load")
    assert isinstance(built, Load), resolver.problems
    return built


def opened(source: Path) -> Checkpoint:
    """As `model.source=SOURCE` does it, plan and all."""
    return replace(load(), source=str(source)).run(Context(Path("/nowhere")))


def used(found: Checkpoint) -> None:
    """What exports and engines ask of a checkpoint; a WeightmillError of one keeps none of the others from asking."""
    refused: list[WeightmillError] = []
    for dialect in WRITERS:
        try:
            dialect.encode(found.store.specs, {**found.config, **_taken(dialect, found.files)})
        except WeightmillError as why:
            refused.append(why)
    try:
        build(found)
    except WeightmillError as why:
        refused.append(why)
    for why in refused:
        str(why).encode()


@cache
def _engine() -> Any:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from tests.cases.model_runs import engine

    return engine()


def build(found: Checkpoint) -> None:
    """The model, of shapes only."""
    engine = _engine()
    from plugins.models.common.weights import Weights
    from plugins.models.family import family_of

    engine.plan(found, text=False)
    weights = Weights(found.store.specs, "keep")
    family_of(found.config, engine.families).build(found.config, weights, engine.ops, "float32")
    weights.check(found.config)
