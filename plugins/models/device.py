"""How tensors lie on the device, and what they take there; known from specs alone, without a framework."""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from fnmatch import translate
from typing import Any, Literal

from pipeline.tensors.spec import TensorSpec

WeightsDtype = Literal["keep", "bf16", "f32"]
_HELD = {"bf16": "BF16", "f32": "F32"}


def device_spec(spec: TensorSpec, weights_dtype: WeightsDtype = "keep") -> TensorSpec:
    """How a tensor lies on the device.

    Packed tensors stay packed, byte for byte; double quantization alone is resolved into the fp32 scales that it stands
    for, because scales coded over flat blocks of a whole tensor (bitsandbytes) cannot be sliced by expert or row. No
    value changes by that.

    Args:
        spec: of a tensor of the checkpoint.
        hold: the dtype that plain tensors get; `keep`: as stored.
    """
    if spec.scheme is None:
        return spec if weights_dtype == "keep" else replace(spec, dtype=_HELD[weights_dtype])
    if not spec.scheme.whole_only:
        return spec
    return replace(spec, scheme=replace(spec.scheme, scale="f32", second=None))


def unused(*, tied: bool) -> dict[str, str]:
    """Patterns of tensors that a checkpoint may hold and no model reads, with the reasons.

    Args:
        tied: the embedding is the output matrix as well.
    """
    found = {"model.layers.*.self_attn.rotary_emb.inv_freq": "computed from config.json"}
    if tied:
        found["lm_head.weight"] = "the embedding is the head as well (tie_word_embeddings)"
    return found


def left_out(names: Iterable[str], patterns: Mapping[str, str]) -> dict[str, str]:
    """Those of `names` that one of `patterns` matches, with its reason."""
    reasons = list(patterns.values())
    one_of = re.compile("|".join(f"({translate(p)})" for p in patterns))  # a plan asks often, of thousands of names
    found = ((n, one_of.match(n)) for n in names)
    return {n: reasons[m.lastindex - 1] for n, m in found if m is not None and m.lastindex is not None}


def device_nbytes(
    specs: Mapping[str, TensorSpec], ignored: Container[str], weights_dtype: WeightsDtype = "keep"
) -> int:
    """Bytes that a model's weights take on the device, without those tensors that are `ignored`."""
    return sum(device_spec(s, weights_dtype).nbytes for n, s in specs.items() if n not in ignored)


CACHE_NBYTES = {"bf16": 2, "f32": 4, "fp8": 1, "int8": 1}  # of a number
SCALE_NBYTES = {"bf16": 0, "f32": 0, "fp8": 4, "int8": 4}  # of a token's head


def keys_of(specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """The k_proj of every layer → how many numbers its keys have for a token; its values have as many."""
    return {n: s.shape[-2] for n, s in specs.items() if n.endswith(".self_attn.k_proj.weight") and len(s.shape) > 1}


def cache_nbytes(
    specs: Mapping[str, TensorSpec], config: Mapping[str, Any], batch: int, length: int, dtype: str, ways: int = 1
) -> int:
    """Bytes of a `plugins.models.common.cache.Cache` for `batch` sequences of `length` tokens, without a framework.

    On a mesh: of one device, which has `batch` of the sequences and of their heads one part of `ways`.

    What a layer remembers of a token has as many numbers as its k_proj and v_proj have rows. Layers whose window
    config.json does not say layer by layer (`layer_types`, `sliding_window`) count as full: then this is a bound.
    """
    keys = keys_of(specs)
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    types: Any = config.get("layer_types")
    slides = [t == "sliding_attention" for t in types] if isinstance(types, list) and len(types) == len(keys) else []
    given = config.get("num_key_value_heads") or config.get("num_attention_heads")
    heads = given // ways if isinstance(given, int) else 0
    total, counts = 0, set()
    for name, rows in keys.items():
        layer = next((int(part) for part in name.split(".") if part.isdigit()), len(keys))
        rings = isinstance(window, int) and layer < len(slides) and slides[layer]
        slots = min(length, window) if rings and isinstance(window, int) else length
        total += 2 * batch * slots * (rows // ways * CACHE_NBYTES[dtype] + heads * SCALE_NBYTES[dtype])
        counts.add(slots)
    return total + sum(4 * batch * slots for slots in counts)  # and the positions of their slots
