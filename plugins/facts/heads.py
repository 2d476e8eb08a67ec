"""How many dims an attention head has where config.json is silent: what the config classes of transformers take."""

from typing import Final

HEAD_DIMS: Final = {"gpt_oss": 64, "qwen3": 128, "gemma3_text": 256}
"""By model type; all others divide hidden_size among heads."""


def usual_head_dim(model_type: str | None, hidden: int, heads: int) -> int:
    """Of a model of this type, where `head_dim` is absent or null."""
    return HEAD_DIMS.get(model_type or "", hidden // heads)
