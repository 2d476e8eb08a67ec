"""SentencePiece vocabularies (Llama 2, Mistral, Gemma): a GGUF file's pieces with scores, and a BPE tokenizer.json.

SentencePiece joins, among all neighbours whose union is a piece, the ones whose union has the best score, leftmost
first. tokenizer.json says the same by a list of merges, best first: for every piece, in order of score, all the ways to
make it of two others. Where scores are all different, as in every trained model, the two agree. Going back, scores are
positions in that list, which is what SentencePiece's trainer writes too.

Text is not split before joining; a space becomes ▁, and one is put in front of the text and after special tokens if
`add_space_prefix`. Characters without a piece become bytes. Tokens that are no pieces (control and user-defined ones)
are found in the text first. llama.cpp: `llm_tokenizer_spm` and `tokenizer_st_partition` in llama-vocab.cpp; kinds and
scores of added tokens: `_create_vocab_sentencepiece` in conversion/base.py.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import PlanError, Problem

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # gguf.TokenType
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
ADDED_SCORE, PAD_SCORE = -1000.0, -10000.0
LONGEST_PIECE = 512  # characters; every cut of every piece is looked at, and the longest published ones have 100
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
UNREPLACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}


def body(get: Mapping[str, Any]) -> dict[str, Any]:
    """normalizer, pre_tokenizer, decoder and model of tokenizer.json.

    {} for scores that are missing or all alike: in what order pieces are joined is then not known.

    Args:
        get: metadata without `tokenizer.ggml.`: `tokens`, `scores`, `token_type`, `add_space_prefix`, …
    """
    tokens, scores = get["tokens"], get.get("scores") or ()
    kinds = get.get("token_type") or [NORMAL] * len(tokens)
    if len(scores) != len(tokens) or len(kinds) != len(tokens):
        return {}
    pieces = [i for i, kind in enumerate(kinds) if kind == NORMAL and tokens[i]]
    if len({scores[i] for i in pieces}) < 2:
        return {}
    prefix = get.get("add_space_prefix", True)
    unknown = next((t for t, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
    if unknown is None and 0 <= get.get("unknown_token_id", -1) < len(tokens):
        unknown = tokens[get["unknown_token_id"]]
    prepend = {"type": "Prepend", "prepend": SPACE}
    steps = [UNREPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, REPLACE]} if prefix else REPLACE,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [*steps, strip] if prefix else steps},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": BYTE in kinds,
            "ignore_merges": False,
            "vocab": {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED},
            "merges": _merges([tokens[i] for i in sorted(pieces, key=lambda i: (-scores[i], i))]),
        },
    }


def _merges(best_first: Sequence[str]) -> list[tuple[str, str]]:
    """All ways to make each piece of two others.

    Raises:
        PlanError: a piece is longer than any that SentencePiece makes.
    """
    known = frozenset(best_first)
    found = []
    for piece in best_first:
        if len(piece) > LONGEST_PIECE:
            text = f"a piece of {len(piece):,} characters ({piece!r:.60}…); at most {LONGEST_PIECE} are read"
            raise PlanError([Problem("tokenizer.ggml.tokens", text)], exit_code=4)
        for at in range(1, len(piece)):
            left = piece[:at]
            if left in known and (right := piece[at:]) in known:
                found.append((left, right))
    return found


def is_sentencepiece(tokenizer: Mapping[str, Any]) -> bool:
    """Whether tokenizer.json is BPE over spaces spelled ▁, with bytes for what has no piece."""
    model = tokenizer.get("model") or {}
    return model.get("type") == "BPE" and bool(model.get("byte_fallback"))


def add_space_prefix(tokenizer: Mapping[str, Any]) -> bool | None:
    """Whether a space is put in front, or None where text is changed or split in another way than SentencePiece does.

    Known are the published spellings: Prepend and Replace as normalizers (Llama 2, Mistral), Replace alone, with a
    Split at spaces that then finds none (Gemma), and the pre-tokenizer Metaspace (Llama since transformers 4.40, whose
    scheme `first` puts no space after special tokens; llama.cpp knows no such scheme).
    """
    normalizer, pre = tokenizer.get("normalizer") or {}, tokenizer.get("pre_tokenizer")
    steps = (
        normalizer.get("normalizers", ()) if normalizer.get("type") == "Sequence" else [normalizer] * bool(normalizer)
    )
    if not steps and pre is not None and pre.get("type") == "Metaspace" and pre.get("replacement") == SPACE:
        return bool(pre.get("prepend_scheme", "always" if pre.get("add_prefix_space", True) else "never") != "never")
    no_splitter = pre is None or (pre.get("type") == "Split" and pre.get("pattern") == {"String": " "})
    if not no_splitter or not steps or steps[-1] != REPLACE:
        return None
    if len(steps) == 1:
        return False
    return True if steps[:-1] == [{"type": "Prepend", "prepend": SPACE}] else None


def vocabulary(tokenizer: Mapping[str, Any], size: int) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and kinds for `size` rows of the embeddings."""
    model = tokenizer["model"]
    added = {t["id"]: t for t in tokenizer.get("added_tokens") or ()}
    by_id = {i: t for t, i in model["vocab"].items()} | {i: t["content"] for i, t in added.items()}
    order: dict[str, int] = {}
    for merge in model.get("merges") or ():
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        order.setdefault(left + right, len(order))
    tokens, scores, kinds = [], [], []
    alone = len(order)  # pieces that nothing is joined to, characters above all: their scores decide nothing
    for i in range(size):
        token = by_id.get(i)
        if token is None:
            token, score, kind = f"[PAD{i}]", PAD_SCORE, UNUSED
        elif i in added:
            kind = CONTROL if added[i].get("special") else USER_DEFINED
            token = token.replace(SPACE, " ") if kind == USER_DEFINED else token
            score = ADDED_SCORE
        elif token == model.get("unk_token"):
            score, kind = 0.0, UNKNOWN
        elif BYTE_TOKEN.fullmatch(token):
            score, kind = 0.0, BYTE
        else:
            place = order.get(token)
            if place is None:
                place, alone = alone, alone + 1
            score, kind = float(-place), NORMAL
        tokens.append(token)
        scores.append(score)
        kinds.append(kind)
    return tokens, scores, kinds
