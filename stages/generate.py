"""Generate: a sample of text from the checkpoint as it stands at this point of the flow, or from its export."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline import meter, suggested
from pipeline.engine import Engine, gang_of, generating, weights_rows
from pipeline.errors import ConfigError
from pipeline.figures import Figure
from pipeline.read_back import opened, predicted
from pipeline.running import text_stream
from pipeline.stage import Checkpoint, Context, Exported, Gang, Prediction, Table


@dataclass(frozen=True)
class Generated:
    """What came out.

    Attributes:
        prompts, texts: in order.
        tokens: generated ids of each.
        finish: why each ended: end (a token that ends), stop (a stop string), length.
        timings: seconds of load, compile, prefill, decode, and what was done in them.
        facts: device, dtypes, bytes on the device; `read_from`: where the weights were read, the export or the source.
        figures: for comparisons.
        tables: for people.
    """

    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    finish: tuple[str, ...]
    timings: Mapping[str, float]
    facts: Mapping[str, Any]
    figures: Mapping[str, Figure]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Generate:
    """Continue `prompt`.

    Attributes:
        engine: runs the model.
        sampling: how tokens are chosen.
        prompt: a text, or several, continued in one batch.
        chat: put each into the chat template as the user's message; null: when the checkpoint has one.
        system: what the chat begins with.
    """

    engine: Engine
    sampling: Any
    prompt: str | tuple[str, ...]
    chat: bool | None = None
    system: str | None = None

    def __post_init__(self) -> None:
        if not self.prompt or not all([self.prompt] if isinstance(self.prompt, str) else self.prompt):
            raise ConfigError("prompt: an empty text cannot be continued")
        if self.system is not None and self.chat is False:
            raise ConfigError("system: a text that is no chat has no place for it; leave chat=false out")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        return gang_of(self.engine)

    def plan(self, checkpoint: Checkpoint, exported: Exported | None = None) -> Prediction:
        subject, reads = predicted(checkpoint, exported)
        usage = generating([f"{self.system or ''}{p}" for p in self._prompts], self.sampling.max_tokens)
        takes = self.engine.plan(subject, usage=usage)
        return Prediction(None, replace(takes, reads="; ".join(filter(None, (reads, takes.reads))), times=1.0))

    @property
    def _prompts(self) -> tuple[str, ...]:
        return (self.prompt,) if isinstance(self.prompt, str) else tuple(self.prompt)

    def _asked(self, prompt: str) -> Any:
        """A text, or the conversation that it is in."""
        if self.system is None:
            return prompt
        return [{"role": "system", "content": self.system}, {"role": "user", "content": prompt}]

    def run(self, ctx: Context, checkpoint: Checkpoint, exported: Exported | None = None) -> Generated:
        prompts = self._prompts
        subject = opened(checkpoint, exported)
        session = ctx.models.load(self.engine, subject)
        alone = len(prompts) == 1

        def on_text(row: int, text: str) -> None:
            text_stream.write(text if alone else f"[{row}] {text}\n")

        found = session.generate([self._asked(p) for p in prompts], self.sampling, chat=self.chat, on_text=on_text)
        text_stream.write("\n")
        t = found[0].timings
        meter.repeated(t.prefill + t.decode, 1.0)
        facts = {**session.facts, "read_from": str(subject.source)}
        prefill = f"{t.prompt_tokens} tokens in {t.prefill:.2f} s, {t.prefill_rate:.0f} tokens/s"
        decode = f"{t.new_tokens} tokens in {t.decode:.2f} s, {t.decode_rate:.1f} tokens/s"
        ended = ", ".join(dict.fromkeys(g.completion.finish for g in found))
        rows = [
            *weights_rows(facts),
            ("load, prepare, compile", f"{facts['load_s']:.2f} s, {t.prepare:.2f} s, {t.compile:.2f} s"),
            ("prefill", prefill),
            ("decode", decode),
            ("ended by", ended),
        ]
        if suggestion := suggested.said(session.generation, self.sampling):
            rows.append(("the model's makers", suggestion))
        texts = [(p, g.text, g.completion.finish) for p, g in zip(prompts, found, strict=True)]
        return Generated(
            prompts=prompts,
            texts=tuple(g.text for g in found),
            tokens=tuple(g.completion.tokens for g in found),
            finish=tuple(g.completion.finish for g in found),
            timings={
                "load": t.load, "prepare": t.prepare, "compile": t.compile, "prefill": t.prefill, "decode": t.decode,
                "prompt_tokens": t.prompt_tokens, "new_tokens": t.new_tokens, "prefill_tokens_per_s": t.prefill_rate,
                "decode_tokens_per_s": t.decode_rate,
            },
            facts=facts,
            figures={"decode": Figure(t.decode_rate, "tokens/s", ".1f", "higher")},
            tables=(
                Table("Text", ("prompt", "text", "ended by"), tuple(texts), streamed=alone),
                Table("Speed", ("", ""), tuple(rows)),
            ),
        )  # fmt: skip
