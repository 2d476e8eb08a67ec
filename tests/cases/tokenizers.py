"""Small tokenizers of every kind, trained here on a few sentences, and texts that are hard on them."""

import base64
import io
import json
from functools import cache
from pathlib import Path

from plugins.tokenizers.load import load_tokenizer
from plugins.tokenizers.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "plugins/models/gpt_oss/tiny"
SENTENCES = tuple(
    f"The quick brown fox {verb} over {count} lazy dogs, won't it?  Naïve café — 日本語 🦙 x\ty\n  indented({count})"
    for verb in ("jumps", "leaps", "falls", "looks")
    for count in range(12)
)
TEXTS = (
    "",
    " ",
    "The capital of France is Paris.",
    "  two spaces first, and last  ",
    "Hello   world\n\n 12345 + 67 = don't I'LL",
    "naïve café — 日本語 🦙🦙 x\t\ty\r\n",
    "▁ is not a space",
    "👩‍👩‍👧‍👦 ﬁ Å é e\u0301 \u200b\u0000",
)


@cache
def tokenizer_json(kind: str) -> bytes:
    """tokenizer.json of one kind of model and decoder, with the added tokens <|a|> (special), <t> and <x y> (not)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "byte_level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=340, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    elif kind == "byte_fallback":  # Llama 2's tokenizer.json
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=420,
            show_progress=False,
            special_tokens=["<unk>", *(f"<0x{b:02X}>" for b in range(256))],
            limit_alphabet=40,
        )
    elif kind == "metaspace":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=150, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"]
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.WordPiece(cleanup=True)
        trainer = trainers.WordPieceTrainer(vocab_size=150, show_progress=False, special_tokens=["[UNK]"])
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if kind == "byte_fallback":  # the trainer can only make them special, which in Llama's file they are not
        parsed = json.loads(tokenizer.to_str())
        parsed["added_tokens"] = [t for t in parsed["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(parsed))
    tokenizer.add_special_tokens([AddedToken("<|a|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<t>", normalized=False), AddedToken("<x y>", normalized=False)])
    return tokenizer.to_str().encode()


@cache
def sentencepiece_model(kind: str) -> bytes:
    """tokenizer.model: bpe (as Llama 2's), bare (without the "▁" before a text, as Gemma's) or unigram (as T5's)."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=out,
        vocab_size=400,
        model_type="unigram" if kind == "unigram" else "bpe",
        byte_fallback=kind != "unigram",
        character_coverage=0.98,
        add_dummy_prefix=kind != "bare",
        user_defined_symbols=["<tool>"],
        remove_extra_whitespaces=kind == "unigram",
        normalization_rule_name="nmt_nfkc" if kind == "unigram" else "identity",
        allow_whitespace_only_pieces=kind != "unigram",
        hard_vocab_limit=kind != "unigram",
        num_threads=1,
        minloglevel=2,
    )
    return out.getvalue()


@cache
def byte_ranks() -> bytes:
    """Lines of base64 and rank: every byte, and a few merges."""
    strings = [bytes([b]) for b in range(256)]
    strings += [b"th", b"he", b" t", b" th", b" the", b"in", b"an", "é".encode(), "日".encode()]
    return b"".join(base64.b64encode(s) + b" %d\n" % i for i, s in enumerate(strings))


@cache
def tokenizer(kind: str) -> Tokenizer:
    """One of every kind; `KINDS` names them."""
    if kind == "tiny":
        return load_tokenizer({p.name: p for p in TINY.iterdir()}, json.loads((TINY / "config.json").read_bytes()))
    if kind == "ranks":
        return load_tokenizer({"tiny.tiktoken": byte_ranks()}, {}, encoding="o200k_harmony")
    if kind.startswith("sentencepiece_"):
        return load_tokenizer({"tokenizer.model": sentencepiece_model(kind.removeprefix("sentencepiece_"))}, {})
    return load_tokenizer({"tokenizer.json": tokenizer_json(kind)}, {})


SENTENCEPIECES = ("sentencepiece_bpe", "sentencepiece_bare", "sentencepiece_unigram")
KINDS = ("tiny", "byte_level", "byte_fallback", "metaspace", "wordpiece", "ranks", *SENTENCEPIECES)
