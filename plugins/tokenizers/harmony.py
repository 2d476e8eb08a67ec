"""The harmony format, in which gpt-oss talks: conversations to ids. `harmony_parse` is the way back.

A message is `<|start|>{role}<|channel|>{channel}<|message|>{content}<|end|>`. What the model thinks goes to the channel
`analysis`, calls of functions to `commentary`, the answer to `final`. Content is always taken as text: a user who
writes `<|end|>` ends nothing. Facts: docs/format.md and src/encoding.rs of github.com/openai/harmony 0.0.8, whose
package `openai-harmony` gives the same ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from pipeline.errors import ConfigError, SourceError, did_you_mean
from plugins.tokenizers.harmony_tools import Namespace, tools_section
from plugins.tokenizers.tokenizer import Tokenizer

Role = Literal["system", "developer", "user", "assistant", "tool"]
Effort = Literal["low", "medium", "high"]
START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
TOKENS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)
FUNCTIONS = "functions"


@dataclass(frozen=True)
class System:
    """What a system message says; the defaults are those gpt-oss was trained with.

    Attributes:
        identity: who the model is.
        cutoff: the date its knowledge ends.
        date: the current date, `2025-06-28`; None leaves it out.
        effort: how much to think.
        tools: built-in tools, as `browser` and `python`; functions belong to the developer message.
        channels: the channels it may use; none: not said.
        channel_required: every message must have a channel.
    """

    identity: str | None = "You are ChatGPT, a large language model trained by OpenAI."
    cutoff: str | None = "2024-06"
    date: str | None = None
    effort: Effort | None = "medium"
    tools: tuple[Namespace, ...] = ()
    channels: tuple[str, ...] = ("analysis", "commentary", "final")
    channel_required: bool = True

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in get_args(Effort):
            raise ConfigError(
                f"effort={self.effort!r}: no such effort{did_you_mean(str(self.effort), get_args(Effort))}"
            )

    def text(self, with_functions: bool) -> str:
        """`with_functions`: the conversation has functions, which are to be called on `commentary`."""
        top = [self.identity]
        top += [f"Knowledge cutoff: {self.cutoff}"] if self.cutoff is not None else []
        top += [f"Current date: {self.date}"] if self.date is not None else []
        sections = ["\n".join(t for t in top if t is not None)]
        if self.effort is not None:
            sections.append(f"Reasoning: {self.effort}")
        if self.tools:
            sections.append(tools_section(self.tools))
        if self.channels:
            line = f"# Valid channels: {', '.join(self.channels)}."
            line += " Channel must be included for every message." if self.channel_required else ""
            line += (
                f"\nCalls to these tools must go to the commentary channel: '{FUNCTIONS}'." if with_functions else ""
            )
            sections.append(line)
        return "\n\n".join(s for s in sections if s)


@dataclass(frozen=True)
class Developer:
    """What a developer message says: instructions (elsewhere called the system prompt), and functions."""

    instructions: str | None = None
    tools: tuple[Namespace, ...] = ()

    @property
    def has_functions(self) -> bool:
        return any(n.name == FUNCTIONS and n.tools for n in self.tools)

    def text(self) -> str:
        sections = ["# Instructions", self.instructions] if self.instructions is not None else []
        return "\n\n".join([*sections, *([tools_section(self.tools)] if self.tools else [])])


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: who speaks.
        content: text, or what a system or developer message is made of.
        channel: `analysis`, `commentary`, `final`; None for those who have none.
        recipient: to whom, where not to all: `functions.get_weather` in a call, `assistant` in its result.
        content_type: as the model wrote it: `<|constrain|>json`.
        name: of a tool, in its result.
    """

    role: Role
    content: str | System | Developer = ""
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise ConfigError(f"role={self.role!r}: no such role{did_you_mean(str(self.role), get_args(Role))}")
        for kind, role in ((System, "system"), (Developer, "developer")):
            if isinstance(self.content, kind) and self.role != role:
                raise ConfigError(f"{kind.__name__} is the content of a message with role={role!r}, not {self.role!r}")


@dataclass(frozen=True)
class Harmony:
    """Conversations to ids, with the ids of one tokenizer.

    Raises:
        SourceError: the tokenizer lacks one of the seven tokens of the format.
    """

    tokenizer: Tokenizer
    ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = {t: self.tokenizer.id_of(t) for t in TOKENS}
        if missing := [t for t, i in found.items() if i is None]:
            raise SourceError(f"the tokenizer is not gpt-oss's: it has no {', '.join(missing)}, which harmony needs")
        object.__setattr__(self, "ids", found)

    @property
    def stop(self) -> tuple[int, int]:
        """The ids that end a generation: <|return|> (200002) after an answer, <|call|> (200012) after a call. <|end|>
        (200007) does not: it ends a message, and after the analysis the model goes on with the next."""
        return self.ids[RETURN], self.ids[CALL]

    def render(self, messages: Sequence[Message], *, drop_analysis: bool = True) -> list[int]:
        """Ids of whole messages.

        `drop_analysis` leaves out what was thought before the first answer, once the last of the assistant's messages
        is an answer; while a tool is at work, what led to the call stays.

        Raises:
            ConfigError: a message from a tool without the tool's name.
        """
        functions = any(isinstance(m.content, Developer) and m.content.has_functions for m in messages)
        last = next((m for m in reversed(messages) if m.role == "assistant"), None)
        first = next((i for i, m in enumerate(messages) if m.channel == "final"), 0)
        answered = drop_analysis and last is not None and last.channel == "final"
        kept = [m for i, m in enumerate(messages) if not (answered and i < first and m.channel == "analysis")]
        return [i for m in kept for i in self._message(m, functions)]

    def prompt(
        self, messages: Sequence[Message], *, next_role: Role = "assistant", drop_analysis: bool = True
    ) -> list[int]:
        """Ids of a conversation, and the beginning of the next message, for the model to go on."""
        return [*self.render(messages, drop_analysis=drop_analysis), self.ids[START], *self._text(next_role)]

    def training(self, messages: Sequence[Message], *, drop_analysis: bool = True) -> list[int]:
        """Ids to learn from: an answer at the end ends with <|return|>, as the model is to end it."""
        ids = self.render(messages, drop_analysis=drop_analysis)
        if messages and messages[-1].role == "assistant" and messages[-1].channel == "final":
            ids[-1] = self.ids[RETURN]
        return ids

    def _message(self, message: Message, functions: bool) -> list[int]:
        # Texts are encoded part by part, as the package does: joined, they could become other tokens.
        ids = [self.ids[START]]
        if message.role == "tool":
            if message.name is None:
                raise ConfigError("a message with role='tool' needs the tool's name, such as 'functions.get_weather'")
            ids += self._text(message.name)
        else:
            ids += self._text(message.role)
            ids += self._text(f":{message.name}") if message.name is not None else []
        if message.recipient not in (None, "all"):
            ids += self._text(f" to={message.recipient}")
        if message.channel is not None:
            ids += [self.ids[CHANNEL], *self._text(message.channel)]
        if message.content_type is not None:
            if message.content_type.startswith(CONSTRAIN):
                ids += [*self._text(" "), self.ids[CONSTRAIN]]
                ids += self._text(message.content_type.removeprefix(CONSTRAIN))
            else:
                ids += self._text(f" {message.content_type}")
        content = message.content
        text = (
            content
            if isinstance(content, str)
            else (content.text(functions) if isinstance(content, System) else content.text())
        )
        call = message.role == "assistant" and message.recipient is not None
        return [*ids, self.ids[MESSAGE], *self._text(text), self.ids[CALL if call else END]]

    def _text(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, plain=True)
