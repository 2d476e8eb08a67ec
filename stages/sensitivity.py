"""Sensitivity: which tensors lose most by being quantized? One group at a time, all others as they were."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from math import exp
from typing import Any, ClassVar, Literal

from pipeline import meter, scored, texts
from pipeline.engine import Against, Engine, Windows, gang_of, scoring, weights_rows
from pipeline.errors import ConfigError, did_you_mean
from pipeline.figures import Cell, Figure
from pipeline.reporting.plots import bars
from pipeline.running import member, text_stream
from pipeline.stage import Checkpoint, Context, Gang, Prediction, Table


@dataclass(frozen=True)
class Sensitivities:
    """What quantizing each group alone does.

    Attributes:
        groups: name → perplexity, KL divergence from the unquantized model (nats), top-1 agreement, number of tensors,
            bits a weight.
        perplexity: of the unquantized model.
        plot: the picture of it: a file in the run's folder.
        windows: how the text was cut.
        facts: device, dtypes, bytes on the device.
        figures: for comparisons.
        tables: for people.
    """

    groups: Mapping[str, Mapping[str, Any]]
    perplexity: float
    plot: str
    windows: Mapping[str, Any]
    facts: Mapping[str, Any]
    figures: Mapping[str, Cell]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Sensitivity:
    """Score one text with each group of tensors quantized alone.

    The model is held in fp32, so that unpacked values are those of the packed tensors exactly, and nothing recompiles.

    Attributes:
        engine: runs the model.
        text: a file, UTF-8.
        windows: how it is cut.
        by: what a group is: a `layer`, a `role` of the model, or a kind of `tensor` (over all layers).
        roles: role → name patterns.
    """

    engine: Engine
    text: str
    windows: Windows
    by: Literal["layer", "role", "tensor"] = "layer"
    roles: Mapping[str, tuple[str, ...]] | None = None

    writes: ClassVar[tuple[str, ...]] = (
        "sensitivity.npz", "sensitivity.partial.npz", "sensitivity.head.npz", "sensitivity.png",
    )  # fmt: skip

    def __post_init__(self) -> None:
        texts.check(self.text, "sensitivity.text")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        return gang_of(self.engine)

    def plan(self, checkpoint: Checkpoint, decode: Checkpoint) -> Prediction:
        text = texts.input_file(self.text)
        groups = len(self._groups(checkpoint, decode)) + 1
        windows = scored.settled(self.windows, decode, groups, "sensitivity.windows")
        usage = scoring([text.nbytes], windows, keeps=True)
        base, plain = (self.engine.plan(decode, plain=p, usage=usage) for p in (False, True))
        values = sum(s.size for s in decode.store.specs.values())
        takes = replace(
            plain,
            host_nbytes=base.host_nbytes + 4 * values,
            inputs=(*base.inputs, text),
            moved_nbytes=groups * plain.moved_nbytes,
            reads=scored.said(windows, self.windows),
        )
        return Prediction(None, takes)

    def run(self, ctx: Context, checkpoint: Checkpoint, decode: Checkpoint) -> Sensitivities:
        """
        Raises:
            ConfigError: nothing is quantized, or a quantized tensor has no role.
        """
        groups = self._groups(checkpoint, decode)
        windows = scored.settled(self.windows, decode, len(groups) + 1, "sensitivity.windows")
        session = ctx.models.load(self.engine, decode, plain=True)
        ids = session.tokenizer.encode(texts.read(self.text))
        kept = ctx.run_dir / "sensitivity.npz"
        base = session.score(ids, windows, keep=kept, against=None)
        against = Against(kept, kept.with_suffix(".head.npz"))
        session.keep_head(against.head)
        member.agreed()  # of several processes the first has written it, for all
        found: dict[str, dict[str, Any]] = {}
        for name, tensors in groups.items():
            text_stream.write(f"quantizing {name} alone ({len(tensors)} tensors)\n")
            with session.replaced(tensors, checkpoint):
                score = session.score(ids, windows, keep=None, against=against)
            specs = [checkpoint.store.specs[t] for t in tensors]
            bits = 8 * sum(s.nbytes for s in specs) / sum(s.size for s in specs)
            found[name] = {
                "perplexity": exp(score.nll), "kl": score.kl, "top1": score.top1, "tensors": len(tensors), "bits": bits
            }  # fmt: skip
        ranked = sorted(found, key=lambda n: -found[n]["kl"])
        plot = "sensitivity.png"
        member.agreed()  # nobody reads it any more
        if member.first():
            for path in (against.states, against.head):
                meter.wrote(path.stat().st_size)
                path.unlink()
            title = f"KL from the unquantized model, each {self.by} quantized alone"
            bars(ctx.run_dir / plot, title, "nats a token", {n: found[n]["kl"] for n in groups})
        before = exp(base.nll)
        lines = tuple(
            (
                n, Figure(r["tensors"], form="d"), Figure(r["bits"]), Figure(r["perplexity"]),
                Figure(100 * (r["perplexity"] / before - 1), "%", "+z.3f"), Figure(r["kl"], form=".5f"),
                Figure(100 * r["top1"], "%", ".2f"),
            )
            for n, r in ((n, found[n]) for n in ranked)
        )  # fmt: skip
        columns = (self.by, "tensors", "bits", "perplexity", "change", "KL", "top-1 agreement")
        head = Table(f"Quantized alone, worst first (unquantized: {before:.3f})", columns, lines)
        return Sensitivities(
            found, before, plot, asdict(windows), session.facts, {"worst": ranked[0]},
            (head, Table("On the device", ("", ""), tuple(weights_rows(session.facts))),
             Table("Picture", ("",), ((f"{plot}, in the run's folder",),))),
        )  # fmt: skip

    def _groups(self, checkpoint: Checkpoint, decode: Checkpoint) -> dict[str, list[str]]:
        """Group → the tensors of it that quantization changed."""
        changed = [n for n, s in checkpoint.store.specs.items() if s != decode.store.specs.get(n)]
        if not changed:
            raise ConfigError("sensitivity: no tensor is quantized; choose quant=, or other model.rules")
        found: dict[str, list[str]] = {}
        for name in changed:
            found.setdefault(self._group(name), []).append(name)
        return found

    def _group(self, name: str) -> str:
        parts = name.split(".")
        if self.by == "role":
            roles = self.roles or {}
            role = next((r for r, patterns in roles.items() if any(fnmatchcase(name, p) for p in patterns)), None)
            if role is None:
                raise ConfigError(f"sensitivity.by=role: {name} has none{did_you_mean(name, roles)}")
            return role
        at = next((i for i, p in enumerate(parts) if p.isdigit()), None)
        if self.by == "layer":
            return ".".join(parts[: at + 1]) if at is not None else name
        return ".".join("*" if p.isdigit() else p for p in parts)
