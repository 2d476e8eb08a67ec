"""Evaluate: what quantization did to the model's predictions, on real text."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import exp, inf, isfinite
from pathlib import Path
from typing import Any

from pipeline import meter, scored, texts
from pipeline.digest import identity, unchanged
from pipeline.engine import Against, Engine, Score, Windows, gang_of, scoring, weights_rows
from pipeline.errors import ConfigError
from pipeline.figures import Cell, Figure
from pipeline.read_back import opened, predicted
from pipeline.running import text_stream
from pipeline.running.results import FOLDER, Results
from pipeline.stage import NEUTRAL, Checkpoint, Context, Exported, Footprint, Gang, Prediction, Table
from pipeline.tables import shortened
from pipeline.tensors.spec import UNQUANTIZED, called, encodings
from pipeline.training import TRAINED
from pipeline.units import show_seconds

NAMED = 32  # columns that the name of a text has in a line
LEAST = 2  # tokens of a text
STATES = "states.npz"  # hidden states of the baseline, of one text
HEAD = "head.npz"  # what makes logits of them, of one model


@dataclass(frozen=True)
class Evaluated:
    """How well the model predicts each text, and how far it is from the baseline.

    Attributes:
        texts: file name → perplexity, tokens, scored, nll; with a baseline also its perplexity, mean KL divergence from
            it (nats) and top-1 agreement.
        facts: device, dtypes, bytes on the device; `baseline_nbytes`: what the baseline takes there; `read_from`:
            where the weights were read, the export or the source.
        windows: how the texts were cut.
        figures: for comparisons.
        tables: for people.
        before: figures of the baseline; none, where the checkpoint is that.
        baseline: of that, bytes and number of all values, and what is packed: encoding → values.
    """

    texts: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, Any]
    windows: Mapping[str, Any]
    figures: Mapping[str, Figure]
    tables: tuple[Table, ...]
    before: Mapping[str, Figure] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluate:
    """Perplexity of the checkpoint, and of the one that the stage `decode` gave: the same weights, not quantized.

    Where the run exports the checkpoint, the export is read in its place (`pipeline.read_back`).

    The baseline is computed once for the same weights, settings, tokenizer, texts, options, device and code, and found
    afterwards, by all jobs of a sweep and by later runs.

    Attributes:
        engine: runs the model.
        texts: files, UTF-8.
        windows: how they are cut.
    """

    engine: Engine
    texts: tuple[str, ...] = field(metadata=NEUTRAL)  # their content counts, which is read
    windows: Windows

    def __post_init__(self) -> None:
        if not self.texts:
            raise ConfigError("evaluate.texts: at least one text file is needed")
        for text in self.texts:
            texts.check(text, "evaluate.texts")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        return gang_of(self.engine)

    def plan(self, checkpoint: Checkpoint, decode: Checkpoint, exported: Exported | None = None) -> Prediction:
        """The larger of both models, one of which is loaded at a time."""
        subject, reads = predicted(checkpoint, exported)
        files = [texts.input_file(text) for text in self.texts]
        changed = subject.store != decode.store
        windows = self._windows(decode)
        usage = scoring([f.nbytes for f in files], windows, keeps=changed)
        ours = self.engine.plan(subject, usage=usage)
        base = self.engine.plan(decode, usage=usage) if changed else ours
        takes = Footprint(
            max(ours.device_nbytes, base.device_nbytes),
            max(ours.host_nbytes, base.host_nbytes),
            tuple(dict.fromkeys((*ours.inputs, *base.inputs, *files))),
            ours.ignored,
            "; ".join(filter(None, (reads, scored.said(windows, self.windows)))),
            disk_nbytes=base.disk_nbytes,
            moved_nbytes=base.moved_nbytes + (ours.moved_nbytes if changed else 0),
            times=1.0,
            rate=ours.rate,
            devices=ours.devices,
            temporary_nbytes=max(ours.temporary_nbytes, base.temporary_nbytes),
            steps=ours.steps,
            host_reads=tuple(map(sum, zip(ours.host_reads, base.host_reads, strict=True)))
            if changed
            else ours.host_reads,
        )
        return Prediction(None, takes)

    def run(
        self, ctx: Context, checkpoint: Checkpoint, decode: Checkpoint, exported: Exported | None = None
    ) -> Evaluated:
        """
        Raises:
            SourceError: no tokenizer; a text that is not UTF-8.
            StorageError: the baseline cannot be kept; the export was changed.
        """
        subject, windows = opened(checkpoint, exported), self._windows(decode)
        changed = subject.store != decode.store  # what no stage between them touched is the same store
        written = {Path(t).name: texts.read(t) for t in self.texts}
        if len(written) < len(self.texts):
            raise ConfigError(f"evaluate.texts: two files are called the same: {', '.join(self.texts)}")
        kept, base, base_facts = self._baseline(ctx, decode, windows, written, needed=changed)
        if changed:
            session = ctx.models.load(self.engine, subject)
            found = {}
            for name, text in written.items():
                text_stream.write(f"scoring {shortened(name, NAMED)}\n")
                ids = _ids(session, name, text)
                found[name] = session.score(ids, windows, keep=None, against=kept[name])
            facts = session.facts
        else:
            found, facts = base, base_facts
        scores = [*base.values(), *(found.values() if changed else ())]
        meter.repeated(sum(s.seconds for s in scores), 1.0)
        rows = {n: _row(s, base[n] if changed else None) for n, s in found.items()}
        for what in _no_numbers(rows):
            text_stream.say(f"warning: {what}")
        specs = list(decode.store.specs.values())
        return Evaluated(
            texts=rows,
            facts={**facts, "baseline_nbytes": base_facts["device_nbytes"], "read_from": str(subject.source)},
            windows=asdict(windows),
            figures=_figures(rows),
            tables=_tables(rows, found, facts, base_facts, changed=changed, trained=decode.origin == TRAINED),
            before=_figures({n: _row(s, None) for n, s in base.items()}) if changed else {},
            baseline={
                "nbytes": sum(s.nbytes for s in specs),
                "values": sum(s.size for s in specs),
                "encodings": encodings(specs),
            },
        )

    def _windows(self, decode: Checkpoint) -> Windows:
        """With as many tokens for what is not quantized: two models go through every text."""
        return scored.settled(self.windows, decode, 2 * len(self.texts), "evaluate.windows")

    def _baseline(
        self, ctx: Context, decode: Checkpoint, windows: Windows, written: Mapping[str, str], *, needed: bool
    ) -> tuple[dict[str, Against], dict[str, Score], dict[str, Any]]:
        """For each text what to compare with (if it is `needed`) and the score: kept, or made now."""
        results = ctx.results or Results(ctx.run_dir / FOLDER)
        read = [f.identity for f in self.engine.plan(decode).inputs]  # the tokenizer, where it lies elsewhere
        kept: dict[str, Against] = {}
        scores = {}
        facts: dict[str, Any] = {}
        made: list[str] = []
        for name, text in written.items():

            def score(folder: Path, name: str = name, text: str = text) -> dict[str, Any]:
                made.append(name)
                session = ctx.models.load(self.engine, decode)
                what = called(encodings(decode.store.specs.values()))
                what = f"{what} model" if what == UNQUANTIZED else f"model {what}"
                text_stream.write(f"scoring {shortened(name, NAMED)} with the {what}\n")
                keep = folder / STATES if needed else None
                found = session.score(_ids(session, name, text), windows, keep=keep, against=None)
                unchanged(*decode.inputs)  # or it would be kept for files that were not read
                meter.wrote(keep.stat().st_size if keep is not None and keep.exists() else 0)
                head = session.keep_head(None) if needed else None
                return {"score": asdict(found), "facts": dict(session.facts), "text": name, "head": head}

            key = identity(["baseline", ctx.recipe, ctx.takes.get("decode"), read, text, asdict(windows)])
            parts = {"stage": "a baseline of Evaluate", "recipe": ctx.recipe, "takes": dict(ctx.takes), "text": name}
            said, folder = results.once(key, score, files=[STATES] if needed else [], parts=parts)
            scores[name], facts = Score(**said["score"]), said["facts"]
            if needed:
                kept[name] = Against(folder / STATES, self._head(ctx, decode, results, said["head"]))
        if len(made) < len(written):
            meter.took()
        return kept, scores, facts

    def _head(self, ctx: Context, decode: Checkpoint, results: Any, known_by: str) -> Path:
        """The file of the baseline's head: one for all texts, windows and runs that have the same."""

        def make(folder: Path) -> dict[str, Any]:
            ctx.models.load(self.engine, decode).keep_head(folder / HEAD)
            unchanged(*decode.inputs)
            meter.wrote((folder / HEAD).stat().st_size if (folder / HEAD).exists() else 0)
            return {}

        parts = {"stage": "the head of a baseline of Evaluate", "head": known_by}
        _, folder = results.once(identity(["head", known_by]), make, files=[HEAD], parts=parts)
        return Path(folder) / HEAD


