"""A loaded model as people use it: text in, text out."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import suggested
from pipeline.engine import Against, Score, Windows
from pipeline.errors import ConfigError, did_you_mean
from pipeline.running import text_stream
from pipeline.scored import positions
from pipeline.stage import Checkpoint
from pipeline.tables import table
from pipeline.units import show_bytes
from plugins.engine.conversation import Conversation
from plugins.engine.engine import Engine
from plugins.engine.generate import Completion, Timings, generate
from plugins.engine.load import fill
from plugins.engine.options import Sampling
from plugins.engine.runtime import Runtime
from plugins.engine.score import keep_head, score
from plugins.models.common.decoder import Decoder
from plugins.tokenizers.channels import ChannelText
from plugins.tokenizers.chat_harmony import HarmonyChat
from plugins.tokenizers.companions import Companions
from plugins.tokenizers.harmony import Message
from plugins.tokenizers.tokenizer import Tokenizer

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]


@dataclass(frozen=True)
class Generated:
    """What `Model.generate` gives for one prompt; printed, it is its text.

    Attributes:
        text: what the model wrote, without special tokens; of a chat with gpt-oss the answer, when there is one.
        completion: its tokens, and why it ended.
        timings: of the whole batch.
        messages: of a chat with gpt-oss: all that it wrote, each with its channel.
    """

    text: str
    completion: Completion = field(repr=False)
    timings: Timings = field(repr=False)
    messages: tuple[Message, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.text


class Model:
    """A `pipeline.engine.Session`.

    Attributes:
        runtime: the model on its device.
    """

    def __init__(
        self, runtime: Runtime, checkpoint: Checkpoint, engine: Engine, planned: int, ignored: Mapping[str, str]
    ):
        """
        Args:
            planned: bytes that the weights should take on the device.
            ignored: tensors of the checkpoint that the model does not read, with the reasons.
        """
        self.runtime = runtime
        self._checkpoint, self._engine, self._planned, self._ignored = checkpoint, engine, planned, ignored

    def __repr__(self) -> str:
        return f"model: {', '.join(f'{name} {value}' for name, value in self._card)}: {self._checkpoint.source}"

    def _repr_html_(self) -> str:
        rows = [*self._card, ("read from", str(self._checkpoint.source))]
        return table("Model", ("", ""), rows).html

    @property
    def _card(self) -> list[tuple[str, str]]:
        """What it is, for people."""
        facts, specs = self.facts, self._checkpoint.store.specs.values()
        packed = sorted({s.encoding for s in specs if s.scheme is not None})
        return [
            ("type", str(self.runtime.config.get("model_type", "unknown"))),
            ("values", f"{sum(s.size for s in specs):,}"),
            ("on the device", f"{show_bytes(facts['device_nbytes'])} ({facts['device']})"),
            ("packed as", ", ".join(packed) or "nothing"),
            ("activations", str(facts["activations"])),
        ]

    @cached_property
    def generation(self) -> Mapping[str, Any]:
        """See `pipeline.engine.Session.generation`."""
        return Companions(self._checkpoint.files, self._checkpoint.origin).json(suggested.FILE)

    @property
    def suggested(self) -> Mapping[str, Any]:
        """Options of `generate` that draw tokens as the makers of the model would, by its generation_config.json."""
        return suggested.options(self.generation)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises SourceError when the checkpoint has none; prompts of token ids need none."""
        found: Tokenizer = self._engine.tokenizer.load(self._checkpoint)
        return found

    @property
    def held(self) -> Checkpoint:
        """The checkpoint with the weights as the devices hold them, for whatever takes one: an export of it fetches box
        by box, and reads no file of weights. Double quantization is resolved, and plain weights are of `weights_dtype`.
        """
        store = self.runtime.tensors(self._checkpoint.store.specs)
        return replace(self._checkpoint, store=store, stored={})

    @property
    def facts(self) -> Mapping[str, Any]:
        r = self.runtime
        device = getattr(r.device, "device_kind", r.device.platform)
        return {
            "device": device if device == r.device.platform else f"{r.device.platform} ({device})",
            "devices": 1 if r.spread is None else r.spread.mesh.size,
            "device_nbytes": r.device_nbytes, "planned_nbytes": self._planned, "ignored": dict(self._ignored),
            "activations": r.dtype, "kv_cache": r.cache_dtype, "load_s": r.load_s,
        }  # fmt: skip

    def score(
        self, ids: Sequence[int], windows: Windows, *, keep: Path | None = None, against: Against | None = None
    ) -> Score:
        """See `pipeline.engine.Session.score`."""
        return score(self.runtime, ids, windows, self.tokenizer.bos if windows.bos else None, keep, against)

    def keep_head(self, path: Path | None) -> str:
        """See `pipeline.engine.Session.keep_head`."""
        return keep_head(self.runtime, path)

    def taps(self, ids: Sequence[int]) -> dict[str, Any]:
        """See `pipeline.engine.Session.taps`."""
        tokens = np.asarray([ids], np.int32)
        found = self.runtime.taps(tokens, np.arange(len(ids), dtype=np.int32)[None])
        layers = sorted((n for n in found if n.startswith("layers.")), key=lambda n: int(n.rpartition(".")[2]))
        return {name: np.asarray(found[name][0], np.float32) for name in ("embed", *layers, "norm", "logits")}

    @contextmanager
    def replaced(self, tensors: Collection[str], checkpoint: Checkpoint) -> Iterator[None]:
        """With `tensors` read from `checkpoint`, unpacked where this model holds them plain."""

        def change(model: Decoder) -> None:
            e = self._engine
            how: Any = {"cast": e.cast, "unpack": e.unpack, "only": tensors, "turns": True}
            fill(model, checkpoint, self.runtime.where, under=e.input_scales(checkpoint), **how)

        with self.runtime.changed(change):
            yield

    def generate(
        self,
        prompt: Any,
        sampling: Sampling | None = None,
        *,
        chat: bool | None = None,
        on_text: Callable[[int, str], None] = lambda row, text: None,
        **options: Any,
    ) -> Any:
        """Continue a prompt, or several in one batch.

        Args:
            prompt: text; or a conversation, a list of `{"role": …, "content": …}`; or token ids; or a list of any.
            sampling: how tokens are chosen; greedy by default.
            chat: put a text into the chat template as the user's message; None: when there is a template.
            on_text: called with (prompt number, text) as text comes.
            options: fields of `Sampling`, instead of or beside `sampling`: `max_tokens=200, temperature=0.8`.

        Returns:
            A `Generated`, or a list of them for a list of prompts.

        Raises:
            ConfigError: a prompt or option that makes no sense, or more tokens than the model knows positions.
            SourceError: no tokenizer, or no chat template where one is asked for.
        """
        unknown = [o for o in options if o not in Sampling.__dataclass_fields__]
        if unknown:
            raise ConfigError(
                f"generate has no option {unknown[0]!r}{did_you_mean(unknown[0], Sampling.__dataclass_fields__)}"
            )
        chosen = replace(sampling or Sampling(), **options)
        many = _is_many(prompt)
        ids = [self.encode(p, chat=chat) for p in (prompt if many else [prompt])]
        if self.room is not None and (longest := max(map(len, ids), default=0)) > self.room:
            text = f"{longest:,} tokens, and config.json says that the model knows {self.room:,} positions"
            raise ConfigError(f"prompt: {text}")
        needs_text = not all(_is_ids(p) for p in (prompt if many else [prompt])) or chosen.stop
        tokenizer = self.tokenizer if needs_text else self.tokenizer_if_any
        ends = tokenizer.eos if tokenizer else self._engine.tokenizer.ends(self._checkpoint)
        channels = [ChannelText(self.tokenizer) for _ in ids] if self._in_channels(prompt, chat, many=many) else None
        done, timings = generate(
            self.runtime, ids, chosen, ends=ends, tokenizer=tokenizer, streams=channels, on_text=on_text
        )
        reached = max(len(i) + len(c.tokens) for i, c in zip(ids, done, strict=True))
        if self.room is not None and (past := reached - self.room) > 0:
            text = f"the last {past:,} tokens are past the {self.room:,} positions that the model knows"
            text_stream.say(f"\n{text}, by config.json")
        if channels is None:
            found = [Generated(c.text, c, timings) for c in done]
        else:
            pairs = zip(done, channels, strict=True)
            found = [Generated(s.answer or c.text, c, timings, s.messages) for c, s in pairs]
        return found if many else found[0]

    def _in_channels(self, prompt: Any, chat: bool | None, *, many: bool) -> bool:
        """Whether the answers will be in harmony."""
        talks = any(not _is_ids(p) for p in (prompt if many else [prompt]))
        return chat is not False and talks and self.in_harmony

    @property
    def room(self) -> int | None:
        """Positions that the model knows, by config.json; None: it does not say."""
        return positions(self.runtime.config)

    @property
    def in_harmony(self) -> bool:
        """Whether chats are: with a gpt-oss whose vocabulary has the tokens of the format."""
        if self.runtime.config.get("model_type") != "gpt_oss":
            return False
        return self.tokenizer.has_chat_template and HarmonyChat.fits(self.tokenizer.id_of)

    def conversation(self, *, chat: bool | None = None) -> Conversation:
        """See `pipeline.engine.Session.conversation`."""
        return Conversation(self, chat=chat)

    def encode(self, prompt: Prompt, *, chat: bool | None = None) -> list[int]:
        """Token ids of a prompt as `generate` takes it."""
        if _is_ids(prompt):
            return [int(t) for t in prompt]  # type: ignore[arg-type]
        if isinstance(prompt, str):
            if chat or (chat is None and self.tokenizer.has_chat_template):
                return self.tokenizer.chat([{"role": "user", "content": prompt}])
            return self.tokenizer.encode(prompt, special=True)
        return self.tokenizer.chat(list(prompt))  # type: ignore[arg-type]

    @property
    def tokenizer_if_any(self) -> Tokenizer | None:
        """See `pipeline.engine.Session.tokenizer_if_any`."""
        return self.tokenizer if self._engine.tokenizer.exists(self._checkpoint) else None


def _is_ids(prompt: Any) -> bool:
    return not isinstance(prompt, str) and all(hasattr(t, "__index__") for t in prompt)


def _is_many(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return False
    if not isinstance(prompt, Sequence) and not hasattr(prompt, "__iter__"):
        raise ConfigError(f"a prompt is a text, a list of messages, token ids, or a list of those, not {prompt!r}")
    return not _is_ids(prompt) and not any(isinstance(m, Mapping) for m in prompt)
