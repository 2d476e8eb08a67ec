"""config.json and the metadata of a GGUF file, each made from the other.

Keys: gguf/constants.py (`Keys`) of the gguf package; what llama.cpp's conversion/base.py writes for them. Numbers that
a file does not state are llama.cpp's defaults (`llama_model::load_hparams`).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.errors import Problem, did_you_mean
from pipeline.settings import LARGEST, Settings, is_a
from pipeline.tensors.spec import TensorSpec
from plugins.facts import gemma as gemma_facts
from plugins.facts import gpt_oss, mistral
from plugins.facts.dtypes import DEFAULT
from plugins.facts.heads import usual_head_dim
from plugins.facts.rope import DEFAULT_THETA, parameters
from plugins.formats.common.sizes import Sizes
from plugins.formats.gguf import gemma, yarn
from plugins.formats.gguf.table import Arch
from plugins.formats.gpt_oss.config import too_many_layers

WHERE = "config.json"
ROPE_FREQS = "rope_freqs.weight"
# Key after the architecture's name, type, config.json's key.
NUMBERS = (
    ("block_count", "uint32", "num_hidden_layers"),
    ("context_length", "uint32", "max_position_embeddings"),
    ("embedding_length", "uint32", "hidden_size"),
    ("feed_forward_length", "uint32", "intermediate_size"),
    ("attention.head_count", "uint32", "num_attention_heads"),
    ("attention.head_count_kv", "uint32", "num_key_value_heads"),
    ("attention.layer_norm_rms_epsilon", "float32", "rms_norm_eps"),
)
WINDOW = ("attention.sliding_window", "uint32", "sliding_window")
MORE = {  # of one architecture
    "gpt-oss": (
        ("expert_count", "uint32", "num_local_experts"),
        ("expert_used_count", "uint32", "num_experts_per_tok"),
        WINDOW,
    ),
    "qwen3moe": (
        ("expert_count", "uint32", "num_experts"),
        ("expert_used_count", "uint32", "num_experts_per_tok"),
        ("expert_feed_forward_length", "uint32", "moe_intermediate_size"),
    ),
    "gemma3": (WINDOW,),
}
BIASED = frozenset({"qwen2", "gpt_oss"})  # queries, keys and values are, unless config.json says otherwise
TIED = frozenset({"gemma3_text"})  # embeddings are tied unless config.json says otherwise
# What transformers takes for a key that is missing, where that is not what the architecture implies.
ABSENT = {"norm_topk_prob": False}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
RAMP_ENDS = 1e-3  # of the way up a ramp: nearer to an end, rounding says more than the context
MAX_HEAD_DIM = 65_536  # real heads have 512 dims at most, and tables are made of them
MOST_TENSORS = 1 << 20  # of a model; the largest published ones have a tenth
TOKEN_IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}


def numbers_of(arch: Arch) -> tuple[tuple[str, str, str], ...]:
    return NUMBERS + MORE.get(arch.name, ())


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    """The sizes that a complete Hugging Face config states."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Sizes(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        inter=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or usual_head_dim(config.get("model_type"), hidden, heads),
        vocab=config["vocab_size"],
        experts=_experts(config) or 1,
        moe_inter=config.get("moe_intermediate_size") or 0,
        attention_bias=bool(config.get("attention_bias", config.get("model_type") in BIASED)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        tied=bool(config.get("tie_word_embeddings", config.get("model_type") in TIED)),
    )


def _experts(config: Mapping[str, Any]) -> Any:
    """How many it states, if any: transformers 5 saves `num_experts` of Qwen3-MoE as `num_local_experts`."""
    return config.get("num_local_experts") or config.get("num_experts")


def too_many(arch: Arch, config: Mapping[str, Any], tensors: int, experts: int, where: str = WHERE) -> list[Problem]:
    """What is wrong with how many layers and experts `config` states, to be asked before a table of them is made.

    Args:
        arch: whose table it is.
        config: its numbers are integers.
        tensors: how many there are.
        experts: the most that can be in any layer.
        where: for the problems.
    """
    layers, stated = config["num_hidden_layers"], _experts(config) or 1
    problems = too_many_layers(where, "num_hidden_layers", layers, tensors)
    if any(row.each for row in arch.layer):
        if stated > experts:
            problems.append(Problem(where, f"states {stated:,} experts, but no layer holds more than {experts:,}"))
        elif layers * stated * len(arch.layer) > MOST_TENSORS:
            text = f"states {layers:,} layers of {stated:,} experts; at most {MOST_TENSORS:,} tensors are read"
            problems.append(Problem(where, text))
    return problems


