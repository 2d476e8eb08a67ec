"""Gemma 3 (text): its two kinds of layers and their rotary settings, where config.json leaves them out.

Source: `Gemma3TextConfig` of transformers.
"""

from collections.abc import Mapping
from typing import Any, Final

from plugins.facts import rope as spellings

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"
PERIOD: Final = 6  # five sliding layers, then a full one
THETA: Final = 1_000_000.0  # of full layers
LOCAL_THETA: Final = 10_000.0  # of sliding ones
QUERY_SCALE: Final = 256  # query_pre_attn_scalar


def layer_types(layers: int, period: int = PERIOD) -> list[str]:
    """Every `period`-th layer is full."""
    return [FULL if (n + 1) % period == 0 else SLIDING for n in range(layers)]


def rope(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """See `plugins.facts.rope.parameters`. Only full layers are scaled."""
    given = {key: value for key, value in config.items() if value is not None}
    if not given.get("rope_parameters"):
        given = {"rope_theta": THETA, "rope_local_base_freq": LOCAL_THETA, **given}
    return spellings.parameters(given, kind, LOCAL_THETA if kind == SLIDING else THETA)
