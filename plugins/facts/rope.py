"""Rotary settings of a config.json, in whichever spelling it has.

Configs spell them in two ways: transformers 4 has `rope_theta` and `rope_scaling` (null, or a mapping whose type is
`rope_type` or, before 4.43, `type`; Gemma 3 adds `rope_local_base_freq` for its sliding layers), transformers 5 has
`rope_parameters`, one mapping or one for each layer type. Where a config has both, `rope_scaling` counts, as in either.
"""

from collections.abc import Mapping
from typing import Any, Final

from pipeline.errors import SourceError, did_you_mean

CONTEXT: Final = "original_max_position_embeddings"  # positions of pretraining
STRETCHED: Final = ("llama3", "yarn")  # what is computed from these
DEFAULT_THETA: Final = 10_000.0  # arXiv 2104.09864, section 3.3; what transformers takes where a config names none


def parameters(
    config: Mapping[str, Any], layer_type: str | None = None, theta: float | None = DEFAULT_THETA
) -> dict[str, Any]:
    """The parameters of one kind of layers as transformers 5 spells them: `rope_type`, `rope_theta`, `factor`, …

    Those that need it have the original context, wherever the config names it, its longest one where it names none.

    Args:
        config: a config.json.
        layer_type: "sliding_attention", say, for a model whose kinds of layers differ.
        theta: `rope_theta` where the config names none.

    Raises:
        SourceError: what should be an object is none, has nothing for the layer type, or differs by layer type where
            layers have none.
    """
    scaling, rope = (mapping(config, name) for name in ("rope_scaling", "rope_parameters"))
    name, rope = ("rope_scaling", scaling) if scaling else ("rope_parameters", rope)
    context = config.get(CONTEXT)  # Phi 3 has it outside, and it goes first there
    if kinds := by_kind(rope):
        if layer_type is None:
            text = f"{name} is by kind of layers ({', '.join(kinds)}); this model takes one for all of its layers"
            raise SourceError(f"config.json: {text}")
        if layer_type not in kinds:
            text = f"{name} has nothing for layer type {layer_type!r}{did_you_mean(layer_type, kinds)}"
            raise SourceError(f"config.json: {text}")
        rope, context = rope[layer_type], None
    found = dict(rope)
    older = found.pop("type", None)
    found["rope_type"] = found.get("rope_type") or older or "default"
    if found.get("rope_theta") is None:
        stated = config.get("rope_theta")
        found["rope_theta"] = theta if stated is None else stated
    if "truncate" in found:
        found["truncate"] = False if found["truncate"] is None else found["truncate"]  # null is no
    contexts = (context, found.get(CONTEXT), config.get("max_position_embeddings"))
    if found["rope_type"] in STRETCHED and (known := [c for c in contexts if c is not None]):
        found[CONTEXT] = known[0]
    return found


def mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object `name` of a config; an empty one where there is none.

    Raises:
        SourceError: it is no object.
    """
    given = config.get(name)
    if not isinstance(given, Mapping | None):
        raise SourceError(f"config.json: {name} is {given!r:.80}; an object is expected")
    return given or {}


def by_kind(rope: Mapping[str, Any]) -> list[str]:
    """The layer types that `rope` has parameters for; none where they are of all layers."""
    return [name for name, value in rope.items() if isinstance(value, Mapping)]
