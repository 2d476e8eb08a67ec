"""The tokenizer that everybody sees: a vocabulary of some kind, and what all kinds have in common around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from plugins.tokenizers.tokenizer import Stream, Tokenizer


class Backend(Protocol):
    """A vocabulary and the library that runs it. `Tokenizer` says what each of these means."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special(self) -> frozenset[int]: ...

    @property
    def bos(self) -> int | None:
        """The id that begins a text, as far as the vocabulary itself says."""
        ...

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a generation, as far as the vocabulary itself says."""
        ...

    def encode_batch(self, texts: Sequence[str], special: bool, plain: bool) -> list[list[int]]: ...

    def decode(self, ids: Sequence[int], skip_special: bool) -> str: ...

    def stream(self, skip_special: bool) -> Stream: ...

    def id_of(self, token: str) -> int | None: ...


class Chat(Protocol):
    """How a conversation becomes ids."""

    @property
    def exists(self) -> bool: ...

    def ids(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[int]: ...


@dataclass(frozen=True)
class Loaded:
    """See `tokenizer.Tokenizer`: this is one."""

    backend: Backend
    bos: int | None
    eos: tuple[int, ...]
    chats: Chat
    identity: str

    @property
    def vocab_size(self) -> int:
        return self.backend.vocab_size

    @property
    def special(self) -> frozenset[int]:
        return self.backend.special

    @property
    def has_chat_template(self) -> bool:
        return self.chats.exists

    def encode(self, text: str, *, special: bool = False, plain: bool = False) -> list[int]:
        return self.backend.encode_batch([text], special, plain)[0]

    def encode_batch(self, texts: Sequence[str], *, special: bool = False, plain: bool = False) -> list[list[int]]:
        return self.backend.encode_batch(texts, special, plain)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self.backend.decode(ids, skip_special)

    def stream(self, *, skip_special: bool = True) -> Stream:
        return self.backend.stream(skip_special)

    def id_of(self, token: str) -> int | None:
        return self.backend.id_of(token)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        return self.chats.ids(self, messages, add_generation_prompt, variables)
