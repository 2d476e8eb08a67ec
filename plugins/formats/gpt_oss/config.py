"""The config.json of gpt-oss in its three spellings, and the numbers the weight table needs from it.

Hugging Face spells rotary settings in two ways (`plugins.facts.rope`); openai/gpt-oss has a flat file of its own. The
pipeline carries the Hugging Face one, in the spelling it arrived in. This is not a model's view of its config: only
what converting needs is read here.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import PlanError, Problem, did_you_mean, nearest
from pipeline.settings import LARGEST, is_a
from plugins.facts import gpt_oss
from plugins.facts.dtypes import DEFAULT
from plugins.formats.common.sizes import Sizes

WHERE = "config.json"
NUMBERS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "inter": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "experts": "num_local_experts",
    "vocab": "vocab_size",
}
# Key of the original config ← key of Hugging Face's, for those that are plain numbers. `ModelConfig` of gpt_oss.torch.
SAME_NUMBERS = {
    "num_hidden_layers": "num_hidden_layers",
    "num_experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "swiglu_limit": "swiglu_limit",
    "head_dim": "head_dim",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "sliding_window": "sliding_window",
}
# What gpt_oss.torch.model has in code and not in its config: a checkpoint that differs would compute something else.
FIXED = {
    "rms_norm_eps": gpt_oss.EPS,
    "swiglu_alpha": gpt_oss.SWIGLU_ALPHA,
    "hidden_act": gpt_oss.ACTIVATION,
    "attention_bias": True,
}
# Defaults of `ModelConfig` for the keys that are not sizes; early original configs leave swiglu_limit out.
OPTIONAL = {
    "swiglu_limit": gpt_oss.SWIGLU_LIMIT,
    "rope_theta": gpt_oss.THETA,
    "rope_scaling_factor": gpt_oss.YARN["factor"],
    "rope_ntk_alpha": gpt_oss.YARN["beta_slow"],
    "rope_ntk_beta": gpt_oss.YARN["beta_fast"],
    "initial_context_length": gpt_oss.CONTEXT,
    "sliding_window": gpt_oss.WINDOW,
    "experts_per_token": gpt_oss.CHOSEN,
}
ORIGINAL_KEYS = (
    *SAME_NUMBERS, "initial_context_length", "rope_theta", "rope_scaling_factor", "rope_ntk_alpha", "rope_ntk_beta",
)  # fmt: skip


def sizes_of(config: Mapping[str, Any], tensors: int) -> Sizes:
    """The sizes that a Hugging Face config states.

    Args:
        config: config.json.
        tensors: how many tensors there are; each layer has some of its own.

    Raises:
        PlanError: numbers that are missing, not positive integers, more layers than there are tensors, or heads that
            do not divide; all of them.
    """
    problems = []
    numbers: dict[str, Any] = {}
    for field, key in NUMBERS.items():
        value = config.get(key)
        if type(value) is not int or not 1 <= value <= LARGEST:
            near = "".join(f" (the nearest key is {k!r})" for k in nearest(key, config, 1))
            given = f"is {value!r:.80}" if key in config else f"is missing{near}"
            problems.append(Problem(WHERE, f"{key} {given}; a positive integer is needed"))
        else:
            numbers[field] = value
    whole = not problems
    problems += too_many_layers(WHERE, "num_hidden_layers", numbers.get("layers", 1), tensors)
    if whole and numbers["heads"] % numbers["kv_heads"]:
        text = f"num_attention_heads {numbers['heads']} is not a multiple of num_key_value_heads {numbers['kv_heads']}"
        problems.append(Problem(WHERE, text))
    if problems:
        raise PlanError(problems)
    return Sizes(
        **numbers,
        attention_bias=bool(config.get("attention_bias", True)),
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def too_many_layers(where: str, key: str, layers: int, tensors: int) -> list[Problem]:
    """A problem when there cannot be so many layers; to be asked before a table of them is made."""
    text = f"{key} is {layers:,}, but there are {tensors:,} tensors, and each layer has some of its own"
    return [Problem(where, text)] if layers > max(1, tensors) else []


def to_original(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The original config.json for a Hugging Face config, and what it cannot say."""
    problems = []

    def refuse(key: str, given: Any, allowed: Any) -> None:
        problems.append(Problem(WHERE, f"{key} is {given!r:.200}; the original naming can only express {allowed!r}"))

    out: dict[str, Any] = {}
    for original, key in SAME_NUMBERS.items():
        out[original] = config.get(key, OPTIONAL["swiglu_limit"] if key == "swiglu_limit" else None)
        if not is_a(out[original], float):
            problems.append(Problem(WHERE, f"{key} is {out[original]!r:.80}; the original naming needs a number"))
    for key, only in FIXED.items():
        if config.get(key, only) != only:
            refuse(key, config[key], only)
    layers, types = out["num_hidden_layers"], config.get("layer_types")
    turns = isinstance(types, list) and len(types) == layers and types == gpt_oss.layer_types(len(types))
    if types is not None and not turns:
        refuse("layer_types", types, "sliding_attention, full_attention, … in turns")

    rope = gpt_oss.rope(config)
    if not config.get("rope_parameters") and "rope_theta" not in config:
        problems.append(Problem(WHERE, "no rope_parameters, and no rope_theta; the original naming needs them"))
        return out, problems
    yarn = rope["rope_type"] == "yarn"
    if rope["rope_type"] not in ("yarn", "default"):
        refuse("rope_type", rope["rope_type"], "yarn or default")
    # gpt_oss.torch interpolates between unrounded bounds and derives the concentration from the factor alone. Absent
    # means true here: transformers truncates unless told not to.
    if yarn and rope.get("truncate", True):
        refuse("rope truncate", True, False)
    for key in ("attention_factor", "mscale", "mscale_all_dim"):
        if yarn and rope.get(key) is not None:
            refuse(f"rope {key}", rope[key], None)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        refuse("rope partial_rotary_factor", rope["partial_rotary_factor"], 1.0)
    context = rope.get("original_max_position_embeddings") or config.get("initial_context_length")
    out["initial_context_length"] = context or config.get("max_position_embeddings")
    out["rope_theta"] = rope["rope_theta"]
    out["rope_scaling_factor"] = rope.get("factor") if yarn else 1.0
    out["rope_ntk_alpha"] = rope.get("beta_slow") or OPTIONAL["rope_ntk_alpha"]
    out["rope_ntk_beta"] = rope.get("beta_fast") or OPTIONAL["rope_ntk_beta"]
    problems += [
        Problem(WHERE, f"no value for {key}; the original naming needs one")
        for key in ("initial_context_length", "rope_theta", "rope_scaling_factor")
        if not is_a(out[key], float)
    ]
    return out, problems


