"""YaRN in a GGUF file, and in config.json, which can say more of it than llama.cpp runs.

llama.cpp takes 32 and 1 turns of the original context for the ends of the ramp, whatever a file says, and rounds them
(`llama_context`, `ggml_rope_yarn_corr_dims`: the betas are read for architectures that are not ours). Sines and
cosines it multiplies by 1 + ln(factor) / 10 and by `attn_factor`; it does not read `yarn_attn_factor`, which its
conversion writes for the whole product. gpt-oss's ends are not rounded: llama.cpp runs it so nevertheless.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.errors import Problem
from pipeline.settings import LARGEST, Settings
from plugins.formats.common.sizes import Sizes

WHERE = "config.json"
CONTEXT = "rope.scaling.original_context_length"
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}  # in turns: transformers' where config.json has none, llama.cpp's always
TIMES, WHOLE = "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"


def to_config(s: Settings, factor: float | None) -> dict[str, Any]:
    """What is added to `rope_scaling`; `s` reads the keys of the architecture."""
    found: dict[str, Any] = {"original_max_position_embeddings": s.count(CONTEXT, None)}
    found |= {name: s.get(f"rope.scaling.yarn_{name}", float, None) for name in BETAS}
    times, whole = s.positive(TIMES, None), s.get(WHOLE, float, None)
    found["attention_factor"] = whole if times is None or factor is None else _product(times, usual(factor))
    return {name: value for name, value in found.items() if value is not None or name.startswith("original")}


def to_kv(rope: Mapping[str, Any], arch: str, sizes: Sizes, problems: list[Problem]) -> dict[str, tuple[str, Any]]:
    """Metadata for `rope`, whose `rope_theta` and `factor` are positive; keys without the architecture."""
    s = Settings(rope, f"{WHERE} rope_parameters ")
    betas = {name: s.positive(name, None) for name in BETAS}
    whole, top, bottom = (s.positive(name, None) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    truncate = s.get("truncate", bool, True)
    problems += s.problems
    context = rope.get("original_max_position_embeddings")
    if type(context) is not int or not 0 < context <= LARGEST:
        problems.append(Problem(WHERE, f"yarn's original_max_position_embeddings is {context!r:.60}"))
        return {}
    if rope["rope_theta"] == 1:
        problems.append(Problem(WHERE, "yarn's rope_theta is 1, by which nothing turns"))
    if s.problems or rope["rope_theta"] == 1:
        return {}
    kv: dict[str, tuple[str, Any]] = {CONTEXT: ("uint32", context)}
    kv |= {f"rope.scaling.yarn_{name}": ("float32", beta) for name, beta in betas.items() if beta is not None}
    given = {name: BETAS[name] if beta is None else beta for name, beta in betas.items()}
    runs = _ends(BETAS, rope["rope_theta"], context, sizes.head_dim, rounded=True)
    if arch == "gpt-oss" and truncate:
        problems.append(Problem(WHERE, "yarn's truncate is true; a GGUF file cannot say so, gpt-oss is read as false"))
    elif _ends(given, rope["rope_theta"], context, sizes.head_dim, rounded=truncate or arch == "gpt-oss") != runs:
        said = ", ".join(f"{name} {value:g}" for name, value in given.items())
        text = f"yarn's {said}, truncate {str(truncate).lower()}: llama.cpp has 32, 1 and true whatever a file says"
        problems.append(Problem(WHERE, text))
    factor = rope["factor"]
    if whole is None and top is not None and bottom is not None:
        whole = usual(factor, top) / usual(factor, bottom)
    if whole is not None and (times := float(np.float32(whole / usual(factor)))) != 1:
        kv[TIMES] = ("float32", times)
    return kv


def usual(factor: float, by: float = 1) -> float:
    """What sines and cosines are multiplied by where nothing else is said."""
    return 1 + by * math.log(factor) / 10 if factor > 1 else 1.0


def _ends(betas: Mapping[str, float], theta: float, context: int, dims: int, rounded: bool) -> tuple[float, float]:
    """The (fractional) pairs of dims at which the ramp begins and ends: `_compute_yarn_parameters` of transformers."""
    fast, slow = (dims * math.log(context / (betas[name] * 2 * math.pi)) / (2 * math.log(theta)) for name in BETAS)
    low, high = (math.floor(fast), math.ceil(slow)) if rounded else (fast, slow)
    return max(low, 0), min(high, dims - 1)


def _product(times: float, usual: float) -> float:
    """The shortest decimal that is written as `times`."""
    whole = times * usual
    each = (float(f"{whole:.{digits}g}") for digits in range(1, 18))
    return next((v for v in each if np.float32(v / usual) == np.float32(times)), whole)
