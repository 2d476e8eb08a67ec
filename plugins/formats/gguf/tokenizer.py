"""The tokenizer inside a GGUF file, and the tokenizer files of Hugging Face: each made from the other.

Vocabularies are of two kinds, `gguf_bytelevel` and `gguf_sentencepiece`; special tokens, what is put around a text and
the chat template are the same for both.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import PlanError, Problem
from plugins.formats.gguf import bytelevel, ends, sampling, sentencepiece
from plugins.formats.gguf.sentencepiece import CONTROL, NORMAL, UNKNOWN, USER_DEFINED

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
GENERATION = "generation_config.json"
DEFAULT = "tokenizer.chat_template"  # others have its name, a dot and their own
TAKES = (TOKENIZER, CONFIG, TEMPLATE, GENERATION)
SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}

TYPES = {  # llama_vocab::impl::load
    "ggml.model": "string", "ggml.pre": "string", "ggml.tokens": "array:string", "ggml.merges": "array:string",
    "ggml.scores": "array:float32", "ggml.token_type": "array:int32", "ggml.add_bos_token": "bool",
    "ggml.add_eos_token": "bool", "ggml.add_space_prefix": "bool", "chat_template": "string",
}  # fmt: skip
NO_TOKENIZER = ("string", "none")  # as tokenizer.ggml.model
MOST_TOKENS = 10_000_000  # the largest vocabularies have a fortieth


def from_kv(kv: Mapping[str, tuple[str, Any]], config: Mapping[str, Any]) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and generation_config.json; nothing for a tokenizer of another kind.

    Raises:
        PlanError: an entry of another type than llama.cpp's.
    """
    for key, kind in TYPES.items():
        if (found := kv.get(f"tokenizer.{key}", (kind, None))[0]) != kind:
            raise PlanError([Problem(f"tokenizer.{key}", f"is {found}; {kind} is expected")], exit_code=4)
    get = {k.removeprefix("tokenizer.ggml."): v for k, (_, v) in kv.items() if k.startswith("tokenizer.ggml.")}
    tokens, pieces = get.get("tokens") or [], get.get("model") == "llama"
    made = sentencepiece.body(get) if pieces and tokens else bytelevel.body(get)
    if not made:
        return {}
    kinds = get.get("token_type") or [NORMAL] * len(tokens)
    # SentencePiece looks for them after it has spelled spaces as ▁, which a tokenizer.json without a prefix can do too.
    spelled = pieces and not get.get("add_space_prefix", True)
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": kind == USER_DEFINED and spelled, "special": kind != USER_DEFINED}
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (CONTROL, USER_DEFINED, UNKNOWN)
    ]
    ids = {name: get[f"{name}_token_id"] for name in SPECIAL if isinstance(get.get(f"{name}_token_id"), int)}
    named = {SPECIAL[name]: tokens[i] for name, i in ids.items() if 0 <= i < len(tokens)}
    # llama_vocab::impl::load: what is added where the file does not say.
    adds_bos = get.get("add_bos_token", pieces or get.get("pre") in bytelevel.ADDS_BOS)
    bos = (named["bos_token"], ids["bos"]) if adds_bos and "bos_token" in named else None
    eos = (named["eos_token"], ids["eos"]) if get.get("add_eos_token") and "eos_token" in named else None
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": made["normalizer"],
        "pre_tokenizer": made["pre_tokenizer"],
        "post_processor": _template(bos, eos) if bos or eos else None if pieces else bytelevel.byte_level(True),
        "decoder": made["decoder"],
        "model": made["model"],
    }
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "clean_up_tokenization_spaces": False,
    }
    about["model_max_length"] = config["max_position_embeddings"]
    if templates := _templates(kv):
        about["chat_template"] = templates
    generation = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in config}
    if ended := ends.read(get, kinds, kv.get(DEFAULT, ("", ""))[1]):
        generation["eos_token_id"] = ended[0] if len(ended) == 1 else [*ended]
    generation |= sampling.from_kv(kv)
    return {
        TOKENIZER: json.dumps(tokenizer, ensure_ascii=False).encode(),
        CONFIG: _json(about),
        GENERATION: _json(generation),
    }