def _ids(session: Any, name: str, text: str) -> list[int]:
    ids: list[int] = session.tokenizer.encode(text)
    if len(ids) < LEAST:
        raise ConfigError(f"evaluate.texts: {name}: {len(ids)} tokens, nothing to predict; at least {LEAST} are needed")
    return ids


def _perplexity(nll: float) -> float:
    """Infinity, where there is no such double."""
    try:
        return exp(nll)
    except OverflowError:
        return inf


def _row(score: Score, base: Score | None) -> dict[str, float]:
    found = {"perplexity": _perplexity(score.nll), "tokens": score.tokens, "scored": score.scored, "nll": score.nll}
    if base is not None and score.kl is not None and score.top1 is not None:
        found |= {"baseline_perplexity": _perplexity(base.nll), "kl": score.kl, "top1": score.top1}
    return found


def _figures(rows: Mapping[str, Mapping[str, float]]) -> dict[str, Figure]:
    """Over all texts, weighted by tokens."""
    scored = sum(r["scored"] for r in rows.values())
    found = {
        "perplexity": Figure(_perplexity(sum(r["nll"] * r["scored"] for r in rows.values()) / scored), better="lower")
    }
    if all("kl" in r for r in rows.values()):
        found["KL"] = Figure(sum(r["kl"] * r["scored"] for r in rows.values()) / scored, "nats", ".4f", "lower")
        found["top-1"] = Figure(
            100 * sum(r["top1"] * r["scored"] for r in rows.values()) / scored, "%", ".2f", "higher"
        )
    return found