def from_original(config: Mapping[str, Any], tensors: int) -> dict[str, Any]:
    """The Hugging Face config.json for an original one, in the spelling of the published checkpoints (transformers 4,
    which 5 reads too). Token ids are the tokenizer's and stay out.

    Raises:
        PlanError: missing or unknown keys, values that are no numbers, more layers than `tensors`; all of them.
    """
    problems = [
        Problem(WHERE, f"{key} is missing (original naming)")
        for key in ORIGINAL_KEYS
        if key not in config and key not in OPTIONAL
    ]
    problems += [
        Problem(WHERE, f"key {key!r} is unknown in the original naming{did_you_mean(key, ORIGINAL_KEYS, 20)}")
        for key in config
        if key not in ORIGINAL_KEYS
    ]
    full = {**OPTIONAL, **config}
    problems += [
        Problem(WHERE, f"{key} is {full[key]!r:.80}; a number is needed (original naming)")
        for key in ORIGINAL_KEYS
        if key in full and not is_a(full[key], float)
    ]
    if not problems:
        problems += too_many_layers(WHERE, "num_hidden_layers", full["num_hidden_layers"], tensors)
        if not is_a(full["initial_context_length"] * full["rope_scaling_factor"], float):
            problems.append(Problem(WHERE, "initial_context_length times rope_scaling_factor is beyond all numbers"))
    if problems:
        raise PlanError(problems)
    factor, context = full["rope_scaling_factor"], full["initial_context_length"]
    yarn = {
        "beta_fast": full["rope_ntk_beta"],
        "beta_slow": full["rope_ntk_alpha"],
        "factor": factor,
        "original_max_position_embeddings": context,
        "rope_type": gpt_oss.YARN["rope_type"],
        "truncate": gpt_oss.YARN["truncate"],
    }
    layers = full["num_hidden_layers"]
    return {
        "architectures": [gpt_oss.CLASS],
        "model_type": gpt_oss.FAMILY,
        **{key: full[original] for original, key in SAME_NUMBERS.items()},
        **FIXED,
        "layer_types": gpt_oss.layer_types(layers if isinstance(layers, int) else 0),
        "tie_word_embeddings": False,
        "initial_context_length": context,
        "max_position_embeddings": int(context * factor),
        "rope_theta": full["rope_theta"],
        "rope_scaling": yarn if factor > 1 else {"rope_type": "default"},
        "dtype": DEFAULT,
    }
