"""gpt-oss: what its code has and its config.json may leave out, and how its experts lie.

Sources: openai/gpt-oss (`gpt_oss/torch/model.py`) and `GptOssConfig` of transformers. Names and shapes of its tensors
are in the table of plugins/formats/gpt_oss, and in the constructor of the model, which asks for them by name.
"""

from collections.abc import Mapping
from typing import Any, Final

from plugins.facts import rope as spellings

FAMILY: Final = "gpt_oss"
CLASS: Final = "GptOssForCausalLM"
THETA: Final = 150_000.0
CONTEXT: Final = 4096  # positions of pretraining
YARN: Final = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
"""The ramp's bounds are not rounded, and a file that cannot say so means it nevertheless."""
EPS: Final = 1e-5
ACTIVATION: Final = "silu"
SWIGLU_ALPHA: Final = 1.702
SWIGLU_LIMIT: Final = 7.0
CHOSEN: Final = 4  # experts a token
WINDOW: Final = 128
TURNS: Final = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Stacked matrix → what takes turns in its rows, in every layout: gate = rows ::2, up = rows 1::2."""


def is_gpt_oss(config: Mapping[str, Any]) -> bool:
    """Whether config.json is gpt-oss's."""
    return config.get("model_type") == FAMILY


def layer_types(layers: int) -> list[str]:
    """Sliding-window attention on even layers, full attention on odd ones."""
    return [("sliding_attention", "full_attention")[n % 2] for n in range(layers)]


def rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `plugins.facts.rope.parameters`; `GptOssConfig`'s where config.json has nothing."""
    if config.get("rope_parameters") is None and not config.get("rope_scaling"):  # an empty object is a plain rope
        config = {**config, "rope_scaling": {**YARN, "original_max_position_embeddings": CONTEXT}}
    found = spellings.parameters(config, theta=THETA)
    return {key: value for key, value in found.items() if value is not None}