def _tables(
    rows: Mapping[str, Mapping[str, float]], scores: Mapping[str, Score], facts: Mapping[str, Any],
    base: Mapping[str, Any], *, changed: bool, trained: bool,
) -> tuple[Table, ...]:  # fmt: skip
    columns: tuple[str, ...]
    lines: list[tuple[Cell, ...]]
    if changed:
        columns = ("text", "tokens scored", "perplexity before", "after", "change", "KL", "top-1 agreement")
        lines = [
            (
                name, Figure(r["scored"], form=",d"), Figure(r["baseline_perplexity"], better="lower"),
                Figure(r["perplexity"], better="lower"),
                Figure(100 * (r["perplexity"] / r["baseline_perplexity"] - 1), "%", "+z.2f", "lower"),
                Figure(r["kl"], form=".4f", better="lower"), Figure(100 * r["top1"], "%", ".2f", "higher"),
            )
            for name, r in rows.items()
        ]  # fmt: skip
    else:
        columns = ("text", "tokens scored", "perplexity")
        lines = [
            (name, Figure(r["scored"], form=",d"), Figure(r["perplexity"], better="lower")) for name, r in rows.items()
        ]
    seconds = sum(s.seconds for s in scores.values())
    rate = sum(s.scored for s in scores.values()) / seconds if seconds else 0.0
    device = [
        *weights_rows(facts, base if changed else None),
        ("scoring", f"{rate:.0f} tokens/s, activations {facts['activations']}"),
        ("compiling", show_seconds(sum(s.compile_s for s in scores.values()))),
    ]
    title = "Perplexity; before: trained, as it is before it is quantized" if changed and trained else "Perplexity"
    told = [Table(title, columns, tuple(lines)), Table("On the device", ("", ""), tuple(device))]
    if warnings := _no_numbers(rows):
        told.insert(1, Table("Warnings", ("",), tuple((what,) for what in warnings)))
    return tuple(told)


def _no_numbers(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What is said of texts of which a model makes no number; a comparison with these fails any `--fail-if`."""
    keys = {"perplexity": "the model", "baseline_perplexity": "the baseline"}
    return [
        f"{name}: {keys[key]} has a perplexity of {row[key]}: look for NaN and infinity in its weights"
        for name, row in rows.items()
        for key in keys
        if not isfinite(row.get(key, 0.0))
    ]
