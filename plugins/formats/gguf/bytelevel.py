"""Byte-level BPE in GGUF (`tokenizer.ggml.model` is `gpt2`), and in tokenizer.json.

Vocabulary and merges are the same lists on both sides. How text is split before merging is a name in GGUF
(`tokenizer.ggml.pre`) and a program in tokenizer.json, so it takes a table; what the table does not know is refused,
because a tokenizer that splits otherwise runs and is wrong.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import Problem
from plugins.facts import splits
from plugins.formats.gguf.sentencepiece import CONTROL, NORMAL, UNUSED, USER_DEFINED

# The pattern of each model's own tokenizer.json: Llama 3, Qwen 2, Mistral Nemo, and o200k of gpt-4o and gpt-oss.
PATTERNS = {"llama-bpe": splits.CL100K, "qwen2": splits.QWEN, "tekken": splits.TEKKEN, "gpt-4o": splits.O200K}


def byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(*patterns: str) -> dict[str, Any]:
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level(False)]}


# How llama.cpp splits where a file names no splitter, as the first GGUF files did.
UNNAMED = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
SPLITTERS: dict[str, dict[str, Any]] = {
    "gpt-2": byte_level(True),
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)],
    },
    **{name: _split(pattern) for name, pattern in PATTERNS.items()},
    "deepseek-r1-qwen": _split(splits.QWEN),  # Qwen's, and text as it is
    "default": _split(*UNNAMED),
}
NORMALIZERS = {"qwen2": {"type": "NFC"}}
NAMES = {  # other names that llama.cpp has for a splitter (llama_vocab::impl::load)
    "llama-bpe": ("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    "gpt-2": ("gpt2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion"),
    "deepseek-r1-qwen": ("kormo", "f2llmv2", "megrez", "hunyuan", "stablelm2"),
    "gpt-4o": ("llama4", "kanana2"),
    "smollm": ("starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
}
SAME = {other: name for name, others in NAMES.items() for other in others}
ADDS_BOS = frozenset(("llama-bpe", "tekken", *NAMES["llama-bpe"]))  # where a file does not say


def body(get: Mapping[str, Any]) -> dict[str, Any]:
    """normalizer, pre_tokenizer, decoder and model of tokenizer.json, {} for what is not known."""
    pre = SAME.get(get.get("pre", "default"), get.get("pre", "default"))
    tokens, merges = get.get("tokens"), get.get("merges")
    if get.get("model") != "gpt2" or pre not in SPLITTERS or not tokens or merges is None:
        return {}
    kinds = get.get("token_type") or [NORMAL] * len(tokens)
    return {
        "normalizer": NORMALIZERS.get(pre),
        "pre_tokenizer": SPLITTERS[pre],
        "decoder": {**byte_level(True), "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in ("llama-bpe", "gpt-4o", "tekken"),
            "vocab": {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind != UNUSED},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def kv_of(
    tokenizer: Mapping[str, Any], pre: str | None, by_id: Mapping[int, str], size: int, problems: list[Problem]
) -> dict[str, tuple[str, Any]]:
    pre = pre or _splitter(tokenizer)
    if pre is None:
        text = f"its pre_tokenizer is none of those known ({', '.join(SPLITTERS)}); export.dialect.pre=NAME names it"
        problems.append(Problem("tokenizer.json", text))
    added = {t["id"]: t for t in tokenizer.get("added_tokens") or ()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(size)]  # what llama.cpp's conversion calls rows without a token
    kinds = [
        (CONTROL if added[i]["special"] else USER_DEFINED) if i in added else NORMAL if i in by_id else UNUSED
        for i in range(size)
    ]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"].get("merges") or ()]
    kv: dict[str, tuple[str, Any]] = {
        "tokenizer.ggml.model": ("string", "gpt2"),
        "tokenizer.ggml.pre": ("string", pre),
        "tokenizer.ggml.tokens": ("array:string", tokens),
        "tokenizer.ggml.token_type": ("array:int32", kinds),
    }
    return kv | ({"tokenizer.ggml.merges": ("array:string", merges)} if merges else {})


def _splitter(tokenizer: Mapping[str, Any]) -> str | None:
    """The name of a tokenizer's splitter, where the table has it."""
    given = _essence(tokenizer.get("pre_tokenizer"))
    normalizer = (tokenizer.get("normalizer") or {}).get("type")
    for name, splitter in SPLITTERS.items():
        if _essence(splitter) == given and (NORMALIZERS.get(name) or {}).get("type") == normalizer:
            return name
    return None


def _essence(splitter: Any) -> Any:
    """Without what does not decide where text is split."""
    if isinstance(splitter, Mapping):
        return {k: _essence(v) for k, v in splitter.items() if k != "trim_offsets"}
    return [_essence(v) for v in splitter] if isinstance(splitter, list) else splitter
