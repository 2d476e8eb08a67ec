"""A conversation with a loaded model: what was said stays in its cache, and a turn puts only what is new through it.

The whole conversation is written by the chat template at every turn, which may leave out or change what it wrote before
(thinking, for one). The cache is kept as far as the tokens are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.engine import Reply
from pipeline.errors import ConfigError
from plugins.engine.generate import generate
from plugins.engine.kept import Kept
from plugins.engine.options import Sampling
from plugins.tokenizers.channels import ChannelText

if TYPE_CHECKING:
    from plugins.engine.session import Model

ANSWER, PLAIN = "final", ""  # labels of text: an answer among channels; there are none
LEAST_FREE = 8  # the part of what the model reads that is to be left for an answer


class Conversation:
    """A `pipeline.engine.Conversation`."""

    def __init__(self, model: "Model", *, chat: bool | None = None):
        """
        Args:
            chat: write it with the chat template; False: what was said, one after another; None: if there is one.

        Raises:
            SourceError: no tokenizer, or no chat template where one is asked for.
        """
        self._model, self._kept = model, Kept()
        self.chat = model.tokenizer.has_chat_template if chat is None else chat
        self.channels = self.chat and model.in_harmony

    @property
    def room(self) -> int | None:
        """See `pipeline.engine.Conversation`."""
        return self._model.room

    def reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        on_text: Callable[[str, str], None],
        wanted: Callable[[], bool] = lambda: True,
        **variables: Any,
    ) -> Reply:
        """See `pipeline.engine.Conversation`."""
        tokenizer = self._model.tokenizer
        ids, left_out = self._fitting(messages, variables)
        most = sampling.max_tokens if self.room is None else min(sampling.max_tokens, self.room - len(ids))
        streams = [ChannelText(tokenizer, marks=False)] if self.channels else None

        def shown(row: int, text: str) -> None:
            on_text(streams[0].label if streams else PLAIN, text)

        [done], timings = generate(
            self._model.runtime, [ids], replace(sampling, max_tokens=most), ends=tokenizer.eos, tokenizer=tokenizer,
            streams=streams, on_text=shown, kept=self._kept, wanted=wanted,
        )  # fmt: skip
        thought = None if streams is None else _thoughts(streams[0])
        said = done.text if streams is None else streams[0].answer or ("" if thought else done.text)
        finish = "room" if done.finish == "length" and most < sampling.max_tokens else done.finish
        return Reply(said, finish, timings, len(ids), thought, left_out)

    def _ids(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> list[int]:
        if self.chat:
            return self._model.tokenizer.chat([_as_kept(m) for m in messages], **variables)
        return self._model.tokenizer.encode("".join(str(m["content"]) for m in messages), special=True)

    def _fitting(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> tuple[list[int], int]:
        """The tokens of `messages`, and how many of these had to be left out: where there is no room for them, or
        hardly any for an answer, the oldest go until half of it is free. llama.cpp does so too; less, and the next turn
        would have to read all of them again.

        Raises:
            ConfigError: the last message alone is too long.
        """
        ids = self._ids(messages, variables)
        if self.room is None or len(ids) <= self.room - self.room // LEAST_FREE:
            return ids, 0
        first = 1 if messages[0]["role"] in ("system", "developer") else 0
        begun = first
        turns = [i for i in range(first + 1, len(messages)) if messages[i]["role"] == "user"]
        for begun in turns:
            ids = self._ids([*messages[:first], *messages[begun:]], variables)
            if len(ids) <= self.room // 2:
                break
        if len(ids) >= self.room:
            raise ConfigError(
                f"the message has {len(ids):,} tokens, and the model reads {self.room:,}, its answer included"
            )
        return ids, begun - first


def _as_kept(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was thought is dropped once there is an answer, as the format's guide has it (docs/format.md of
    openai/harmony: "drop any previous CoT content"); the package leaves in what came after the first answer."""
    return {k: v for k, v in message.items() if k != "thinking"} if message.get("content") else message


def _thoughts(stream: ChannelText) -> str | None:
    """What was written in other channels than the answer's."""
    return "\n".join(m.content for m in stream.messages if m.channel != ANSWER and isinstance(m.content, str)) or None
