"""Vocabularies of the tiktoken format whose files hold byte strings and ranks only: what is known of each besides.

How text is split before merging, and which special tokens follow the ranks, is in no file: it is code of each project,
and the source is named beside each. Which encoding a file belongs to shows in how many ranks it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from plugins.facts.splits import CL100K, O200K, QWEN


@dataclass(frozen=True)
class Encoding:
    """An encoding by name.

    Attributes:
        pattern: how text is split.
        ranks: how many byte strings the vocabulary has; their ids come first.
        special: special tokens and their ids.
        bos: the token that begins a text.
        adds_bos: BOS is put before a text as a matter of course.
        ends: tokens that end a generation.
    """

    pattern: str
    ranks: int
    special: Mapping[str, int]
    bos: str | None = None
    adds_bos: bool = False
    ends: tuple[str, ...] = ()


def _harmony() -> dict[str, int]:
    """`o200k_harmony` of the packages tiktoken (openai_public.py) and openai-harmony (public_encodings.rs)."""
    named = {
        199998: "<|startoftext|>",
        199999: "<|endoftext|>",
        200002: "<|return|>",
        200003: "<|constrain|>",
        200005: "<|channel|>",
        200006: "<|start|>",
        200007: "<|end|>",
        200008: "<|message|>",
        200012: "<|call|>",
    }
    return {named.get(i, f"<|reserved_{i}|>"): i for i in range(199998, 201088)}  # to gpt-oss's vocab_size


def _llama3() -> dict[str, int]:
    """meta-llama/llama-models, models/llama3/tokenizer.py: twelve tokens, and reserved ones up to 256."""
    first = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"]
    first += ["finetune_right_pad_id", "step_id", "start_header_id", "end_header_id", "eom_id", "eot_id"]
    first += ["python_tag", "image"]
    names = first + [f"reserved_special_token_{2 + i}" for i in range(256 - len(first))]
    return {f"<|{name}|>": 128000 + i for i, name in enumerate(names)}


def _qwen() -> dict[str, int]:
    """Qwen/Qwen-7B, tokenization_qwen.py: three tokens and 205 extra ones."""
    names = ["endoftext", "im_start", "im_end", *(f"extra_{i}" for i in range(205))]
    return {f"<|{name}|>": 151643 + i for i, name in enumerate(names)}


# `ends` of o200k_harmony: generation_config.json of openai/gpt-oss-20b. <|end|> ends a message, not a generation: after
# the analysis comes the answer. Those of llama3: `Tokenizer.stop_tokens` of llama-models.
ENCODINGS: dict[str, Encoding] = {
    "o200k_harmony": Encoding(
        O200K, 199998, _harmony(), "<|startoftext|>", False, ("<|return|>", "<|endoftext|>", "<|call|>")
    ),
    "llama3": Encoding(
        CL100K, 128000, _llama3(), "<|begin_of_text|>", True, ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
    ),
    "qwen": Encoding(QWEN, 151643, _qwen(), None, False, ("<|endoftext|>", "<|im_end|>")),
}
HARMONY_VOCABULARY = "o200k_base.tiktoken"
# Where tiktoken keeps the same file in its cache: the SHA-1 of the address it comes from (tiktoken/load.py).
HARMONY_CACHED = "fb374d419588a4632f3f557e76b4b70aebbca790"
# tiktoken_ext/openai_public.py and public_encodings.rs check the same.
HARMONY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