def tokenizer_kv(config: Mapping[str, Any], pre: str | None) -> tuple[dict[str, tuple[str, Any]], list[Problem]]:
    """Metadata for the tokenizer files in `config`, and what is wrong; a file without a tokenizer says `none`.

    Args:
        config: config.json, with the companion files under their names.
        pre: name of the splitter; None: found in the table.
    """
    if config.get(TOKENIZER) is None:
        return {"tokenizer.ggml.model": NO_TOKENIZER}, []
    try:
        return _tokenizer_kv(config, pre)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as why:  # any part of it may be anything
        return {}, [
            Problem(TOKENIZER, f"is not built as the package tokenizers writes it: {type(why).__name__}: {why}")
        ]


def _tokenizer_kv(config: Mapping[str, Any], pre: str | None) -> tuple[dict[str, tuple[str, Any]], list[Problem]]:
    tokenizer = config[TOKENIZER]
    model, about = tokenizer.get("model") or {}, config.get(CONFIG) or {}
    if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        text = f"model {model.get('type')!r:.60}; BPE is what can be written to GGUF, of bytes or of SentencePiece"
        return {}, [Problem(TOKENIZER, text)]
    added = {t["id"]: t for t in tokenizer.get("added_tokens") or ()}
    by_id = {i: t for t, i in model["vocab"].items()} | {i: t["content"] for i, t in added.items()}
    size = config.get("vocab_size", max(by_id, default=-1) + 1)
    problems = []
    if not 0 < size <= MOST_TOKENS:
        return {}, [Problem(TOKENIZER, f"a vocabulary of {size:,} tokens; at most {MOST_TOKENS:,} are written")]
    if by_id and max(by_id) >= size:
        problems.append(Problem(TOKENIZER, f"has token {max(by_id)}, config.json's vocab_size is {size}"))
    if sentencepiece.is_sentencepiece(tokenizer):
        prefix = sentencepiece.add_space_prefix(tokenizer)
        if prefix is None:
            text = "its normalizer and pre_tokenizer are not SentencePiece's (spaces spelled ▁, text not split)"
            problems.append(Problem(TOKENIZER, text))
        tokens, scores, kinds = sentencepiece.vocabulary(tokenizer, size)
        kv: dict[str, tuple[str, Any]] = {
            "tokenizer.ggml.model": ("string", "llama"),
            "tokenizer.ggml.pre": ("string", "default"),
            "tokenizer.ggml.tokens": ("array:string", tokens),
            "tokenizer.ggml.scores": ("array:float32", scores),
            "tokenizer.ggml.token_type": ("array:int32", kinds),
            "tokenizer.ggml.add_space_prefix": ("bool", bool(prefix)),
        }
    else:
        kv = bytelevel.kv_of(tokenizer, pre, by_id, size, problems)
    ids = {t: i for i, t in by_id.items()}
    for key, name in SPECIAL.items():
        token = about.get(name)
        found = ids.get(token["content"] if isinstance(token, dict) else token)
        if found is None:
            found = config.get(f"{name}_id", (config.get(GENERATION) or {}).get(f"{name}_id"))
        if type(found) is list:
            found = found[0] if found else None
        if type(found) is int:
            kv[f"tokenizer.ggml.{key}_token_id"] = ("uint32", found)
    for key, name, at in (("bos", "bos_token", 0), ("eos", "eos_token", -1)):
        adds = _adds(tokenizer, at)
        if adds or key == "bos":
            kv[f"tokenizer.ggml.add_{name}"] = ("bool", adds)
    eos, tokens = kv.get("tokenizer.ggml.eos_token_id", ("", None))[1], kv["tokenizer.ggml.tokens"][1]
    kv |= {f"tokenizer.ggml.{k}": ("uint32", i) for k, i in ends.written(_ends(config, ids), eos, tokens).items()}
    kv |= _template_kv(config.get(TEMPLATE) or about.get("chat_template"))
    return kv, problems


