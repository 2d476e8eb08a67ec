"""How a model's makers would have tokens drawn: `general.sampling.…` of a GGUF file, which programs of llama.cpp go by,
and generation_config.json (`Metadata.load` of llama.cpp's gguf package makes the one of the other).
"""

from collections.abc import Mapping
from typing import Any

from plugins.formats.gguf.config import short

KEYS = {  # of generation_config.json, with the type in a file
    "temperature": ("general.sampling.temp", "float32"),
    "top_k": ("general.sampling.top_k", "int32"),
    "top_p": ("general.sampling.top_p", "float32"),
    "min_p": ("general.sampling.min_p", "float32"),
    "repetition_penalty": ("general.sampling.penalty_repeat", "float32"),
}


def from_kv(kv: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """What generation_config.json has of it; empty where the file says nothing."""
    given = {name: kv[key] for name, (key, _) in KEYS.items() if key in kv}
    found = {n: short(v) if kind == "float32" else v for n, (kind, v) in given.items() if type(v) in (int, float)}
    return {"do_sample": found.get("temperature", 1) > 0, **found} if found else {}


def to_kv(generation: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """The metadata; without `do_sample` transformers looks at the penalty alone."""
    drawn = generation.get("do_sample") is True
    out: dict[str, tuple[str, Any]] = {}
    for name, (key, kind) in KEYS.items():
        value = generation.get(name)
        fits = type(value) is int and abs(value) < 2**31 if kind == "int32" else type(value) in (int, float)
        if fits and (drawn or name == "repetition_penalty"):
            out[key] = (kind, value)
    return out
