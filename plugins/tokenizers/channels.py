"""What gpt-oss writes in harmony, as people read it: a stream that marks channels, and the messages it was made of.

A generation is a sequence of messages, each in a channel: `analysis` (thinking), `commentary` (calls of tools), `final`
(the answer). Streamed, every message but an answer that stands alone begins with its channel in brackets.
"""

from pipeline.errors import StageError
from plugins.tokenizers.harmony import Harmony, Message
from plugins.tokenizers.harmony_parse import Delta, Parser
from plugins.tokenizers.tokenizer import Stream, Tokenizer


class ChannelText:
    """A `plugins.tokenizers.tokenizer.Stream` over a `Parser`."""

    def __init__(self, tokenizer: Tokenizer):
        self._parser = Parser(Harmony(tokenizer), strict=False)
        self._shown = 0
        self._tokenizer = tokenizer
        self._message: Message | None = None
        self._plain: Stream | None = None

    def push(self, token: int) -> str:
        """What breaks the format is shown as it is, from there on, under the label `malformed`."""
        if self._plain is not None:
            return self._plain.push(token)
        try:
            return self._text(self._parser.push(token))
        except StageError:
            self._plain = self._tokenizer.stream(skip_special=False)
            return f"{chr(10) if self._shown else ''}[malformed] {self._plain.push(token)}"

    def end(self) -> str:
        """A generation that was cut off within a header has nothing more to show."""
        if self._plain is not None:
            return self._plain.end()
        try:
            return self._text(self._parser.end())
        except StageError:
            return ""

    def _text(self, delta: Delta) -> str:
        if delta.message is None or delta.message is self._message:
            return delta.text
        self._message = delta.message
        self._shown += 1
        label = " ".join(filter(None, (delta.channel, delta.message.recipient)))
        first = self._shown == 1
        mark = "" if first and label == "final" else f"{'' if first else chr(10)}[{label or 'message'}] "
        return mark + delta.text

    @property
    def messages(self) -> tuple[Message, ...]:
        """Those that are complete, in order."""
        return tuple(self._parser.messages)

    @property
    def answer(self) -> str | None:
        """The content of the last message in the channel `final`; None when there was none."""
        found = [m.content for m in self._parser.messages if m.channel == "final" and isinstance(m.content, str)]
        return found[-1] if found else None
