"""From the ids that gpt-oss generates back to messages, as they come: which text belongs to which channel.

Facts: `StreamableParser` in src/encoding.rs of github.com/openai/harmony 0.0.8.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import get_args

from pipeline.errors import StageError
from plugins.tokenizers.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START, Harmony, Message, Role
from plugins.tokenizers.tokenizer import Stream


@dataclass(frozen=True, slots=True)
class Delta:
    """What one id added.

    Attributes:
        text: whole characters of the message's content; often none.
        message: the message it belongs to, without content; None between messages and within a header.
        done: the id ended the message, which is the last of `Parser.messages` now.
    """

    text: str = ""
    message: Message | None = None
    done: bool = False

    @property
    def channel(self) -> str | None:
        return None if self.message is None else self.message.channel


class Parser:
    """Push ids, get text by channel; `messages` are those that are complete.

    A generation begins within a header, after `<|start|>assistant` of the prompt; so `role` is its role. None: the ids
    begin with <|start|>.
    """

    def __init__(self, harmony: Harmony, role: Role | None = "assistant", *, strict: bool = True):
        """`strict=False` takes a message that ends before its <|message|> for content without a header."""
        self._harmony, self._strict, self._role = harmony, strict, role
        ids = harmony.ids
        self._start, self._message = ids[START], ids[MESSAGE]
        self._stops = {ids[END], ids[RETURN], ids[CALL]}
        self._header: list[int] | None = None if role is None else []
        self._current: Message | None = None
        self._stream: Stream | None = None
        self._parts: list[str] = []
        self.messages: list[Message] = []

    @property
    def current(self) -> Message | None:
        """The message that is being written, with its content so far."""
        return None if self._current is None else replace(self._current, content="".join(self._parts))

    def push(self, token: int) -> Delta:
        """
        Raises:
            StageError: an id where <|start|> has to be, or a header that cannot be read.
        """
        if self._current is not None:
            return self._content(token)
        if self._header is None:
            if token != self._start:
                raise StageError(f"harmony: {self._name(token)} where {START} is expected")
            self._header = []
        elif token == self._message:
            self._current = self._read(self._decoded())
            self._stream, self._parts = self._harmony.tokenizer.stream(skip_special=False), []
            self._header, self._role = None, None
            return Delta(message=self._current)
        elif token in self._stops and not self._strict:
            return self._headless()
        else:
            self._header.append(token)
        return Delta()

    def end(self) -> Delta:
        """The generation is over; a message that was not finished is taken as it is.

        Raises:
            StageError: it ended within a header.
        """
        if self._current is not None:
            return self._close()
        if self._header is not None:
            raise StageError(f"harmony: the generation ended within a message's header: {self._decoded()!r}")
        return Delta()

    def parse(self, ids: Iterable[int]) -> list[Message]:
        """All messages of a whole generation."""
        for token in ids:
            self.push(token)
        self.end()
        return self.messages

    def _content(self, token: int) -> Delta:
        assert self._stream is not None
        if token in self._stops:
            return self._close()
        text = self._stream.push(token)
        self._parts.append(text)
        return Delta(text, self._current)

    def _close(self) -> Delta:
        assert self._stream is not None
        assert self._current is not None
        rest, message = self._stream.end(), self._current
        self.messages.append(replace(message, content="".join([*self._parts, rest])))
        self._current = self._stream = None
        return Delta(rest, message, done=True)

    def _headless(self) -> Delta:
        """A message that ended before its content began: what was taken for a header is its content."""
        header, role = self._decoded(), self._role
        self._header, self._role = None, None
        if role is None or not header:
            return Delta()
        channel, rest = _channel(header)
        words = rest.replace(CONSTRAIN, f" {CONSTRAIN}").split()
        text = " ".join(words[1:] if words[:1] == [role] else words)
        message = Message(role, channel=channel)
        self.messages.append(replace(message, content=text))
        return Delta(text, message, done=True)

    def _read(self, header: str) -> Message:
        """The header of a message: `assistant to=functions.f<|channel|>commentary <|constrain|>json`, say.

        The recipient may stand before the channel or after it.
        """
        channel, rest = _channel(header)
        words = rest.replace(CONSTRAIN, f" {CONSTRAIN}").split()
        role, name = self._role, None
        if role is None:
            if not words:
                raise StageError(f"harmony: a message without a role, its header is {header!r}")
            given = next((r for r in get_args(Role) if r == words[0]), None)
            if given is not None:
                role, name = given, given if given == "tool" else None
            elif len(words) > 1 or words[0].startswith("to="):
                role, name = "tool", words.pop(0)
            else:
                raise StageError(
                    f"harmony: no such role {words[0]!r} (allowed: {', '.join(get_args(Role))}, or a tool)"
                )
        if words[:1] == [role]:
            words.pop(0)
        recipient, content_type = None, None
        if len(words) == 1:
            recipient = words.pop().removeprefix("to=")
        elif words:
            last = words.pop()
            if last.startswith("to="):
                recipient = last.removeprefix("to=")
            else:
                content_type, recipient = last, words.pop().removeprefix("to=")
        if words:
            raise StageError(f"harmony: {' '.join(words)!r} does not belong in a message's header, which is {header!r}")
        return Message(role, "", channel, recipient, content_type, name)

    def _decoded(self) -> str:
        return self._harmony.tokenizer.decode(self._header or [], skip_special=False)

    def _name(self, token: int) -> str:
        return f"id {token} ({self._harmony.tokenizer.decode([token], skip_special=False)!r})"


def _channel(header: str) -> tuple[str | None, str]:
    """The channel of a header, and the header without it."""
    before, marker, after = header.partition(CHANNEL)
    if not marker:
        return None, header.strip()
    end = next((i for i, c in enumerate(after) if c.isspace() or c == "<"), len(after))
    if end == 0:
        raise StageError(f"harmony: {CHANNEL} without a channel in the header {header!r}")
    return after[:end], (before + after[end:]).strip()
