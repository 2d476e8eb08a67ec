"""Parity: does our model compute what another implementation does, from the same checkpoint and prompt?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline import texts
from pipeline.engine import Engine, gang_of, weights_rows
from pipeline.errors import ConfigError, PlanError, Problem
from pipeline.figures import Figure
from pipeline.running import member, text_stream
from pipeline.scored import positions
from pipeline.stage import Checkpoint, Context, Exported, Footprint, Gang, Prediction, Table

LEAST = 2  # tokens


class Reference(Protocol):
    """Another implementation: a plugin node."""

    def taps(self, folder: Path, ids: Sequence[int]) -> Mapping[str, Any]:
        """As `pipeline.engine.Session.taps`, of the checkpoint in `folder`."""
        ...


@dataclass(frozen=True)
class Compared:
    """How far both are apart.

    Attributes:
        same: every layer within `tolerance`.
        summary: one line that says so, and names the first layer that is not.
        first: that layer, or None.
        layers: name → max_abs (the largest difference), scale (the largest value), relative (their ratio).
        kl: mean KL divergence of our next-token distributions from the reference's, nats; max over positions beside it.
        top1: share of positions at which both find the same token likeliest.
        tokens: of the prompt.
        prompt: name of the text, or that there was none.
        facts: device, dtypes, bytes on the device, of our model.
        tables: for people.
    """

    same: bool
    summary: str
    first: str | None
    layers: Mapping[str, Mapping[str, float]]
    kl: float
    kl_max: float
    top1: float
    tokens: int
    prompt: str
    facts: Mapping[str, Any]
    tables: tuple[Table, ...]

    @property
    def exit_code(self) -> int:
        return 0 if self.same else 7


@dataclass(frozen=True)
class Parity:
    """Compare hidden states after every layer, and logits, with those of `reference` on the exported checkpoint.

    Attributes:
        engine: runs our model, in fp32.
        reference: runs theirs.
        text: a file, UTF-8; a checkpoint without a tokenizer gets random tokens instead.
        tokens: of it, from its beginning.
        tolerance: the largest difference allowed, as a share of the largest value of a layer.
    """

    engine: Engine
    reference: Reference
    text: str
    tokens: int = 256
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        texts.check(self.text, "stages.parity.text")
        if self.tokens < LEAST:
            raise ConfigError(f"stages.parity.tokens={self.tokens}: at least {LEAST}")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        return gang_of(self.engine)

    def plan(self, checkpoint: Checkpoint, exported: Exported) -> Prediction:
        """Ours and theirs, which are not in memory together, in fp32."""
        known = positions(checkpoint.config)
        if known is not None and self.tokens > known:
            raise PlanError([Problem("stages.parity.tokens", f"{self.tokens}: the model knows {known:,} positions")])
        needs, plain = (self.engine.plan(checkpoint, text=False, plain=p) for p in (False, True))
        values = 4 * sum(s.size for s in checkpoint.store.specs.values())
        inputs = (*needs.inputs, texts.input_file(self.text))
        takes = Footprint(
            plain.device_nbytes, needs.host_nbytes + 2 * values, inputs, plain.ignored, rate=plain.rate,
            moved_nbytes=plain.device_nbytes * self.tokens, devices=plain.devices,
            temporary_nbytes=plain.temporary_nbytes, steps=plain.steps, host_reads=plain.host_reads,
        )  # fmt: skip
        return Prediction(None, takes)

    def run(self, ctx: Context, checkpoint: Checkpoint, exported: Exported) -> Compared:
        session = ctx.models.load(self.engine, checkpoint, plain=True)
        ids, prompt = self._ids(session, checkpoint, ctx.seed)
        text_stream.write(f"{len(ids)} tokens ({prompt}), our model\n")
        ours, facts = session.taps(ids), session.facts
        del session
        ctx.models.release()
        text_stream.write("the reference\n")
        # Of several processes the first has the reference run, and finds what counts.
        theirs = self.reference.taps(exported.path, ids) if member.first() else ours
        layers = {name: _apart(ours[name], theirs[name]) for name in ours}
        first = next((n for n, d in layers.items() if not d["relative"] <= self.tolerance), None)
        p, q = (_log_softmax(side["logits"]) for side in (theirs, ours))
        kl = np.sum(np.exp(p) * (p - q), axis=-1)
        top1 = float(np.mean(p.argmax(-1) == q.argmax(-1)))
        if first is None:
            summary = f"the same: every layer within {self.tolerance:g} of its largest value"
        else:
            summary = f"{first} is the first that differs: {layers[first]['relative']:.2g} of its largest value"
        forms = {"max_abs": ".2e", "scale": ".3g", "relative": ".1e"}
        rows = tuple(
            (n, *(Figure(d[k], form=f, better="" if k == "scale" else "lower") for k, f in forms.items()))
            for n, d in layers.items()
        )
        tables = (
            Table("Layer by layer", ("after", "max abs difference", "largest value", "relative"), rows),
            Table("Parity", ("", ""), (
                ("summary", summary), ("prompt", prompt), ("KL", f"{kl.mean():.2e} mean, {kl.max():.2e} at most"),
                ("top-1 agreement", f"{100 * top1:.2f} % of {len(ids)} positions"), *weights_rows(facts),
            )),
        )  # fmt: skip
        return Compared(
            first is None,
            summary,
            first,
            layers,
            float(kl.mean()),
            float(kl.max()),
            top1,
            len(ids),
            prompt,
            facts,
            tables,
        )

    def _ids(self, session: Any, checkpoint: Checkpoint, seed: int) -> tuple[list[int], str]:
        """What both models are shown, and what it is."""
        if (tokenizer := session.tokenizer_if_any) is not None:
            return list(tokenizer.encode(texts.read(self.text)))[: self.tokens], Path(self.text).name
        vocab = int(checkpoint.config["vocab_size"])
        ids = [int(t) for t in np.random.default_rng(seed).integers(0, vocab, self.tokens)]
        return ids, "random tokens: the checkpoint has no tokenizer"


def _apart(ours: Any, theirs: Any) -> dict[str, float]:
    if ours.shape != theirs.shape:
        return {"max_abs": float("inf"), "scale": 0.0, "relative": float("inf")}
    max_abs, scale = float(np.max(np.abs(ours - theirs))), float(np.max(np.abs(theirs)))
    return {"max_abs": max_abs, "scale": scale, "relative": max_abs / scale if scale else max_abs}


def _log_softmax(logits: Any) -> Any:
    wide = np.asarray(logits, np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.sum(np.exp(wide), axis=-1, keepdims=True))
