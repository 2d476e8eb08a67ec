"""Bench: engines on the same weights, in turn, each in a process of its own: how quick, and how right."""

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from pipeline import texts
from pipeline.bench import against, cell, rows
from pipeline.bench.notes import Notes
from pipeline.bench.process import done
from pipeline.bench.tables import figures, tables
from pipeline.bench.workload import Workload
from pipeline.contender import Contender, Form
from pipeline.errors import ConfigError, StageError
from pipeline.figures import Figure
from pipeline.planning.rates import cores, machine
from pipeline.records import schemas
from pipeline.running import text_stream
from pipeline.stage import Checkpoint, Context, Footprint, Prediction, Table

NOTES, RECORD = "rounds.jsonl", against.NAME
EXPORTS, LOGS, LOGITS = "exports", "logs", "reference.npy"
REFERENCE = "the reference"
HOST_NBYTES = 64 << 20  # of this process, with a tokenizer, beside those that measure


class Tokenizers(Protocol):
    """Where tokenizers come from."""

    def exists(self, checkpoint: Checkpoint) -> bool: ...

    def load(self, checkpoint: Checkpoint) -> Any: ...


@dataclass(frozen=True)
class Benched:
    """What a benchmark found.

    Attributes:
        rows: a row for each engine and quant, as bench.json has them.
        machine: on which kind.
        regressions: against the baseline, in words.
        figures: for comparisons.
        tables: for people.
        summary: in a line.
        exit_code: 9 with regressions, 6 when a contender failed.
    """

    rows: tuple[Mapping[str, Any], ...]
    machine: str
    regressions: tuple[str, ...]
    figures: Mapping[str, Figure]
    tables: tuple[Table, ...]
    summary: str
    exit_code: int


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


@dataclass(frozen=True)
class Bench:
    """Measure every engine with every quant.

    A figure is the median of rounds, in each of which every cell has its turn, so that a busy machine slows all alike.
    What a round measured is noted when its process ends, and measured once: a benchmark that was killed goes on.

    Attributes:
        engines: by name.
        reference: whose predictions, of weights that are not quantized, are what is right.
        quants: options of `quant`.
        tokenizer: of the text.
        text: a file, UTF-8, that is predicted.
        workload: what is asked of each.
        overrides: of the model, for the exports.
        folder: of the run, which no other benchmark has: a figure is measured, and not found again.
        outputs: where a baseline lies that is named.
    """

    engines: Mapping[str, Contender]
    reference: Contender
    quants: tuple[str, ...]
    tokenizer: Tokenizers
    text: str
    workload: Workload
    overrides: tuple[str, ...]
    folder: str
    outputs: str

    writes: ClassVar[tuple[str, ...]] = (NOTES, RECORD)

    def __post_init__(self) -> None:
        texts.check(self.text, "bench.text")
        for name, given in (("engines", self.engines), ("quants", self.quants)):
            if not given:
                raise ConfigError(f"{name}=[]: at least one is needed")
        if twice := [q for i, q in enumerate(self.quants) if q in self.quants[:i]]:
            raise ConfigError(f"quants: {twice[0]} is named twice")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        self._vocab(checkpoint)
        self._baseline()
        nbytes = sum(checkpoint.stored.values())
        forms = {(c.form.quant, c.form.export) for c in self._cases(checkpoint)}
        logits = 4 * self.workload.tokens * self._vocab(checkpoint)
        values = sum(spec.size for spec in checkpoint.store.specs.values())
        inputs = (texts.input_file(self.text),)
        disk = (len(forms) + 1) * 2 * values + logits
        return Prediction(
            None, Footprint(host_nbytes=HOST_NBYTES + 4 * values + nbytes, disk_nbytes=disk, inputs=inputs)
        )

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Benched:
        """
        Raises:
            StageError: the reference failed, or no cell could be measured.
        """
        before, begun = self._baseline(), time.perf_counter()
        run = _Run(self, ctx, checkpoint, Notes(ctx.run_dir / NOTES, ctx.key))
        found = run.rows()
        worse = against.regressions(found, before["rows"], self._tolerance) if before else []
        schemas.write("benchmark", ctx.run_dir / RECORD, {
            "benchmark": "engines", "machine": self._machine, "rows": found, "command": [*self.overrides],
            "seconds": time.perf_counter() - begun, "workload": asdict(self.workload), "regressions": worse,
            "against": self.workload.against,
        })  # fmt: skip
        (ctx.run_dir / LOGITS).unlink(missing_ok=True)
        failed = [f"{r['engine']} {r['quant']}" for r in found if r["state"] == "failed"]
        return Benched(
            rows=tuple(found), machine=machine(), regressions=tuple(worse), figures=figures(found),
            tables=tables(found, worse, self.workload.against), summary=_summary(found, worse, self.workload),
            exit_code=against.CODE if worse else StageError.exit_code if failed else 0,
        )  # fmt: skip

    @property
    def _tolerance(self) -> float:
        return against.tolerance(self.workload.tolerance)

    @property
    def _machine(self) -> dict[str, Any]:
        return {
            "kind": machine(), "threads": self._threads, "system": f"{platform.system()} {platform.release()}",
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "python": platform.python_version(),
            "load": os.getloadavg()[0],
        }  # fmt: skip

    @property
    def _threads(self) -> int:
        return self.workload.threads or cores()

    def _baseline(self) -> dict[str, Any] | None:
        given = self.workload.against
        outputs = Path(os.path.expanduser(self.outputs)).absolute()
        return None if given is None else against.baseline(given, outputs, machine())

    def _vocab(self, checkpoint: Checkpoint) -> int:
        found = checkpoint.config.get("vocab_size")
        if not isinstance(found, int):
            kind = checkpoint.config.get("model_type", "unknown")
            raise ConfigError(f"bench: models that read tokens are measured; {kind} has no vocab_size in config.json")
        return found

    def _cases(self, checkpoint: Checkpoint) -> Iterator[Case]:
        """All of them, and which cannot be measured."""
        for quant in self.quants:
            for engine, contender in self.engines.items():
                form = contender.form(quant, checkpoint.config)
                needs = {**contender.needs, **form.needs}
                lacking = [how for module, how in needs.items() if find_spec(module) is None]
                state = "unsupported" if form.why_not else "missing" if lacking else "measured"
                why = form.why_not or (f"not installed; {'; '.join(dict.fromkeys(lacking))}" if lacking else "")
                yield Case(engine, quant, contender, form, state, why)


