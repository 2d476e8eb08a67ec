"""Tokenizers of every kind, their files changed: loaded, and asked to encode, decode and stream."""

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from plugins.tokenizers import patience
from plugins.tokenizers.load import load_tokenizer
from tests.cases import tokenizers as cases
from tests.fuzz.driver import Files
from tests.fuzz.mutate import changed_bytes, changed_json, one

TEXTS = ("", "The quick <|a|> fox <t> naïve 日本 \0 \x1b", "a" * 50)
ABOUT = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|a|>", "eos_token": {"content": "<t>"},
    "add_bos_token": True, "legacy": False, "model_max_length": 10**30, "extra_special_tokens": ["<t>"],
    "added_tokens_decoder": {"5": {"content": "<x y>", "special": False, "lstrip": False, "rstrip": True}},
    "chat_template": "{{ messages[0]['content'] }}", "additional_special_tokens": [],
}  # fmt: skip
MAP = {"bos_token": "<|a|>", "additional_special_tokens": ["<t>"], "unk_token": {"content": "<unk>", "lstrip": True}}
TEKKEN = {
    "config": {"pattern": r"\p{L}+|\s+|.", "default_vocab_size": 300, "default_num_special_tokens": 20},
    "vocab": [{"rank": i, "token_bytes": __import__("base64").b64encode(bytes([i])).decode()} for i in range(256)],
    "special_tokens": [{"rank": i, "token_str": f"<{i}>"} for i in range(20)],
}
KINDS = ("byte_level", "byte_fallback", "metaspace", "wordpiece")


@cache
def _tokenizer(kind: str) -> Any:
    found = json.loads(cases.tokenizer_json(kind))
    vocab = found["model"].get("vocab")
    if isinstance(vocab, dict) and kind != "byte_fallback":  # small, so that changes reach all of it
        keep = dict(list(vocab.items())[:300])
        found["model"]["vocab"] = keep
        if "merges" in found["model"]:
            merges = found["model"]["merges"]
            found["model"]["merges"] = [m for m in merges if {"".join(m), *m} <= keep.keys()][:20]
    return found


def make(rng: random.Random) -> Files:
    kind = rng.randrange(8)
    files: Files = {}
    if kind < 5:
        found = _tokenizer(one(rng, KINDS))
        if rng.random() < 0.7:
            part = one(rng, ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens", "truncation"))
            files["tokenizer.json"] = changed_json(rng, {**found, part: json.loads(changed(rng, found.get(part)))})
        else:
            files["tokenizer.json"] = changed_json(rng, found)
    elif kind == 5:
        raw = cases.byte_ranks()
        files["x.tiktoken"] = changed_bytes(rng, raw, raw) if rng.random() < 0.7 else raw
    elif kind == 6:
        raw = cases.sentencepiece_model(one(rng, ("bpe", "bare", "unigram")))
        files["tokenizer.model"] = changed_bytes(rng, raw, raw) if rng.random() < 0.7 else raw
    else:
        files["tekken.json"] = changed_json(rng, TEKKEN)
    for name, content in (("tokenizer_config.json", ABOUT), ("special_tokens_map.json", MAP)):
        if rng.random() < 0.4:
            files[name] = changed_json(rng, content)
    if rng.random() < 0.1:
        files["added_tokens.json"] = changed_json(rng, {"<t>": 5, "<n>": 900})
    if rng.random() < 0.1:
        files["generation_config.json"] = changed_json(rng, {"eos_token_id": [1, 2], "bos_token_id": 0})
    return files


def changed(rng: random.Random, part: Any) -> bytes:
    raw = changed_json(rng, part)
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return b"null"
    return raw


def run(files: Mapping[str, bytes], folder: Path) -> None:
    patience.PATIENCE_S = 5.0  # before the driver loses its own
    encoding = "llama3" if "x.tiktoken" in files else None
    tokenizer = load_tokenizer(dict(files), {"eos_token_id": 2}, "here", encoding=encoding)
    for text in TEXTS:
        for plain in (False, True):
            ids = tokenizer.encode(text, special=True, plain=plain)
            tokenizer.decode(ids)
    ids = [*ids[:50], -1, 0, 10**6]
    tokenizer.decode([i for i in ids if i >= 0])
    stream = tokenizer.stream()
    for i in ids:
        if i >= 0:
            stream.push(i)
    stream.end()
    if tokenizer.has_chat_template:
        tokenizer.chat([{"role": "user", "content": "hello"}])
