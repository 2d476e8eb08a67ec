"""The work of a benchmark of engines: exports for each, rounds in turn, and how right each is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline import texts
from pipeline.bench import cell, limits, rows
from pipeline.bench.leaks import Repeat, growth, leak
from pipeline.bench.per_token import PerToken, per_token
from pipeline.bench.turns import Turns
from pipeline.bench.workload import Workload
from pipeline.contender import Contender, Form
from pipeline.errors import ConfigError, StageError
from pipeline.running import text_stream
from pipeline.stage import Checkpoint

EXPORTS, LOGITS = "exports", "reference.npy"
REFERENCE = "the reference"


class Tokenizers(Protocol):
    """Where tokenizers come from."""

    def exists(self, checkpoint: Checkpoint) -> bool: ...

    def load(self, checkpoint: Checkpoint) -> Any: ...


@dataclass(frozen=True)
class Case:
    """A cell: an engine and a quant.

    Attributes:
        form: in which it reads the weights.
        why_not: what it is not measured for, and the state that this is; empty: it is.
    """

    engine: str
    quant: str
    contender: Contender
    form: Form
    state: str = "measured"
    why: str = ""

    @property
    def name(self) -> str:
        return f"{self.engine} {self.quant}"


def vocabulary(checkpoint: Checkpoint) -> int:
    """Ids that the model knows.

    Raises:
        ConfigError: it reads no tokens.
    """
    found = checkpoint.config.get("vocab_size")
    if not isinstance(found, int):
        kind = checkpoint.config.get("model_type", "unknown")
        raise ConfigError(f"bench: models that read tokens are measured; {kind} has no vocab_size in config.json")
    return found


def cases(engines: Mapping[str, Contender], quants: Sequence[str], config: Mapping[str, Any]) -> Iterator[Case]:
    """All cells, and which cannot be measured."""
    for quant in quants:
        for engine, contender in engines.items():
            form = contender.form(quant, config)
            needs = {**contender.needs, **form.needs}
            lacking = [how for module, how in needs.items() if find_spec(module) is None]
            state = "unsupported" if form.why_not else "missing" if lacking else "measured"
            why = form.why_not or (f"not installed; {'; '.join(dict.fromkeys(lacking))}" if lacking else "")
            yield Case(engine, quant, contender, form, state, why)


@dataclass(frozen=True)
class Work:
    """One benchmark at work. Its attributes are those of `stages.bench.Bench`, with every cell of it."""

    cases: Sequence[Case]
    reference: Contender
    tokenizer: Tokenizers
    text: str
    workload: Workload
    limits: limits.Limits
    overrides: tuple[str, ...]
    count: int  # of rounds
    checkpoint: Checkpoint
    turns: Turns

    def rows(self) -> list[dict[str, Any]]:
        """As bench.json has them.

        Raises:
            StageError: the reference failed, or no cell could be measured.
        """
        measured = [case for case in self.cases if case.state == "measured"]
        if not measured:
            raise StageError("bench: nothing can be measured: " + "; ".join(f"{c.name}: {c.why}" for c in self.cases))
        reference = self._quality(REFERENCE, self.reference, self._base(), write=True)
        if reference is None:
            raise StageError(
                f"bench: {REFERENCE}, {type(self.reference).__name__}: {self.turns.failed[_right(REFERENCE)]}"
            )
        written = [case for case in measured if self._export(case.form) and self._prepared(case)]
        jobs: dict[str, cell.Job] = {limits.NAME: limits.Limit(self.limits, self.turns.threads)}
        self.turns.rounds(jobs | {case.name: self._speed(case) for case in written}, self.count, rows.said)
        if self.workload.leak:
            for case in written:
                self._repeat(case)
        for case in written:
            if case.name not in self.turns.failed:
                self._quality(case.name, case.contender, self._read(case), write=False)
        costs = self._costs(written)
        (self.turns.folder / LOGITS).unlink(missing_ok=True)
        return self._summed(reference, costs)

    def _base(self) -> Path:
        """The weights that nothing has quantized: the source, or what it is unpacked."""
        if all(spec.scheme is None for spec in self.checkpoint.store.specs.values()):
            assert self.checkpoint.source is not None
            return self.checkpoint.source
        form = Form("none", "hf")
        if not self._export(form):
            raise StageError(f"bench: {REFERENCE}: {self.turns.failed[_written(form)]}")
        return self._place(form)

    def _place(self, form: Form) -> Path:
        return self.turns.folder / EXPORTS / f"{form.quant}-{form.export}"

    def _read(self, case: Case) -> Path:
        """What its contender loads."""
        place = self._place(case.form)
        return place.with_name(f"{place.name}-{case.name.replace(' ', '-')}") if case.form.own else place

    def _prepared(self, case: Case) -> bool:
        """Have the contender make of the export what it reads, if that is not there; whether it is there."""
        if not case.form.own or self.turns.found(_prepared(case)):
            return True
        text_stream.write(f"{case.engine} makes {case.form.own} of {case.form.quant} {case.form.export}\n")
        job = cell.Prepare(case.contender, self._place(case.form), case.form.own, self._read(case))
        return self.turns.once(_prepared(case), job) is not None

    def _export(self, form: Form) -> bool:
        """Write a form of the weights, if it is not there; whether it is there."""
        from pipeline.config.overrides import quoted  # Hydra's grammar, which no other worker needs

        name = _written(form)
        if name in self.turns.failed or self.turns.found(name):
            return name not in self.turns.failed
        place, hidden = self._place(form), self.turns.folder / EXPORTS / f".run-{form.quant}-{form.export}"
        packed = any(spec.scheme is not None for spec in self.checkpoint.store.specs.values())
        source = self.checkpoint.source if not packed or form == Form("none", "hf") else self._base()
        where = {"model.source": source, "export.path": place, "paths.run": hidden, "paths.outputs": hidden}
        job = cell.Export((
            *self.overrides, "flow=convert", f"quant={form.quant}", f"export={form.export}", "progress=false",
            *(f"{key}={quoted(str(path))}" for key, path in where.items()),
        ), place)  # fmt: skip
        text_stream.write(f"writing {form.quant} as {form.export}\n")
        return self.turns.once(name, job) is not None

    def _speed(self, case: Case) -> cell.Job:
        work = self.workload
        return cell.Speed(
            case.contender, self._read(case), self.turns.threads, work.prefill, work.batches, work.new,
            work.contexts, work.repeats, vocabulary(self.checkpoint),
        )  # fmt: skip

    def _repeat(self, case: Case) -> None:
        """Look whether it takes more memory with each generation."""
        if case.name in self.turns.failed or self.turns.found(_repeated(case)):
            return
        text_stream.write(f"{self.workload.leak} generations of {case.name}\n")
        self.turns.once(
            _repeated(case), Repeat(case.contender, self._read(case), self.turns.threads, self.workload.leak)
        )

    def _quality(self, name: str, contender: Contender, place: Path, *, write: bool) -> Mapping[str, Any] | None:
        """What it predicts of the text; of the reference also written to a file. None: it failed."""
        logits = self.turns.folder / LOGITS
        if (noted := self.turns.found(_right(name))) and (not write or logits.exists()):
            return noted[0]
        windows, work = self._windows, self.workload
        job = cell.Quality(
            contender, place, self.turns.threads, windows, logits, write, windows[0][: work.prompt], work.greedy
        )
        text_stream.write(f"scoring with {name}\n")
        return self.turns.once(_right(name), job)

    @cached_property
    def _windows(self) -> tuple[tuple[int, ...], ...]:
        """Ids of the text; at random, where the checkpoint has no tokenizer."""
        work = self.workload
        if self.tokenizer.exists(self.checkpoint):
            ids = self.tokenizer.load(self.checkpoint).encode(texts.read(self.text))[: work.tokens]
        else:
            vocab = vocabulary(self.checkpoint)
            ids = np.random.default_rng(0).integers(vocab, size=work.tokens).tolist()
        cut = [tuple(map(int, ids[i : i + work.window])) for i in range(0, len(ids) - work.window + 1, work.window)]
        if not cut:
            raise ConfigError(
                f"bench.text: {len(ids)} tokens, and bench.window={work.window} of them are scored at once"
            )
        return tuple(cut)

    def _costs(self, measured: Sequence[Case]) -> dict[str, float]:
        """Nats of KL divergence that quantization alone costs, by cell: what the reference says of the same files. Of
        what a contender quantizes by itself we read none: `rows.OWN` times what ours of that name costs.
        """
        ours = {case.quant: case.form for case in reversed(measured) if not case.form.own}
        found = {}
        for case in measured:
            if case.quant == "none" or case.name in self.turns.failed:
                found[case.name] = 0.0
                continue
            form = ours.get(case.quant, Form(case.quant, "auto")) if case.form.own else case.form
            name = f"{REFERENCE} with {form.quant} {form.export}"
            scored = self._quality(name, self.reference, self._place(form), write=False) if self._export(form) else None
            if scored is None:
                why = self.turns.failed.get(_right(name), self.turns.failed.get(_written(form)))
                self.turns.failed[_right(case.name)] = f"{name}, which it is held against: {why}"
                continue
            found[case.name] = scored["kl"] * (rows.OWN if case.form.own else 1.0)
        return found

    def _summed(self, reference: Mapping[str, Any], costs: Mapping[str, float]) -> list[dict[str, Any]]:
        right: dict[str, dict[str, Any]] = {}  # by cell
        for case in self.cases:
            for found in self.turns.found(_right(case.name)):
                right[case.name] = {**rows.quality(found, reference), "cost": costs.get(case.name, 0.0)}
        return [self._row(case, right) for case in self.cases]

    def _row(self, case: Case, right: Mapping[str, Any]) -> dict[str, Any]:
        state, why = case.state, case.why
        if _written(case.form) in self.turns.failed:
            state, why = "failed", f"its weights could not be written: {self.turns.failed[_written(case.form)]}"
        for name in (_prepared(case), case.name, _repeated(case), _right(case.name)):
            if name in self.turns.failed:
                state, why = "failed", self.turns.failed[name]
        form = f"{case.form.quant} {case.form.export}" + (f", {case.form.own} by itself" if case.form.own else "")
        row: dict[str, Any] = {
            "engine": case.engine, "quant": case.quant, "form": form, "state": state,
            "why": why, "metrics": {}, "wrong": "", "others": 0.0, "busy": False,
        }  # fmt: skip
        if state != "measured":
            return row
        rounds, others = self.turns.found(case.name), self.turns.others(case.name)
        [export] = self.turns.found(_prepared(case) if case.form.own else _written(case.form))
        quality, found = right[case.name], rows.metrics(rounds)
        grown = [growth(noted["rss"]) for noted in self.turns.found(_repeated(case))]
        leaks = "; ".join(said for one in grown if (said := leak(one)))
        metrics = {name: asdict(metric) for name, metric in found.items()}
        if quality["perplexity"] is not None:
            metrics["perplexity"] = asdict(rows.Metric.of([quality["perplexity"]], "", "lower"))
        takes = None if case.form.own else self._takes(case.form)  # what it makes by itself we cannot read
        shares = {} if takes is None else rows.shares(found, takes, limits.reached(self.turns))
        return row | {
            "metrics": metrics, "latency_ms": rows.latencies(rounds), "quality": quality, "others": others,
            "busy": others > rows.BUSY,
            "wrong": rows.wrong(quality, quality["cost"], self.workload.wrong_kl) or leaks,
            "nbytes": export["nbytes"], "device_nbytes": rounds[-1]["weights"], "versions": rounds[-1]["versions"],
            "leak": grown[0] if grown else None, "no_joules": rounds[-1]["no_joules"],
            "of_limits": shares,
        }  # fmt: skip

    def _takes(self, form: Form) -> PerToken:
        """What a token takes of the weights of an export of ours."""
        assert self.checkpoint.opener is not None
        opened = self.checkpoint.opener(self._place(form))
        return per_token(opened.store.specs, opened.config)


def _written(form: Form) -> str:
    """The name of the job that writes a form."""
    return f"export {form.quant} {form.export}"


def _prepared(case: Case) -> str:
    """The name of the job in which a contender makes what it reads."""
    return f"{case.name} made of an export"


def _repeated(case: Case) -> str:
    """The name of the job that generates again and again."""
    return f"{case.name} again and again"


def _right(name: str) -> str:
    """The name of the job that says how right a cell is."""
    return f"quality {name}"
