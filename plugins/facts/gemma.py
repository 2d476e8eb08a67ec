"""Gemma 3 (text): its two kinds of layers and their rotary settings, where config.json leaves them out.

Source: `Gemma3TextConfig` of transformers.
"""

from collections.abc import Mapping
from typing import Any, Final

from pipeline.errors import SourceError
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
    """See `plugins.facts.rope.parameters`. `rope_scaling` is of full layers only, as is `rope_theta` beside it.

    Raises:
        SourceError: as there; or transformers 5 passes over what the config says, and other programs do not.
    """
    both, scaling = (spellings.mapping(config, name) for name in ("rope_parameters", "rope_scaling"))
    if both and not spellings.by_kind(both):
        text = f"rope_parameters names no kind of layers; Gemma 3 has those of {FULL} and of {SLIDING} in it"
        raise SourceError(f"config.json: {text}")
    if "type" in scaling and not scaling.get("rope_type") and scaling["type"] != "default":
        text = f"rope_scaling has {scaling['type']!r:.80} as its type, where programs disagree; write it as rope_type"
        raise SourceError(f"config.json: {text}")
    if not isinstance(given := both.get(kind), Mapping | None):
        raise SourceError(f"config.json: rope_parameters has {given!r:.80} for {kind}; an object is expected")
    rope = {**(given or {}), **(scaling if kind == FULL else {})}
    if any(one.get("truncate", True) is not True for one in (rope, both)):
        raise SourceError("config.json: yarn's truncate of Gemma 3: programs disagree where it is; true is supported")
    beside, theta = ("rope_theta", THETA) if kind == FULL else ("rope_local_base_freq", LOCAL_THETA)
    longest = config.get("max_position_embeddings")
    flat = {"rope_parameters": rope, "rope_theta": config.get(beside), "max_position_embeddings": longest}
    return spellings.parameters(flat, theta=theta)
