"""Evaluate: what quantization did to the model's predictions, on real text."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path
from typing import Any

from pipeline import meter, texts
from pipeline.digest import digest, digest_file, identity, unchanged
from pipeline.engine import Engine, Score, Windows, scoring, weights_rows
from pipeline.errors import ConfigError, SourceError, StorageError
from pipeline.files import read_whole
from pipeline.places import hindrance
from pipeline.running import text_stream
from pipeline.stage import Checkpoint, Context, Footprint, Prediction, Table

LEAST = 2  # tokens of a text


@dataclass(frozen=True)
class Evaluated:
    """How well the model predicts each text, and how far it is from the baseline.

    Attributes:
        texts: file name → perplexity, tokens, scored, nll; with a baseline also its perplexity, mean KL divergence from
            it (nats) and top-1 agreement.
        facts: device, dtypes, bytes on the device; `baseline_nbytes`: what the unquantized weights take.
        windows: how the texts were cut.
        figures: for comparisons.
        tables: for people.
    """

    texts: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, Any]
    windows: Mapping[str, Any]
    figures: Mapping[str, str]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Evaluate:
    """Perplexity of the checkpoint, and of the one that the stage `decode` gave: the same weights, not quantized.

    The baseline is computed once for the same weights, settings, tokenizer, texts, options, device and code, and read
    from `baselines` afterwards, by all jobs of a sweep and by later runs.

    Attributes:
        engine: runs the model.
        texts: files, UTF-8.
        windows: how they are cut.
        baselines: folder where baselines are kept.
    """

    engine: Engine
    texts: tuple[str, ...]
    windows: Windows
    baselines: str

    def __post_init__(self) -> None:
        if not self.texts:
            raise ConfigError("evaluate.texts: at least one text file is needed")
        for text in self.texts:
            texts.check(text, "evaluate.texts")

    def plan(self, checkpoint: Checkpoint, decode: Checkpoint) -> Prediction:
        """The larger of both models, one of which is loaded at a time.

        Raises:
            StorageError: baselines cannot be kept where they are to be.
        """
        if why := hindrance(Path(self.baselines).absolute() / ("0" * 32 + ".npz")):
            raise StorageError(f"evaluate.baselines={self.baselines}: the baseline cannot be kept: {why}")
        files = [texts.input_file(text) for text in self.texts]
        changed = checkpoint.store != decode.store
        usage = scoring([f.nbytes for f in files], self.windows, keeps=changed)
        base = self.engine.plan(decode, usage=usage)
        ours = self.engine.plan(checkpoint, usage=usage) if changed else base
        takes = Footprint(
            max(ours.device_nbytes, base.device_nbytes),
            max(ours.host_nbytes, base.host_nbytes),
            tuple(dict.fromkeys((*ours.inputs, *base.inputs, *files))),
            ours.ignored,
            disk_nbytes=base.disk_nbytes,
            moved_nbytes=base.moved_nbytes + (ours.moved_nbytes if changed else 0),
            rate=ours.rate,
        )
        return Prediction(None, takes)

    def run(self, ctx: Context, checkpoint: Checkpoint, decode: Checkpoint) -> Evaluated:
        """
        Raises:
            SourceError: no tokenizer; a text that is not UTF-8.
            StorageError: the baseline cannot be kept.
        """
        changed = checkpoint.store != decode.store  # what no stage between them touched is the same store
        written = {Path(t).name: texts.read(t) for t in self.texts}
        if len(written) < len(self.texts):
            raise ConfigError(f"evaluate.texts: two files are called the same: {', '.join(self.texts)}")
        kept, base, base_facts = self._baseline(ctx, decode, written, needed=changed)
        if changed:
            session = self.engine.load(checkpoint)
            found = {}
            for name, text in written.items():
                text_stream.write(f"scoring {name}\n")
                ids = _ids(session, name, text)
                found[name] = session.score(ids, self.windows, keep=None, against=kept[name])
            facts = session.facts
        else:
            found, facts = base, base_facts
        rows = {n: _row(s, base[n] if changed else None) for n, s in found.items()}
        return Evaluated(
            texts=rows,
            facts={**facts, "baseline_nbytes": base_facts["device_nbytes"]},
            windows=asdict(self.windows),
            figures=_figures(rows),
            tables=_tables(rows, found, facts, base_facts, changed=changed),
        )

    def _baseline(
        self, ctx: Context, decode: Checkpoint, written: Mapping[str, str], *, needed: bool
    ) -> tuple[dict[str, Path], dict[str, Score], dict[str, Any]]:
        """For each text the file to compare with and the score; from disk when they are there, and whole."""
        folder = Path(self.baselines)
        about = identity([
            [f.identity for f in decode.inputs], decode.config,
            {n: digest(f) for n, f in decode.files.items() if isinstance(f, bytes)},
            {n: s.encoding for n, s in decode.store.specs.items()},
            ctx.recipes.get("decode", list(ctx.recipes.values())), self.engine.identity(decode), asdict(self.windows),
        ])  # fmt: skip
        kept, scores = {}, {}
        facts: dict[str, Any] = {}
        session = None
        for name, text in written.items():
            key = identity([about, text])
            kept[name], record = folder / f"{key}.npz", folder / f"{key}.json"
            before = _read(record, kept[name] if needed else None)
            if before is not None:
                scores[name], facts = before
                continue
            session = session or self.engine.load(decode)
            text_stream.write(f"scoring {name} with the unquantized model\n")
            ids = _ids(session, name, text)
            # Named after the run, whose folder is locked: runs at the same time do not write the same file.
            mine = folder / f"{key}.{identity(str(ctx.run_dir))[:8]}.npz"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                scores[name] = session.score(ids, self.windows, keep=mine if needed else None, against=None)
                facts = dict(session.facts)
                unchanged(*decode.inputs)  # or it would be kept for files that were not read
                whole = digest_file(mine).xxh3_128 if needed else None
                if needed:
                    mine.replace(kept[name])
                partial = mine.with_suffix(".partial")
                about_it = {"score": asdict(scores[name]), "facts": facts, "text": name, "xxh3_128": whole}
                partial.write_text(json.dumps(about_it))
                partial.replace(record)
                meter.wrote(record.stat().st_size + (kept[name].stat().st_size if needed else 0))
            except OSError as why:
                raise StorageError(f"{folder}: the baseline cannot be kept: {why.strerror or why}") from None
            finally:
                mine.unlink(missing_ok=True)  # where it was not put in its place
        return kept, scores, facts


def _ids(session: Any, name: str, text: str) -> list[int]:
    ids: list[int] = session.tokenizer.encode(text)
    if len(ids) < LEAST:
        raise ConfigError(f"evaluate.texts: {name}: {len(ids)} tokens, nothing to predict; at least {LEAST} are needed")
    return ids


def _read(record: Path, kept: Path | None) -> tuple[Score, dict[str, Any]] | None:
    """A baseline's score and facts; None when it is not there, or not (any more) what was written, and is made again.

    Args:
        record: its JSON file.
        kept: its hidden states, if they are needed.
    """
    if not record.exists() or (kept is not None and not kept.exists()):
        return None
    try:
        before = json.loads(read_whole(record))
        found = Score(**before["score"]), dict(before["facts"])
        whole = kept is None or digest_file(kept).xxh3_128 == before["xxh3_128"]
    except (OSError, ValueError, KeyError, TypeError, SourceError):
        whole = False
    if not whole:
        text_stream.write(f"{record}: is damaged; made again\n")
        return None
    return found


def _row(score: Score, base: Score | None) -> dict[str, float]:
    found = {"perplexity": exp(score.nll), "tokens": score.tokens, "scored": score.scored, "nll": score.nll}
    if base is not None and score.kl is not None and score.top1 is not None:
        found |= {"baseline_perplexity": exp(base.nll), "kl": score.kl, "top1": score.top1}
    return found


def _figures(rows: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Over all texts, weighted by tokens."""
    scored = sum(r["scored"] for r in rows.values())
    found = {"perplexity": f"{exp(sum(r['nll'] * r['scored'] for r in rows.values()) / scored):.3f}"}
    if all("kl" in r for r in rows.values()):
        found["KL"] = f"{sum(r['kl'] * r['scored'] for r in rows.values()) / scored:.4f}"
        found["top-1"] = f"{100 * sum(r['top1'] * r['scored'] for r in rows.values()) / scored:.2f} %"
    return found


