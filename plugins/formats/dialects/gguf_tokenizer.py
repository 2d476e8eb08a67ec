"""The tokenizer inside a GGUF file, and the tokenizer files of Hugging Face: each made from the other.

Byte-level BPE only (`tokenizer.ggml.model` is `gpt2`): vocabulary and merges are the same lists on both sides. How text
is split before merging is a name in GGUF (`tokenizer.ggml.pre`) and a program in tokenizer.json, so it takes a table;
what the table does not know is refused, because a tokenizer that splits otherwise runs and is wrong.
"""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.errors import Problem

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
GENERATION = "generation_config.json"
TAKES = (TOKENIZER, CONFIG, TEMPLATE)
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # gguf.TokenType
SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# The pattern of each model's own tokenizer.json: Llama 3, Qwen 2, and o200k of gpt-4o and gpt-oss.
PATTERNS = {
    "llama-bpe": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL,
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL,
    "gpt-4o": "|".join(
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?",
            rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    ),
}


def byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level(False)]}


SPLITTERS: dict[str, dict[str, Any]] = {
    "gpt-2": byte_level(True),
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)],
    },
    **{name: _split(pattern) for name, pattern in PATTERNS.items()},
}
NORMALIZERS = {"qwen2": {"type": "NFC"}}
SAME = {
    "default": "gpt-2",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "gpt2": "gpt-2",
}  # other names of a splitter


def from_kv(kv: Mapping[str, tuple[str, Any]], config: Mapping[str, Any]) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and generation_config.json; nothing for a tokenizer of another kind."""
    get = {k.removeprefix("tokenizer.ggml."): v for k, (_, v) in kv.items() if k.startswith("tokenizer.ggml.")}
    pre = SAME.get(get.get("pre", "default"), get.get("pre", "default"))
    tokens, merges = get.get("tokens"), get.get("merges")
    if get.get("model") != "gpt2" or pre not in SPLITTERS or not tokens or merges is None:
        return {}
    kinds = get.get("token_type") or [NORMAL] * len(tokens)
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": kind == CONTROL}
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (CONTROL, USER_DEFINED)
    ]
    ids = {name: get[f"{name}_token_id"] for name in SPECIAL if f"{name}_token_id" in get}
    named = {SPECIAL[name]: tokens[i] for name, i in ids.items() if 0 <= i < len(tokens)}
    bos = named.get("bos_token") if get.get("add_bos_token", pre == "llama-bpe") else None
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": NORMALIZERS.get(pre),
        "pre_tokenizer": SPLITTERS[pre],
        "post_processor": _template(bos, ids.get("bos", 0)) if bos else byte_level(True),
        "decoder": {**byte_level(True), "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in ("llama-bpe", "gpt-4o"),
            "vocab": {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind != UNUSED},
            "merges": [merge.split(" ") for merge in merges],
        },
    }
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "clean_up_tokenization_spaces": False,
    }
    about["model_max_length"] = config["max_position_embeddings"]
    if "tokenizer.chat_template" in kv:
        about["chat_template"] = kv["tokenizer.chat_template"][1]
    generation = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in config}
    return {TOKENIZER: _json(tokenizer), CONFIG: _json(about), GENERATION: _json(generation)}


def tokenizer_kv(config: Mapping[str, Any], pre: str | None) -> tuple[dict[str, tuple[str, Any]], list[Problem]]:
    """Metadata for the tokenizer files in `config`, and what is wrong; a file without a tokenizer says `none`.

    Args:
        config: config.json, with the companion files under their names.
        pre: name of the splitter; None: found in the table.
    """
    tokenizer = config.get(TOKENIZER)
    if tokenizer is None:
        return {"tokenizer.ggml.model": ("string", "none")}, []
    model, about = tokenizer.get("model") or {}, config.get(CONFIG) or {}
    if model.get("type") != "BPE" or model.get("byte_fallback") or not isinstance(model.get("vocab"), dict):
        kind = f"{model.get('type')!r:.60}{' with byte_fallback' if model.get('byte_fallback') else ''}"
        return {}, [Problem(TOKENIZER, f"model {kind}; byte-level BPE is what can be written to GGUF")]
    problems = []
    if pre is None:
        pre = _splitter(tokenizer)
        if pre is None:
            text = (
                f"its pre_tokenizer is none of those known ({', '.join(SPLITTERS)}); export.dialect.pre=NAME names it"
            )
            problems.append(Problem(TOKENIZER, text))
    added = {t["id"]: t for t in tokenizer.get("added_tokens") or ()}
    by_id = {i: t for t, i in model["vocab"].items()} | {i: t["content"] for i, t in added.items()}
    size = config.get("vocab_size", max(by_id, default=-1) + 1)
    if by_id and max(by_id) >= size:
        problems.append(Problem(TOKENIZER, f"has token {max(by_id)}, config.json's vocab_size is {size}"))
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(size)]  # what llama.cpp's conversion calls rows without a token
    kinds = [
        (CONTROL if added[i]["special"] else USER_DEFINED) if i in added else NORMAL if i in by_id else UNUSED
        for i in range(size)
    ]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges") or ()]
    kv: dict[str, tuple[str, Any]] = {
        "tokenizer.ggml.model": ("string", "gpt2"),
        "tokenizer.ggml.pre": ("string", pre),
        "tokenizer.ggml.tokens": ("array:string", tokens),
        "tokenizer.ggml.token_type": ("array:int32", kinds),
    }
    if merges:
        kv["tokenizer.ggml.merges"] = ("array:string", merges)
    ids = {t: i for i, t in by_id.items()}
    for key, name in SPECIAL.items():
        token = about.get(name)
        found = ids.get(token["content"] if isinstance(token, dict) else token)
        if found is None:
            found = config.get(f"{name}_id")
        if type(found) is list:
            found = found[0] if found else None
        if type(found) is int:
            kv[f"tokenizer.ggml.{key}_token_id"] = ("uint32", found)
    kv["tokenizer.ggml.add_bos_token"] = ("bool", _adds_bos(tokenizer, about))
    template = config.get(TEMPLATE) or about.get("chat_template")
    if isinstance(template, str) and template:
        kv["tokenizer.chat_template"] = ("string", template)
    return kv, problems


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


def _adds_bos(tokenizer: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    if isinstance(about.get("add_bos_token"), bool):
        return bool(about["add_bos_token"])
    post = tokenizer.get("post_processor") or {}
    steps = [s for p in (post, *post.get("processors", ())) for s in p.get("single", ())]
    return bool(steps) and "SpecialToken" in steps[0]


def _template(bos: str, bos_id: int) -> dict[str, Any]:
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    a, b = ({"Sequence": {"id": letter, "type_id": i}} for i, letter in enumerate("AB"))
    special = {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}}
    return {"type": "TemplateProcessing", "single": [first, a], "pair": [first, a, b], "special_tokens": special}


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()
