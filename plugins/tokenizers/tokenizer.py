"""What the rest of the house sees of a tokenizer, whatever library and file format are behind it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Stream(Protocol):
    """Text from ids as they come: what all `push`es and `end` return, joined, is what `decode` gives for all ids."""

    def push(self, token: int) -> str:
        """The text that is certain now: whole characters only, often none."""
        ...

    def end(self) -> str:
        """What was still held back. A character that was never finished is U+FFFD. Nothing may be pushed after."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back.

    Ids that no token has (embedding matrices are often padded) decode to nothing. Decoding never "cleans up" spaces.
    """

    @property
    def identity(self) -> str:
        """The same for tokenizers that make the same ids of the same text and chat, so that what was made of a text
        once can be found again; another when anything that they are read from is."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included; the model's vocab_size may be larger."""
        ...

    @property
    def bos(self) -> int | None:
        """The id that begins a text; None where the model has none. Whether it is added: `encode(…, special=True)`."""
        ...

    @property
    def eos(self) -> tuple[int, ...]:
        """Every id that ends a generation, without repetition: those of generation_config.json first, then
        config.json's, then the tokenizer's own."""
        ...

    @property
    def special(self) -> frozenset[int]:
        """The ids that `skip_special` leaves out: those that structure text, as BOS does."""
        ...

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str, *, special: bool = False, plain: bool = False) -> list[int]:
        """Ids of `text`.

        Args:
            text: what to encode.
            special: add what the tokenizer puts around a text, BOS as a rule (transformers' `add_special_tokens`).
            plain: take all of `text` as text. Otherwise the spelling of a special token in it becomes that token, as in
                transformers: a rendered chat needs that, text from strangers does not.
        """
        ...

    def encode_batch(self, texts: Sequence[str], *, special: bool = False, plain: bool = False) -> list[list[int]]:
        """What `encode` gives for each; on several threads where the library can."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        ...

    def stream(self, *, skip_special: bool = True) -> Stream:
        """A decoder for ids that come one by one."""
        ...

    def id_of(self, token: str) -> int | None:
        """The id of the token that is spelled `token` in the vocabulary; None where there is no such token."""
        ...

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Ids of a conversation, as the chat template has it.

        Args:
            messages: mappings with `role` and `content`, and what else the template knows.
            add_generation_prompt: end with the beginning of the assistant's answer.
            variables: for the template: `tools`, `documents`, `enable_thinking`, …

        Raises:
            SourceError: the checkpoint has no chat template, or one with a mistake; file and line are named.
            ConfigError: the template refuses these messages, and says why.
        """
        ...