def short(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 for what a file holds as 9.99999974e-06."""
    return float(str(np.float32(value)))


def to_config(  # noqa: C901  a case a key of the metadata
    arch: Arch, kv: Mapping[str, tuple[str, Any]], leaves: Mapping[str, TensorSpec], factors: Any = None
) -> tuple[dict[str, Any], list[Problem]]:
    """config.json for the metadata `kv` of a file with `leaves`, and what is wrong with the metadata.

    Args:
        factors: the values of the leaf `ROPE_FREQS`, F32 [head_dim / 2], when there is one.
    """
    prefix = f"{arch.name}."
    values = {
        key.removeprefix(prefix): short(value) if kind == "float32" else value
        for key, (kind, value) in kv.items()
        if key.startswith(prefix)
    }
    s = Settings(values, prefix)
    problems, get = s.problems, values.get
    config: dict[str, Any] = {"architectures": [arch.causal_lm], "model_type": arch.model_type, **dict(arch.fixed)}
    for key, kind, name in numbers_of(arch):
        value = get(key, get("attention.head_count") if key == "attention.head_count_kv" else None)
        if key == "feed_forward_length" and arch.name == "gpt-oss":
            value = get("expert_feed_forward_length", value)
        good = type(value) is int and 0 < value <= LARGEST if kind == "uint32" else is_a(value, float)
        if not good:
            given = "is missing" if value is None else f"is {value!r:.60}"
            problems.append(Problem(f"{arch.name}.{key}", f"{given}; {arch.name} needs one positive {kind}"))
        config[name] = value
    embeddings = leaves.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        problems.append(Problem("token_embd.weight", "a matrix of this name is needed: its rows are the vocabulary"))
    if get("expert_count", 0) and not arch.experts:
        problems.append(Problem(f"{arch.name}.expert_count", "mixtures of experts of this architecture are not known"))
    if not problems:
        held = max((spec.shape[0] for spec in leaves.values() if len(spec.shape) > 2), default=1)
        problems += too_many(arch, config, len(leaves), held, f"{arch.name} (metadata)")
    if problems:
        return config, problems
    assert embeddings is not None
    heads = config["num_attention_heads"]
    if heads % config["num_key_value_heads"]:
        problems.append(Problem(f"{arch.name}.attention.head_count_kv", f"{heads} heads are no multiple of it"))
    head_dim = get("attention.key_length", get("rope.dimension_count", config["hidden_size"] // heads))
    problems += [
        Problem(f"{arch.name}.{key}", f"is {get(key)!r:.60}, heads have {head_dim!r:.60}: not supported")
        for key in ("attention.value_length", "rope.dimension_count")
        if get(key, head_dim) != head_dim
    ]
    if type(head_dim) is not int or not 2 <= head_dim <= MAX_HEAD_DIM or head_dim % 2:
        text = f"is {head_dim!r:.60}; an even number up to {MAX_HEAD_DIM} is needed"
        problems.append(Problem(f"{arch.name}.attention.key_length", text))
    if problems:
        return config, problems
    config |= {
        "head_dim": head_dim,
        "vocab_size": embeddings.shape[0],
        "tie_word_embeddings": "output.weight" not in leaves,
    }
    if "attention_bias" not in config:
        config["attention_bias"] = "blk.0.attn_q.bias" in leaves
    if arch.name == "llama":
        config["mlp_bias"] = "blk.0.ffn_up.bias" in leaves
    if arch.name == "gpt-oss":
        config["layer_types"] = gpt_oss.layer_types(config["num_hidden_layers"])
    config |= _rope(arch, s, config, factors)
    if arch.name == "gemma3":
        config |= gemma.to_config(s, sizes_of(config))
    t = Settings({key: value for key, (_, value) in kv.items()}, "")
    ids = {name: t.get(f"tokenizer.ggml.{key}", int, None) for name, key in TOKEN_IDS.items()}
    problems += t.problems
    ids = {name: value for name, value in ids.items() if value is not None}
    return {**config, **ids, "dtype": DEFAULT}, problems


def to_kv(arch: Arch, config: Mapping[str, Any]) -> tuple[dict[str, tuple[str, Any]], Any, list[Problem]]:  # noqa: C901  as above
    """Metadata for a Hugging Face config, the values of the leaf `ROPE_FREQS` or None, and what cannot be said."""
    problems: list[Problem] = []
    kv: dict[str, tuple[str, Any]] = {}
    experts = {} if (stated := _experts(config)) is None else {"num_experts": stated}
    full = {"num_key_value_heads": config.get("num_attention_heads"), **experts, **config}
    for key, kind, name in numbers_of(arch):
        value = full.get(name)
        good = type(value) is int and 0 < value <= LARGEST if kind == "uint32" else is_a(value, float)
        if not good:
            given = f"is {value!r:.60}" if name in full else f"is missing{did_you_mean(name, config)}"
            problems.append(Problem(WHERE, f"{name} {given}; a GGUF file of {arch.name} needs it"))
            continue
        kv[f"{arch.name}.{key}"] = (kind, float(str(value)) if kind == "float32" else value)
    for name, only in arch.fixed:
        if (given := config.get(name, ABSENT.get(name, only))) != only:
            problems.append(Problem(WHERE, f"{name} is {given!r:.80}; {arch.name} in GGUF has {only!r}"))
    window = config.get("sliding_window", mistral.WINDOW if config.get("model_type") in mistral.FAMILIES else None)
    if arch.name == "llama" and window is not None:
        said = "is" if "sliding_window" in config else "is absent, which means"
        text = f"sliding_window {said} {window!r}; llama in GGUF has none, every layer sees everything"
        problems.append(Problem(WHERE, text))
    s = Settings(config, f"{WHERE} ")
    s.refuse("is_causal", "only causal attention is written", True)
    for name in ("num_local_experts", "num_experts", "moe_intermediate_size") if arch.experts else ():
        s.count(name, 1)
    s.count("head_dim", 2, MAX_HEAD_DIM)
    types = s.items("layer_types", str)
    problems += s.problems
    if arch.name == "gpt-oss" and types and types != tuple(gpt_oss.layer_types(len(types))):
        problems.append(Problem(WHERE, "layer_types must be sliding_attention, full_attention, … in turns"))
    if type(config.get("vocab_size")) is not int or not 0 < config["vocab_size"] <= LARGEST:
        problems.append(Problem(WHERE, f"vocab_size is {config.get('vocab_size')!r:.60}; a positive integer is needed"))
    if problems:
        return kv, None, problems
    sizes = sizes_of(config)
    if arch.square and sizes.q != sizes.hidden:
        text = f"{sizes.heads} heads of {sizes.head_dim} are {sizes.q}, hidden_size is {sizes.hidden}"
        problems.append(Problem(WHERE, f"{text}; llama.cpp loads {arch.name} only where the two are the same"))
    if arch.name == "gpt-oss":
        kv[f"{arch.name}.expert_feed_forward_length"] = ("uint32", sizes.inter)
    if arch.name == "llama":
        kv["llama.vocab_size"] = ("uint32", sizes.vocab)
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        kv[f"{arch.name}.{key}"] = ("uint32", sizes.head_dim)
    if arch.name == "gemma3":
        kv |= gemma.to_kv(config, sizes, problems)
        settings = gemma_facts.rope(config, gemma_facts.FULL)
    else:
        settings = gpt_oss.rope(config) if arch.name == "gpt-oss" else parameters(config)
    factors = _rope_kv(arch, kv, settings, sizes, problems)
    return kv, factors, problems


def llama3_factors(rope: Mapping[str, Any], head_dim: int) -> Any:
    """What llama 3's rope scaling divides each frequency by, F32 [head_dim / 2]: 1, `factor`, and between them a ramp.

    `_compute_llama3_parameters` of transformers' modeling_rope_utils.py says the same of the frequencies themselves.
    """
    wavelength = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    turns = rope["original_max_position_embeddings"] / wavelength
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    ramp = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - ramp) / rope["factor"] + ramp)).astype(np.float32)


def _rope(arch: Arch, s: Settings, config: Mapping[str, Any], factors: Any) -> dict[str, Any]:
    """rope_theta and rope_scaling, in the spelling that transformers 4 and 5 read."""
    problems, before = s.problems, len(s.problems)
    theta = s.positive("rope.freq_base", DEFAULT_THETA)
    kind, factor = s.get("rope.scaling.type", str, "none"), s.positive("rope.scaling.factor", None)
    scaling = yarn.to_config(s, factor)
    if len(problems) > before:
        return {}
    where = f"{arch.name}.rope.scaling.type"
    if factors is not None:
        rope = _llama3(theta, factors, config["head_dim"], problems)
        return {"rope_theta": theta, "rope_scaling": rope}
    if kind == "none":  # gpt-oss is scaled where config.json says nothing
        return {"rope_theta": theta, "rope_scaling": {"rope_type": "default"} if arch.name == "gpt-oss" else None}
    if kind not in ("linear", "yarn") or factor is None:
        problems.append(Problem(where, f"is {kind!r:.60} by {factor!r:.60}; none, linear and yarn are known"))
        return {}
    if kind == "linear":
        return {"rope_theta": theta, "rope_scaling": {"rope_type": kind, "factor": factor}}
    if arch.name == "gpt-oss":
        scaling = {**{k: gpt_oss.YARN[k] for k in ("beta_fast", "beta_slow", "truncate")}, **scaling}
    return {"rope_theta": theta, "rope_scaling": {"rope_type": kind, "factor": factor, **scaling}}


def _llama3(theta: float, factors: Any, head_dim: int, problems: list[Problem]) -> dict[str, Any]:
    """The rope scaling of llama 3 that makes `factors`.

    They say where the ramp begins and ends, and not by which context it was computed: published models have 8192 and a
    ramp from 1 to 4 turns of it, and any other context with such a ramp is found from the factors that lie on it.
    """
    factor = short(factors.max(initial=0))
    rope = {**LLAMA3, "rope_type": "llama3", "factor": factor}
    if factors.shape != (head_dim // 2,) or not factor > 0 or not np.isfinite(factors).all():
        text = f"is {list(factors.shape)}; {head_dim // 2} positive numbers are expected"
        problems.append(Problem(ROPE_FREQS, text))
        return rope
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    with np.errstate(all="ignore"):
        ramp = (1 / factors.astype(np.float64) - 1 / factor) / (1 - 1 / factor)
        wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    on = (ramp > RAMP_ENDS) & (ramp < 1 - RAMP_ENDS)
    contexts = [LLAMA3["original_max_position_embeddings"]]
    if on.any():
        contexts.append(int(np.clip(np.round(np.median((low + ramp[on] * (high - low)) * wavelength[on])), 1, LARGEST)))
    for context in contexts:
        rope["original_max_position_embeddings"] = context
        if np.allclose(llama3_factors({**rope, "rope_theta": theta}, head_dim), factors, rtol=1e-3):
            return rope
    problems.append(Problem(ROPE_FREQS, f"its factors are not those of llama 3 rope scaling by {factor}"))
    return rope


def _rope_kv(
    arch: Arch, kv: dict[str, tuple[str, Any]], rope: Mapping[str, Any], sizes: Sizes, problems: list[Problem]
) -> Any:
    """Adds rotary settings to `kv`; returns the factors that are stored as a leaf, or None."""
    s = Settings(rope, f"{WHERE} rope_parameters ")
    kind, theta = s.get("rope_type", str, "default"), s.positive("rope_theta", DEFAULT_THETA)
    numbers = {k: s.positive(k, None) for k in ("factor", *LLAMA3)}
    s.refuse("partial_rotary_factor", "cannot be written", 1.0)
    problems += s.problems
    if s.problems:
        return None
    kv[f"{arch.name}.rope.freq_base"] = ("float32", theta)
    if kind == "default":
        return None
    if kind == "llama3" and None not in numbers.values():
        if numbers["low_freq_factor"] == numbers["high_freq_factor"]:
            problems.append(Problem(WHERE, "low_freq_factor and high_freq_factor of llama3 must differ"))
            return None
        if sizes.head_dim > MAX_HEAD_DIM:  # of hidden_size and heads, where config.json names none
            problems.append(Problem(WHERE, f"heads have {sizes.head_dim} dims; at most {MAX_HEAD_DIM} are possible"))
            return None
        with np.errstate(all="ignore"):
            factors = llama3_factors({**numbers, "rope_theta": theta}, sizes.head_dim)
        if not np.isfinite(factors).all():
            problems.append(Problem(WHERE, "the numbers of llama3 rope scaling make factors that are not finite"))
        return factors
    if kind not in ("linear", "yarn") or numbers["factor"] is None:
        problems.append(Problem(WHERE, f"rope_type {kind!r:.60}: GGUF can say default, linear, yarn and llama3"))
        return None
    kv[f"{arch.name}.rope.scaling.type"] = ("string", kind)
    kv[f"{arch.name}.rope.scaling.factor"] = ("float32", numbers["factor"])
    if kind == "yarn":
        kv |= {f"{arch.name}.{key}": entry for key, entry in yarn.to_kv(rope, arch.name, sizes, problems).items()}
    return None