@dataclass(frozen=True)
class _Run:
    """One benchmark at work."""

    bench: Bench
    ctx: Context
    checkpoint: Checkpoint
    notes: Notes
    _failed: dict[str, str] = field(default_factory=dict)  # by cell

    def rows(self) -> list[dict[str, Any]]:
        cases = list(self.bench._cases(self.checkpoint))
        measured = [case for case in cases if case.state == "measured"]
        if not measured:
            raise StageError("bench: nothing can be measured: " + "; ".join(f"{c.name}: {c.why}" for c in cases))
        (self.ctx.run_dir / LOGS).mkdir(parents=True, exist_ok=True)
        reference = self._quality(REFERENCE, self.bench.reference, self._base(), write=True)
        for case in measured:
            self._export(case.form, case.name)
        for round_ in range(self.bench.workload.rounds):
            for case in measured:
                self._speed(case, round_)
        for case in measured:
            if case.name not in self._failed:
                self._quality(case.name, case.contender, self._place(case.form), write=False)
        return self._summed(cases, reference)

    def _base(self) -> Path:
        """The weights that nothing has quantized: the source, or what it is unpacked."""
        if all(spec.scheme is None for spec in self.checkpoint.store.specs.values()):
            assert self.checkpoint.source is not None
            return self.checkpoint.source
        form = Form("none", "hf")
        self._export(form, REFERENCE)
        if REFERENCE in self._failed:
            raise StageError(f"bench: {REFERENCE}: {self._failed[REFERENCE]}")
        return self._place(form)

    def _place(self, form: Form) -> Path:
        return self.ctx.run_dir / EXPORTS / f"{form.quant}-{form.export}"

    def _export(self, form: Form, name: str) -> None:
        """Write a form of the weights, if it is not there; what stands in the way is noted for `name`."""
        from pipeline.config.overrides import quoted  # Hydra's grammar, which no other worker needs

        place, hidden = self._place(form), self.ctx.run_dir / EXPORTS / f".run-{form.quant}-{form.export}"
        at = f"export {form.quant} {form.export}"
        if self.notes.of(at):
            return
        packed = any(spec.scheme is not None for spec in self.checkpoint.store.specs.values())
        source = self.checkpoint.source if not packed or form == Form("none", "hf") else self._base()
        where = {"model.source": source, "export.path": place, "paths.run": hidden, "paths.outputs": hidden}
        job = cell.Export((
            *self.bench.overrides, "flow=convert", f"quant={form.quant}", f"export={form.export}", "progress=false",
            *(f"{key}={quoted(str(path))}" for key, path in where.items()),
        ))  # fmt: skip
        text_stream.write(f"writing {form.quant} as {form.export}\n")
        found = done(job, self.bench._threads, self._log(at))
        if found.failed:
            self._failed[name] = f"its weights could not be written: {found.failed}"
            return
        self.notes.add(at, 0, {"seconds": found.seconds, "nbytes": _nbytes(place)}, found.others)

    def _speed(self, case: Case, round_: int) -> None:
        work = self.bench.workload
        if case.name in self._failed or self.notes.has(case.name, round_):
            return
        job = cell.Speed(
            case.contender, self._place(case.form), self.bench._threads, work.prefill, work.batches, work.new,
            work.repeats, self.bench._vocab(self.checkpoint),
        )  # fmt: skip
        found = done(job, self.bench._threads, self._log(case.name))
        if found.failed:
            self._failed[case.name] = found.failed
            text_stream.write(f"{case.name}: {found.failed}\n")
            return
        self.notes.add(case.name, round_, found.found, found.others)
        said = ", ".join(f"{n} {m.value:.1f} {m.unit}" for n, m in rows.metrics([found.found]).items() if m.unit != "B")
        text_stream.write(f"round {round_ + 1} of {work.rounds}, {case.name}: {said}\n")

    def _quality(self, name: str, contender: Contender, place: Path, *, write: bool) -> Mapping[str, Any]:
        """What it predicts of the text; of the reference also written to a file.

        Raises:
            StageError: the reference failed.
        """
        at, logits = f"quality {name}", self.ctx.run_dir / LOGITS
        if (noted := self.notes.of(at)) and (not write or logits.exists()):
            return noted[0]["found"]  # type: ignore[no-any-return]
        windows, work = self._windows, self.bench.workload
        job = cell.Quality(
            contender, place, self.bench._threads, windows, logits, write, windows[0][: work.prompt], work.greedy
        )
        text_stream.write(f"scoring with {name}\n")
        found = done(job, self.bench._threads, self._log(at))
        if found.failed and write:
            raise StageError(f"bench: {REFERENCE}, {type(contender).__name__}: {found.failed}")
        if found.failed:
            self._failed[name] = found.failed
            return {}
        self.notes.add(at, 0, found.found, found.others)
        return found.found

    @cached_property
    def _windows(self) -> tuple[tuple[int, ...], ...]:
        """Ids of the text; at random, where the checkpoint has no tokenizer."""
        work = self.bench.workload
        if self.bench.tokenizer.exists(self.checkpoint):
            ids = self.bench.tokenizer.load(self.checkpoint).encode(texts.read(self.bench.text))[: work.tokens]
        else:
            vocab = self.bench._vocab(self.checkpoint)
            ids = np.random.default_rng(0).integers(vocab, size=work.tokens).tolist()
        cut = [tuple(map(int, ids[i : i + work.window])) for i in range(0, len(ids) - work.window + 1, work.window)]
        if not cut:
            raise ConfigError(
                f"bench.text: {len(ids)} tokens, and bench.window={work.window} of them are scored at once"
            )
        return tuple(cut)

    def _log(self, name: str) -> Path:
        return self.ctx.run_dir / LOGS / f"{name.replace(' ', '-')}.txt"

    def _summed(self, cases: Sequence[Case], reference: Mapping[str, Any]) -> list[dict[str, Any]]:
        known = {case.name: self.notes.of(f"quality {case.name}") for case in cases}
        right = {
            case.name: {**rows.quality(known[case.name][0]["found"], reference), "quantized": case.quant != "none"}
            for case in cases
            if known[case.name]
        }
        same = {q: [right[c.name] for c in cases if c.quant == q and c.name in right] for q in self.bench.quants}
        return [self._row(case, right, same[case.quant]) for case in cases]

    def _row(self, case: Case, right: Mapping[str, Any], same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        state, why = case.state, case.why
        if case.name in self._failed:
            state, why = "failed", self._failed[case.name]
        noted = self.notes.of(case.name)
        row: dict[str, Any] = {
            "engine": case.engine, "quant": case.quant, "form": f"{case.form.quant} {case.form.export}", "state": state,
            "why": why, "metrics": {}, "wrong": "", "others": 0.0, "busy": False,
        }  # fmt: skip
        if state != "measured":
            return row
        rounds = [note["found"] for note in noted]
        others = max(note["others"] for note in noted)
        (export,) = self.notes.of(f"export {case.form.quant} {case.form.export}")
        quality = right[case.name]
        metrics = {name: asdict(metric) for name, metric in rows.metrics(rounds).items()}
        if quality["perplexity"] is not None:
            metrics["perplexity"] = asdict(rows.Metric.of([quality["perplexity"]], "", "lower"))
        return row | {
            "metrics": metrics, "latency_ms": rows.latencies(rounds), "quality": quality, "others": others,
            "busy": others > rows.BUSY, "wrong": rows.wrong(quality, same, self.bench.workload.wrong_kl),
            "nbytes": export["found"]["nbytes"], "device_nbytes": rounds[-1]["weights"],
            "versions": rounds[-1]["versions"],
        }  # fmt: skip


def _nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _summary(found: Sequence[Mapping[str, Any]], worse: Sequence[str], work: Workload) -> str:
    count = [row for row in found if row["state"] == "measured"]
    said = f"{len(count)} of {len(found)} cells measured, {work.rounds} rounds in turn"
    wrong = [f"{row['engine']} {row['quant']}" for row in count if row["wrong"]]
    said += f"; ✗ wrong: {', '.join(wrong)}" if wrong else ""
    if work.against is not None:
        said += f"; {len(worse)} worse than {work.against}" if worse else f"; nothing worse than {work.against}"
    return said