def _tables(
    rows: Mapping[str, Mapping[str, float]], scores: Mapping[str, Score], facts: Mapping[str, Any],
    base: Mapping[str, Any], *, changed: bool,
) -> tuple[Table, ...]:  # fmt: skip
    columns: tuple[str, ...]
    lines: list[tuple[str, ...]]
    if changed:
        columns = ("text", "tokens scored", "perplexity before", "after", "change", "KL", "top-1 agreement")
        lines = [
            (
                name, f"{r['scored']:,}", f"{r['baseline_perplexity']:.3f}", f"{r['perplexity']:.3f}",
                f"{100 * (r['perplexity'] / r['baseline_perplexity'] - 1):+z.2f} %", f"{r['kl']:.4f}",
                f"{100 * r['top1']:.2f} %",
            )
            for name, r in rows.items()
        ]  # fmt: skip
    else:
        columns = ("text", "tokens scored", "perplexity")
        lines = [(name, f"{r['scored']:,}", f"{r['perplexity']:.3f}") for name, r in rows.items()]
    seconds = sum(s.seconds for s in scores.values())
    rate = sum(s.scored for s in scores.values()) / seconds if seconds else 0.0
    device = [
        *weights_rows(facts, base if changed else None),
        ("scoring", f"{rate:.0f} tokens/s, activations {facts['activations']}"),
    ]
    return Table("Perplexity", columns, tuple(lines)), Table("On the device", ("", ""), tuple(device))
