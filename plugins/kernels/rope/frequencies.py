"""What a model's config.json says about rotary embedding, as inverse frequencies and a concentration.

How configs spell it is in `plugins.facts.rope`. The arithmetic is float32 where transformers' is, so that angles at
long positions agree with its.

Sources: transformers 5.23, modeling_rope_utils.py; YaRN, arXiv 2309.00071, section 3; Llama 3.1's
apply_scaling in meta-llama/llama-models.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from pipeline.errors import SourceError, did_you_mean
from pipeline.settings import is_a
from plugins.facts.rope import CONTEXT, parameters

MAX_DIMS: Final = 65_536  # of a head; real ones have 512 at most, and a table is made of these
F32 = np.float32


def frequencies(config: Mapping[str, Any], head_dim: int, layer_type: str | None = None) -> tuple[Any, float]:
    """(float32 `[R / 2]` inverse frequencies, concentration) of the layers of a model.

    Args:
        config: a config.json.
        head_dim: dims of a head; R is that, or the part of it that `partial_rotary_factor` says.
        layer_type: "sliding_attention", say, for a model whose kinds of layers differ.

    Raises:
        SourceError: the config names an unknown type, or lacks a number that its type needs.
    """
    rope = parameters(config, layer_type)
    kind = rope["rope_type"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise SourceError(f"config.json: rope type {kind!r:.80} is unknown{did_you_mean(str(kind), KINDS)}")
    numbers = RopeNumbers(config, rope, kind)
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    dims = int(head_dim * (1.0 if part is None else numbers.number("partial_rotary_factor", part)))
    if head_dim > MAX_DIMS or dims > MAX_DIMS:
        raise SourceError(f"config.json: heads have {head_dim} dims, of which {dims} are rotated; at most {MAX_DIMS}")
    if dims < 2 or dims % 2:
        raise SourceError(f"config.json: rope rotates pairs of dims, and {dims} of {head_dim} are to be rotated")
    try:
        with np.errstate(all="ignore"):
            found, concentration = KINDS[kind](numbers, dims)
    except (ArithmeticError, ValueError) as why:
        raise SourceError(f"config.json: rope type {kind!r}: its numbers cannot be: {why}") from None
    if not np.isfinite(found).all() or not math.isfinite(concentration):
        raise SourceError(f"config.json: rope type {kind!r}: its numbers make frequencies that are not finite")
    return found, concentration


class RopeNumbers:
    """The numbers of one mapping, with errors that name what is missing."""

    def __init__(self, config: Mapping[str, Any], rope: Mapping[str, Any], kind: str):
        self.config, self.rope, self.kind = config, rope, kind

    def __call__(self, name: str) -> float:
        return self.number(name, self.rope.get(name))

    def number(self, name: str, value: Any) -> float:
        """`value`, which `name` has somewhere, and which must be a positive number."""
        if not is_a(value, float) or value <= 0:
            raise SourceError(f"config.json: rope type {self.kind!r} needs the number {name!r}, got {value!r:.80}")
        return float(value)

    def get(self, name: str, default: float) -> float:
        return default if self.rope.get(name) is None else self(name)

    @property
    def original_context(self) -> float:
        """Positions that the model was pretrained on."""
        return self(CONTEXT)


def _powers(rope: RopeNumbers, dims: int) -> Any:
    """float32 theta^(2i / R): float32 exponents; NumPy's own float32 power is an ulp off where torch's is not."""
    exponents = np.arange(0, dims, 2).astype(F32) / F32(dims)
    return np.power(float(rope("rope_theta")), exponents.astype(np.float64)).astype(F32)


def _default(rope: RopeNumbers, dims: int) -> tuple[Any, float]:
    return F32(1) / _powers(rope, dims), 1.0


def _linear(rope: RopeNumbers, dims: int) -> tuple[Any, float]:
    return F32(1) / _powers(rope, dims) / F32(rope("factor")), 1.0


def _llama3(rope: RopeNumbers, dims: int) -> tuple[Any, float]:
    inv_freq = F32(1) / _powers(rope, dims)
    factor, low, high = F32(rope("factor")), rope("low_freq_factor"), rope("high_freq_factor")
    if low == high:
        text = f"low_freq_factor and high_freq_factor must differ, and both are {low:g}"
        raise SourceError(f"config.json: rope type 'llama3': {text}")
    context = rope.original_context
    wavelength = F32(2 * math.pi) * (F32(1) / inv_freq)  # a number by a tensor is that in torch, and rounds twice
    smooth = (F32(context) * (F32(1) / wavelength) - F32(low)) / F32(high - low)
    between = (F32(1) - smooth) * inv_freq / factor + smooth * inv_freq
    slow = np.where(wavelength > F32(context / low), inv_freq / factor, between)
    return np.where(wavelength < F32(context / high), inv_freq, slow), 1.0


def _yarn(rope: RopeNumbers, dims: int) -> tuple[Any, float]:
    context, theta = rope.original_context, rope("rope_theta")
    if rope.rope.get("factor") is None:  # DeepSeek's configs name both contexts instead
        longest = rope.config.get("max_position_embeddings", context)
        factor = rope.number("max_position_embeddings", longest) / context
    else:
        factor = rope("factor")

    def dim_of(rotations: float) -> float:
        """The (fractional) pair whose frequency turns that often within the original context."""
        return dims * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dim_of(rope.get("beta_fast", 32)), dim_of(rope.get("beta_slow", 1))
    truncate = rope.rope.get("truncate", True)
    if not isinstance(truncate, bool):
        raise SourceError(f"config.json: rope type {rope.kind!r}: truncate is {truncate!r:.80}, not true or false")
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    high = high + 0.001 if low == high else high
    powers = _powers(rope, dims)
    ramp = np.clip((np.arange(dims // 2, dtype=F32) - F32(low)) / F32(high - low), F32(0), F32(1))
    kept = F32(1) - ramp
    inv_freq = F32(1) / (F32(factor) * powers) * (F32(1) - kept) + F32(1) / powers * kept
    return inv_freq, _yarn_concentration(rope, factor)


def _yarn_concentration(rope: RopeNumbers, factor: float) -> float:
    if rope.rope.get("attention_factor") is not None:
        return rope("attention_factor")

    def mscale(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    top, bottom = (0.0 if not rope.rope.get(name) else rope(name) for name in ("mscale", "mscale_all_dim"))
    return mscale(top) / mscale(bottom) if top and bottom else mscale(1.0)


KINDS: Final[dict[str, Callable[[RopeNumbers, int], tuple[Any, float]]]] = {
    "default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn,
}  # fmt: skip
