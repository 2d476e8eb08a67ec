"""Which tokens end a generation: by a GGUF file, as llama.cpp takes it, and what a file says of those of a checkpoint.

A checkpoint has a list of ids. A file has one (`eos_token_id`), two more that may be said (`eot_token_id`, the end of a
turn, and `eom_token_id`, the end of a message), and llama.cpp knows others by how they are spelled. All of it is
`llama_vocab::impl::load` in llama-vocab.cpp.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plugins.formats.gguf.sentencepiece import CONTROL

KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
TURNS = frozenset(
    ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]")
)
MESSAGE = "<|eom_id|>"
SPELLED = TURNS | {
    MESSAGE, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<|endoftext|>", "</s>", "[EOS]", "<|end_of_text|>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
}  # fmt: skip
# Of code with its repository: what pads, and what begins another repository or file.
OF_CODE = (
    ("fim_pad_token_id", ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    ("fim_rep_token_id", ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    ("fim_sep_token_id", ("<|file_sep|>",)),
)
# In harmony <|end|> ends a message, and the model goes on with the next; so it does where these two are.
GOES_ON = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})


def read(get: Mapping[str, Any], kinds: Sequence[int], template: str) -> tuple[int, ...]:
    """The ids at which llama.cpp ends, the file's EOS first.

    Of what is spelled so, only control tokens and what the chat template writes: llama.cpp ends at every `</s>`, which
    Gemma has for a page of HTML.

    Args:
        get: metadata without `tokenizer.ggml.`.
        kinds: of all tokens.
        template: the chat template; empty: there is none.
    """
    tokens = get["tokens"]
    named = enumerate(zip(tokens, kinds, strict=False))
    by_text = {t: i for i, (t, kind) in named if kind == CONTROL or (t in SPELLED and t in template)}
    spelled = _spelled(by_text)
    said = [get.get(key) for key in KEYS]
    said += [get.get(key, next((by_text[t] for t in texts if t in by_text), None)) for key, texts in OF_CODE]
    found = (*said, *sorted(by_text[t] for t in spelled & by_text.keys()))
    known = [i for i in found if type(i) is int and 0 <= i < len(tokens)]
    return tuple(i for i in dict.fromkeys(known) if tokens[i] not in SPELLED - spelled)


def written(ends: Sequence[int], eos: int | None, tokens: Sequence[str]) -> dict[str, int]:
    """What a file says beside its EOS so that llama.cpp ends at `ends`, as far as there is place for it.

    Args:
        eos: what the file says as `eos_token_id`.
        tokens: of the whole vocabulary.
    """
    spelled = _spelled(tokens)
    more = [i for i in dict.fromkeys(ends) if i != eos and i < len(tokens)]
    silent = [i for i in more if tokens[i] not in spelled]  # which llama.cpp would not know by themselves
    places: dict[str, int] = {}
    for key, texts in (("eot_token_id", TURNS), ("eom_token_id", {MESSAGE})):
        if found := [*silent, *(i for i in more if tokens[i] in texts & spelled)]:
            places[key], silent = found[0], silent[1:]
    return places


def _spelled(tokens: Iterable[str]) -> frozenset[str]:
    there = set(tokens)
    return SPELLED - {"<|end|>"} if any(both <= there for both in GOES_ON) else SPELLED
