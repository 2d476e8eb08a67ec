"""What config.json of Gemma 3 (text) has beyond that of a Llama, and what llama.cpp says or implies of it.

Sliding and full layers take turns by a period, each with a rotary base of its own; only the full ones are scaled. A
file states window, base and scaling; period and the sliding layers' base only since 2025's end, before they were
llama.cpp's constants, as the scale of the queries still is (`llama_model_gemma3::load_arch_hparams`). Not written in
any file and the same for all of Gemma 3: embeddings times the square root of their width, norms by 1 + weight.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import Problem
from pipeline.settings import Settings
from plugins.facts.gemma import FULL, LOCAL_THETA, PERIOD, QUERY_SCALE, SLIDING, layer_types, rope
from plugins.formats.common.sizes import Sizes

WHERE = "config.json"
LAYERS_OF_27B = 62  # the one size whose queries are scaled by hidden_size / heads, and not by head_dim
PATTERN, LOCAL, SOFTCAP = "attention.sliding_window_pattern", "rope.freq_base_swa", "final_logit_softcapping"


def query_scale(sizes: Sizes) -> int:
    """query_pre_attn_scalar as llama.cpp computes it: queries are divided by its square root."""
    return sizes.hidden // sizes.heads if sizes.layers == LAYERS_OF_27B else sizes.head_dim


def to_config(s: Settings, sizes: Sizes) -> dict[str, Any]:
    """What is added to config.json; `s` reads the keys of the architecture."""
    pattern = s.config.get(PATTERN, PERIOD)
    types: list[str] = []
    if isinstance(pattern, list) and len(pattern) == sizes.layers and all(type(p) is bool for p in pattern):
        types = [SLIDING if sliding else FULL for sliding in pattern]
    elif type(pattern) is int and pattern > 0:
        types = layer_types(sizes.layers, pattern)
    else:
        text = f"is {pattern!r:.60}; a period, or whether each of {sizes.layers} layers slides, is expected"
        s.note(PATTERN, text)
    period = _period(types)
    return {
        "layer_types": types,
        **({} if period is None else {"sliding_window_pattern": period}),  # transformers before 4.53 knows no types
        "rope_local_base_freq": s.positive(LOCAL, LOCAL_THETA),
        "query_pre_attn_scalar": query_scale(sizes),
        SOFTCAP: s.positive(SOFTCAP, None),
    }


def to_kv(config: Mapping[str, Any], sizes: Sizes, problems: list[Problem]) -> dict[str, tuple[str, Any]]:
    """Metadata beyond that of a Llama; rotary settings of the full layers are written by the caller."""
    kv: dict[str, tuple[str, Any]] = {}
    s = Settings(config, f"{WHERE} ")
    types, every = list(s.items("layer_types", str)), s.count("sliding_window_pattern", PERIOD)
    softcap, local = s.positive(SOFTCAP, None), rope(config, SLIDING)
    r = Settings(local, f"{WHERE} rope_parameters of {SLIDING} ")
    theta = r.positive("rope_theta")
    problems += r.problems
    if config.get("layer_types") is None:
        types = layer_types(sizes.layers, every)
    problems += s.problems
    period = _period(types) if len(types) == sizes.layers else None
    if period is None:
        text = f"layer_types must be {sizes.layers}, every so many of them {FULL} and the others {SLIDING}"
        problems.append(Problem(WHERE, text))
    elif period != PERIOD:
        kv[f"gemma3.{PATTERN}"] = ("uint32", period)
    scale = config.get("query_pre_attn_scalar", QUERY_SCALE)
    if scale != query_scale(sizes):
        text = f"query_pre_attn_scalar is {scale!r}; llama.cpp computes {query_scale(sizes)} for these sizes"
        problems.append(Problem(WHERE, text))
    if local["rope_type"] != "default":
        problems.append(
            Problem(WHERE, f"rope_type of sliding layers is {local['rope_type']!r:.60}; GGUF scales full ones")
        )
    kv[f"gemma3.{LOCAL}"] = ("float32", theta)
    if softcap is not None:
        kv[f"gemma3.{SOFTCAP}"] = ("float32", softcap)
    return kv


def _period(types: list[str]) -> int | None:
    """The period of `types`, `PERIOD` where several would do."""
    fits = [p for p in (PERIOD, *range(1, len(types) + 2)) if layer_types(len(types), p) == types]
    return fits[0] if fits else None
