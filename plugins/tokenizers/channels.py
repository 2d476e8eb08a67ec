"""What gpt-oss writes in harmony, as people read it: a stream that marks channels, and the messages it was made of.

A generation is a sequence of messages, each in a channel: `analysis` (thinking), `commentary` (calls of tools), `final`
(the answer). Streamed, every message but an answer that stands alone begins with its channel in brackets.
"""

from pipeline.errors import StageError
from plugins.tokenizers.harmony import Harmony, Message
from plugins.tokenizers.harmony_parse import Delta, Parser
from plugins.tokenizers.tokenizer import Stream, Tokenizer


class ChannelText:
    """A `plugins.tokenizers.tokenizer.Stream` over a `Parser`.

    Attributes:
        label: of the message that the last text belongs to: its channel, and who a call is for; `malformed` once
            something broke the format.
    """

    def __init__(self, tokenizer: Tokenizer, *, marks: bool = True):
        """
        Args:
            marks: put the channel before what is said in it.
        """
        self._marks, self.label = marks, ""
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
            self._plain, self.label = self._tokenizer.stream(skip_special=False), "malformed"
            return f"{self._mark()}{self._plain.push(token)}"

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
        self.label = " ".join(filter(None, (delta.channel, delta.message.recipient))) or "message"
        return self._mark() + delta.text

    def _mark(self) -> str:
        """What stands before the text of a message that begins, if anything does."""
        self._shown += 1
        if not self._marks or (self._shown == 1 and self.label == "final"):
            return ""
        return f"{'' if self._shown == 1 else chr(10)}[{self.label}] "

    @property
    def messages(self) -> tuple[Message, ...]:
        """Those that are complete, in order."""
        return tuple(self._parser.messages)

    @property
    def answer(self) -> str | None:
        """The content of the last message in the channel `final`; None when there was none."""
        found = [m.content for m in self._parser.messages if m.channel == "final" and isinstance(m.content, str)]
        return found[-1] if found else None
