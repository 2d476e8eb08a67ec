"""How the makers of a model would have tokens drawn, by its generation_config.json, beside how a run draws them.

Nothing of it is followed by itself but what ends a text: the same command samples alike whatever the checkpoint. So it
is said, and as what to write to follow it. The keys are transformers' (`GenerationConfig`).
"""

import shlex
from collections.abc import Mapping
from typing import Any

FILE = "generation_config.json"
OPTIONS = {  # of sampling, by the keys that have one
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "stop_strings": "stop",
}  # fmt: skip
DRAWS = ("temperature", "top_k", "top_p", "min_p")  # which transformers looks at with do_sample alone
NEUTRAL = {  # what changes which tokens come and nothing here does, with the value at which it changes nothing
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None, "no_repeat_ngram_size": 0,
    "bad_words_ids": None, "forced_bos_token_id": None, "forced_eos_token_id": None, "suppress_tokens": None,
    "begin_suppress_tokens": None, "sequence_bias": None, "min_length": 0, "min_new_tokens": 0, "num_beams": 1,
    "penalty_alpha": None, "exponential_decay_length_penalty": None, "guidance_scale": 1.0,
    "watermarking_config": None, "dola_layers": None, "force_words_ids": None, "constraints": None,
}  # fmt: skip


def options(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Options of sampling that draw tokens as a generation_config.json asks.

    Args:
        generation: its content.
    """
    drawn = generation.get("do_sample")
    found: dict[str, Any] = {} if drawn is None else {"temperature": 1.0 if drawn else 0.0}
    for key, name in OPTIONS.items():
        value = generation.get(key)
        if key == "stop_strings" and value:
            found[name] = (value,) if isinstance(value, str) else tuple(map(str, value))
        elif type(value) in (int, float) and (drawn or key not in DRAWS):
            found[name] = value
    return found


def unanswered(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What it asks for that nothing here does."""
    given = {key: generation.get(key) for key in NEUTRAL}
    return {k: v for k, v in given.items() if v not in (None, [], NEUTRAL[k])}


def said(generation: Mapping[str, Any], sampling: Any) -> str:
    """What a person should know of it who asked for `sampling`; empty: it asks for nothing else."""
    other = {name: v for name, v in options(generation).items() if getattr(sampling, name, v) != v}
    asks = " ".join(shlex.quote(f"sampling.{name}={_typed(value)}") for name, value in other.items())
    parts = [f"{FILE} asks for {asks}"] if asks else []
    if missing := unanswered(generation):
        parts.append(f"{'' if asks else FILE + ' asks for '}{', '.join(missing)}, which nothing here does")
    return "; and for ".join(parts)


def _typed(value: Any) -> str:
    """As Hydra's grammar has it."""
    from pipeline.config.overrides import listed  # with Hydra, which those who ask for options do not need

    return listed(value) if isinstance(value, tuple) else str(value).removesuffix(".0")