def unsaid(config: Mapping[str, Any], kv: Mapping[str, tuple[str, Any]]) -> str:
    """What a person should know of tokens at which the checkpoint ends and llama.cpp, by the file, will not."""
    if TOKENIZER not in config or "tokenizer.ggml.tokens" not in kv:
        return ""
    get = {k.removeprefix("tokenizer.ggml."): v for k, (_, v) in kv.items()}
    said = ends.read(get, get["token_type"], get.get("tokenizer.chat_template", ""))
    tokens = get["tokens"]
    left = [tokens[i] for i in _ends(config, {}) if i < len(tokens) and i not in said]
    return f"llama.cpp will not end at {', '.join(left)}: GGUF has no more places for what ends a text" if left else ""


def _ends(config: Mapping[str, Any], ids: Mapping[str, int]) -> list[int]:
    """Ids at which the checkpoint ends: those of generation_config.json, of config.json, and the tokenizer's own.

    Args:
        ids: of all tokens.
    """
    token = (config.get(CONFIG) or {}).get("eos_token")
    said = [(config.get(GENERATION) or {}).get("eos_token_id"), config.get("eos_token_id")]
    said.append(ids.get(str(token["content"] if isinstance(token, dict) else token)))
    return [i for one in said for i in (one if isinstance(one, list) else [one]) if type(i) is int and i >= 0]


def _template_kv(given: Any) -> dict[str, tuple[str, Any]]:
    """The chat templates, those with a name beside the default one as gguf's `add_chat_template` writes them."""
    if isinstance(given, str) and given:
        return {DEFAULT: ("string", given)}
    named = {re.sub("[^A-Za-z0-9]", "_", t["name"]): t["template"] for t in given or ()}
    out = {f"{DEFAULT}.{name}": ("string", text) for name, text in named.items() if name != "default"}
    if out:
        out[f"{DEFAULT}s"] = ("array:string", [key.removeprefix(f"{DEFAULT}.") for key in out])
    return out | ({DEFAULT: ("string", named["default"])} if "default" in named else {})


def _templates(kv: Mapping[str, tuple[str, Any]]) -> str | list[dict[str, Any]]:
    """The chat template, or where there are several all of them by name, as tokenizer_config.json has them.

    Raises:
        PlanError: one that is no text.
    """
    found = {k.removeprefix(DEFAULT).removeprefix(".") or "default": v for k, v in kv.items() if _names(k)}
    for name, (kind, _) in found.items():
        if kind != "string":
            raise PlanError([Problem(f"{DEFAULT}.{name}", f"is {kind}; string is expected")], exit_code=4)
    if not found.keys() - {"default"}:
        return str(found["default"][1]) if found else ""
    return [{"name": name, "template": text} for name, (_, text) in found.items()]


def _names(key: str) -> bool:
    return key == DEFAULT or key.startswith(f"{DEFAULT}.")


def _adds(tokenizer: Mapping[str, Any], at: int) -> bool:
    """Whether a special token is put first (`at` 0) or last (-1).

    By tokenizer.json alone: `add_bos_token` of tokenizer_config.json means nothing beside it, in transformers as here.
    """
    post = tokenizer.get("post_processor") or {}
    steps = [s for p in (post, *post.get("processors", ())) for s in p.get("single", ())]
    return len(steps) > 1 and "SpecialToken" in steps[at]


def _template(first: tuple[str, int] | None, last: tuple[str, int] | None) -> dict[str, Any]:
    """Texts with one token in front of them and one after them; (token, id) or None for neither."""

    def special(end: tuple[str, int] | None, text: int) -> list[Any]:
        return [] if end is None else [{"SpecialToken": {"id": end[0], "type_id": text}}]

    a, b = ({"Sequence": {"id": letter, "type_id": i}} for i, letter in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [*special(first, 0), a, *special(last, 0)],
        "pair": [*special(first, 0), a, *special(last, 0), b, *special(last, 1)],
        "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in filter(None, (first, last))},
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()
