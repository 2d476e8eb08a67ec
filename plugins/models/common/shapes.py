"""Shapes of layers, as models are built from them and as plans count with them; no framework is needed for either."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pipeline.errors import SourceError
from plugins.facts.rope import CONTEXT
from plugins.kernels.rope.frequencies import frequencies


@dataclass(frozen=True, slots=True)
class RopeFrequencies:
    """Rotary frequencies of a layer: inverse frequencies [D / 2], radians a position; floats, to be hashable."""

    inv_freq: tuple[float, ...]
    concentration: float = 1.0

    @classmethod
    def read(cls, config: Mapping[str, Any], head_dim: int, parameters: Mapping[str, Any] | None = None) -> Self:
        """What config.json says.

        Args:
            parameters: of `plugins.facts.rope.parameters`; they stand for all that it says in other places.

        Raises:
            SourceError: as `plugins.kernels.rope.frequencies.frequencies`; or only a part of a head is to be rotated:
                transformers' models of these families pass that over, and vLLM's do not.
        """
        given = config
        if parameters is not None:
            given = {**config, "rope_parameters": parameters, "rope_scaling": None, CONTEXT: None}
        inv_freq, concentration = frequencies(given, head_dim)
        if 2 * len(inv_freq) != head_dim:
            text = f"it rotates {2 * len(inv_freq)} of {head_dim} dims of a head, where programs disagree"
            raise SourceError(f"config.json: partial_rotary_factor: {text}; 1.0 is supported")
        return cls(tuple(map(float, inv_freq)), concentration)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention has beyond its weights.

    Attributes:
        window: keys a query sees, itself included; None: all before it.
        scale: of the logits; None: head_dim ** -0.5.
        qk_norm: eps of RMS norms on every head of q and k; None: no norms.
        plus_one: those norms are Gemma's.
        sinks: a learned logit for every head joins the softmax.
        bias, out_bias: of q, k, v; of o.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeFrequencies
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    qk_norm: float | None = None
    plus_one: bool = False
    sinks: bool = False
    bias: bool = False
    out_bias: bool = False
