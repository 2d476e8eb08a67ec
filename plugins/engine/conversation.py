"""A conversation with a loaded model: what was said stays in its cache, and a turn puts only what is new through it.

The whole conversation is written by the chat template at every turn, which may leave out or change what it wrote before
(thinking, for one). The cache is kept as far as the tokens are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.engine import Reply
from pipeline.errors import ConfigError
from plugins.engine.generate import Kept, generate
from plugins.engine.options import Sampling
from plugins.tokenizers.channels import ChannelText

if TYPE_CHECKING:
    from plugins.engine.session import Model

ANSWER, PLAIN = "final", ""  # labels of text: an answer among channels; there are none


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
        found = self._model.runtime.config.get("max_position_embeddings")
        return found if isinstance(found, int) else None

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
        if self.chat:
            ids = tokenizer.chat(messages, **variables)
        else:
            ids = tokenizer.encode("".join(str(m["content"]) for m in messages), special=True)
        if self.room is not None:
            if len(ids) >= self.room:
                raise ConfigError(f"the conversation has {len(ids):,} tokens, and the model reads {self.room:,}")
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, self.room - len(ids)))
        streams = [ChannelText(tokenizer, marks=False)] if self.channels else None

        def shown(row: int, text: str) -> None:
            on_text(streams[0].label if streams else PLAIN, text)

        [done], timings = generate(
            self._model.runtime, [ids], sampling, ends=tokenizer.eos, tokenizer=tokenizer, streams=streams,
            on_text=shown, kept=self._kept, wanted=wanted,
        )  # fmt: skip
        said = done.text if streams is None else streams[0].answer or done.text
        thought = None if streams is None else _thoughts(streams[0])
        return Reply(said, done.finish, timings, len(ids), thought)


def _thoughts(stream: ChannelText) -> str | None:
    """What was written in other channels than the answer's."""
    return "\n".join(m.content for m in stream.messages if m.channel != ANSWER and isinstance(m.content, str)) or None
