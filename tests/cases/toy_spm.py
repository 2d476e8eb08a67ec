"""A small SentencePiece model, trained when asked for, and the metadata that llama.cpp's conversion makes of one."""

import io
from functools import cache
from pathlib import Path
from typing import Any

TEXT = Path(__file__).parent / "text" / "moby_eval.txt"
SIZE = 700
TEXTS = (
    "The capital of France is Paris.",
    "Hello   world\n\n 12345 + 67 = don't I'LL",
    "naïve café — 日本語 🦙🦙 x\t\ty",
    " leading and trailing  ",
    "   ",
    "a▁b ▁ ▁▁ c",
    "call <tool> me <tool>\n<tools>",
    "x" * 9 + " " * 41 + "y",
    *(" ".join(TEXT.read_text().split())[at : at + 300] for at in range(0, 6000, 300)),
)


@cache
def model(prefix: bool) -> bytes:
    """The serialized model: BPE with bytes for what it does not know, `prefix` a space in front of every text."""
    from sentencepiece import SentencePieceTrainer

    out = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.read_text()[:60000].splitlines()),
        model_writer=out,
        model_type="bpe",
        vocab_size=SIZE,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        user_defined_symbols=["<tool>"] if prefix else ["▁▁", "▁▁▁", "\n", "\n\n", "<tool>"],  # Llama 2; Gemma
        control_symbols=["<turn>"],
        minloglevel=2,
    )
    return out.getvalue()


def kv(prefix: bool) -> dict[str, tuple[str, Any]]:
    """What `_create_vocab_sentencepiece` of llama.cpp writes: user-defined tokens with spaces, scores of −1000."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model(prefix))
    pieces = [(p.piece, p.score, int(p.type)) for p in proto.pieces]
    return {
        "tokenizer.ggml.model": ("string", "llama"),
        "tokenizer.ggml.pre": ("string", "default"),
        "tokenizer.ggml.tokens": ("array:string", [t.replace("▁", " ") if k == 4 else t for t, _, k in pieces]),
        "tokenizer.ggml.scores": ("array:float32", [-1000.0 if k in (2, 3, 4) else s for _, s, k in pieces]),
        "tokenizer.ggml.token_type": ("array:int32", [3 if k == 2 else k for _, _, k in pieces]),
        "tokenizer.ggml.add_space_prefix": ("bool", prefix),
        "tokenizer.ggml.bos_token_id": ("uint32", 1),
        "tokenizer.ggml.eos_token_id": ("uint32", 2),
        "tokenizer.ggml.unknown_token_id": ("uint32", 0),
        "tokenizer.ggml.add_bos_token": ("bool", True),
    }
