"""Rotary settings of a config.json, in whichever spelling it has.

Configs spell them in two ways: transformers 4 has `rope_theta` and `rope_scaling` (null, or a mapping whose type is
`rope_type` or, before 4.43, `type`; Gemma 3 adds `rope_local_base_freq` for its sliding layers), transformers 5 has
`rope_parameters`, one mapping or one for each layer type.
"""

from collections.abc import Mapping
from typing import Any, Final

from pipeline.errors import SourceError, did_you_mean

DEFAULT_THETA: Final = 10_000.0  # arXiv 2104.09864, section 3.3; what transformers takes where a config names none


def parameters(
    config: Mapping[str, Any], layer_type: str | None = None, theta: float | None = DEFAULT_THETA
) -> dict[str, Any]:
    """The parameters of one kind of layers as transformers 5 spells them: `rope_type`, `rope_theta`, `factor`, …

    Args:
        config: a config.json.
        layer_type: "sliding_attention", say, for a model whose kinds of layers differ.
        theta: `rope_theta` where the config names none.

    Raises:
        SourceError: what should be an object is none, or has nothing for the layer type.
    """
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(name), Mapping | None):
            raise SourceError(f"config.json: {name} is {config[name]!r:.80}; an object is expected")
    rope = config.get("rope_parameters")
    if not rope:
        local = config.get("rope_local_base_freq")
        if layer_type == "sliding_attention" and local is not None:
            return {"rope_type": "default", "rope_theta": local}
        rope = config.get("rope_scaling") or {}
    elif any(isinstance(value, Mapping) for value in rope.values()):
        kinds = [name for name, value in rope.items() if isinstance(value, Mapping)]
        if layer_type not in kinds:
            raise SourceError(
                f"config.json: rope_parameters has nothing for layer type {layer_type!r}"
                f"{did_you_mean(layer_type or '', kinds)}"
            )
        rope = rope[layer_type]
    found = dict(rope)
    older = found.pop("type", None)
    found["rope_type"] = found.get("rope_type") or older or "default"
    if found.get("rope_theta") is None:
        stated = config.get("rope_theta")
        found["rope_theta"] = theta if stated is None else stated
    return found
