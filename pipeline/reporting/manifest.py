"""What a run did, as data: the record that `manifest.json` is."""

import math
import platform
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.spine import RunConfig
from pipeline.digest import Digested, digest_file
from pipeline.errors import StageError, short
from pipeline.figures import figures_of
from pipeline.hooks import optional
from pipeline.meter import Declined, count_declined
from pipeline.planning.code import version_of
from pipeline.planning.wiring import Node, Plan, store_of
from pipeline.records.environment import environment
from pipeline.records.lost import stats_of
from pipeline.reporting import unused
from pipeline.reporting.card import Card
from pipeline.reporting.sizes import nbytes_of, source_nbytes
from pipeline.stage import Checkpoint, Exported, ResultHooks, WorkHooks
from pipeline.tensors.spec import TensorSpec, encodings, group_of
from pipeline.tensors.stats import ErrorStats, Gain
from pipeline.units import show_bytes, show_seconds

LONGEST_TEXT = 1000
DISTRIBUTIONS = ("weightmill", "numpy", "ml_dtypes", "dask", "distributed", "hydra-core", "omegaconf", "xxhash")


@dataclass(frozen=True, slots=True, repr=False)
class Report(Card):
    """A finished run. JSON-able field by field; `manifest.json` is this.

    Attributes:
        run: the run's folder.
        command: overrides as typed.
        started: seconds since the epoch.
        seconds: from when the run began, or the sweep that it is of, to its last task.
        inputs: path, nbytes, mtime_ns and xxh3_128 of every file read (of weights when it was asked for).
        outputs: path, nbytes and xxh3_128 of every file written.
        stages: name, tensors, nbytes_in, nbytes_out, seconds (summed over workers).
        errors: group, encoding, tensors, count, max_abs, rmse, sqnr_db.
        tensors: the same by tensor.
        gains: name, group, encoding, by, signal and `lost` (step → what outputs lost after it) of every tensor that was
            quantized in several steps, see `pipeline.tensors.stats.Gain`.
        nonfinite: name and encoding of every tensor that was written with NaN or infinities, and the `count` of its
            values, or of scales where it is packed, that are such.
        nbytes_bf16: what all values take as bf16; nbytes_out: what they take as written; nbytes_source: in the source.
        encodings: what is packed of what it gives: encoding → values.
        chunks: chunks in all, and how many an earlier try had done.
        backends: op and backend of every kernel that ran.
        declined: op, backend, reason, ran (the backend that did it instead) and times, of every kernel that could not.
        ignored: stage, tensor (or leaf of the source) and reason of everything that was left out.
        unused: setting (as typed) and reason, of everything that was typed and that no stage looks at.
        predicted: what (memory, device, disk, time), unit (bytes or s), planned and measured: how far off the plan was.
            Planned are bounds, but for the time, which is None where `no_rate_yet` names stages. Memory is that of all
            processes, each at its most.
        versions: of Python and the libraries that matter.
        reused: the run was complete already; nothing was done.
        chosen: stage → which option it took, and why, where that was left to it; and what to know of what it writes.
        results: what stages gave that is neither a checkpoint nor an export, by stage.
        exports: stage → the folder that it exported to.
        traces: what was asked for of `trace=true`: `trace.json`, and of each stage that jax.profiler watched the folder
            of what that wrote; by paths from the run's folder.
        found: stage → where its result was kept, which an earlier run had found; its times are of then.
        environment: what of the machine and the process may change bits, see `pipeline.records.environment`.
        tracked: where a tracker was told of it: `place`, `run` there, and `problem`, where it was not told all. Of a
            run just made, and in no manifest, how much that was: `told`, and `missing`.
        exit_code: of the process: the largest `exit_code` that a result has (a comparison that found differences).
    """

    run: str
    command: list[str]
    started: float
    seconds: float
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    tensors: list[dict[str, Any]]
    nbytes_bf16: int
    nbytes_in: int
    nbytes_out: int
    chunks: dict[str, int]
    backends: list[list[str]]
    versions: dict[str, str]
    reused: bool = field(default=False, compare=False)
    chosen: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    declined: list[dict[str, Any]] = field(default_factory=list)
    ignored: list[dict[str, Any]] = field(default_factory=list)
    found: dict[str, str] = field(default_factory=dict)
    predicted: list[dict[str, Any]] = field(default_factory=list)
    nbytes_source: int = 0
    encodings: dict[str, int] = field(default_factory=dict)
    exports: dict[str, str] = field(default_factory=dict)
    tracked: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)
    gains: list[dict[str, Any]] = field(default_factory=list)
    nonfinite: list[dict[str, Any]] = field(default_factory=list)
    unused: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Report":
        names = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in value.items() if k in names})

    @property
    def ratio(self) -> float:
        """Size as bf16 over size as written."""
        return self.nbytes_bf16 / self.nbytes_out if self.nbytes_out else 1.0

    @property
    def bits_per_weight(self) -> float:
        """Effective: scales and everything else counted."""
        return 16 / self.ratio

    @property
    def figures(self) -> list[dict[str, Any]]:
        """What stages found, a row each: stage, name, value, unit, better; what pandas takes, as `stages`, `errors` and
        `tensors` are."""
        return [
            {"stage": stage, "name": name, "value": getattr(v, "value", v)}
            | {"unit": getattr(v, "unit", ""), "better": getattr(v, "better", "")}
            for stage, result in self.results.items()
            for name, v in figures_of(result).items()
        ]

    @property
    def shown(self) -> list[Any]:
        from pipeline.reporting.tables import tables  # which take reports

        pictures = sorted(Path(self.run).glob("*.png")) if Path(self.run).is_dir() else []
        return [*tables(self), *pictures, *self.places]

    @property
    def places(self) -> list[Path]:
        """Where to look for what it made: the folders of its exports, and last the run's own."""
        return [*map(Path, self.exports.values()), Path(self.run)]

    def __repr__(self) -> str:
        found = [f"{name} {v}" for result in self.results.values() for name, v in figures_of(result).items()]
        size = f"{show_bytes(self.nbytes_out)}, {self.bits_per_weight:.3f} bits a weight"
        return f"report: {', '.join([size, *found, show_seconds(self.seconds)])}: {self.run}"

    @property
    def error(self) -> ErrorStats:
        return sum((stats_of(t) for t in self.tensors), ErrorStats())


def versions() -> dict[str, str]:
    found = {name: version for name in DISTRIBUTIONS if (version := version_of(name)) is not None}
    return {"python": platform.python_version(), **found}


def build_report(
    run: RunConfig, plan: Plan, results: Mapping[str, Any], records: Iterable[Mapping[str, Any]], command: list[str],
    started: float, found: Mapping[str, str] | None = None,
) -> Report:  # fmt: skip
    """Sum the chunks' records, in plan order, so that equal runs give equal figures."""
    stages: dict[str, dict[str, Any]] = {n: _stage_row(n) for n in plan.nodes}
    errors: dict[str, ErrorStats] = {}
    gains: dict[str, Gain] = {}
    nonfinite: Counter[str] = Counter()
    backends: set[tuple[str, ...]] = set()
    declined: Counter[Declined] = Counter()
    done = {"all": 0, "reused": 0}
    counted: set[str] = set()
    for record in records:
        done["all"] += "digest" in record
        done["reused"] += bool(record.get("reused"))
        chunk = "digest" in record
        for name, tally in record["stages"].items():
            # Another stage in one task has read once more what chunks have read already.
            if not chunk and name in counted and name != record.get("of"):
                continue
            row = stages.setdefault(name, _stage_row(name))  # a stage may time parts of its work under names of its own
            for key in ("seconds", "nbytes_in", "nbytes_out"):
                row[key] += tally[key]
            if chunk:
                counted.add(name)
        if not chunk:
            record = {**record, "errors": {n: e for n, e in record["errors"].items() if n not in errors}}
            record["gains"] = {n: g for n, g in record.get("gains", {}).items() if n not in gains}
        for name, sums in record["errors"].items():
            errors[name] = errors.get(name, ErrorStats()) + ErrorStats.from_json(sums)
        for name, of in record.get("gains", {}).items():  # which an earlier version did not write down
            gains[name] = gains.get(name, Gain()) + Gain(*of)
        nonfinite.update(record.get("nonfinite", {}))  # as little
        backends |= {tuple(b) for b in record["backends"]}
        for *what, times in record["declined"]:
            count_declined(declined, tuple(what), times)
    specs: Mapping[str, TensorSpec] = {}
    nbytes_out = 0
    for name, node in plan.nodes.items():
        if (store := store_of(node)) is not None:
            specs, nbytes_out = store.specs, nbytes_of(node)
        stages[name]["tensors"] = len(specs)
    tensors = [
        _error_row(n, e) | {"group": group_of(n), "encoding": specs[n].encoding if n in specs else ""}
        for n, e in errors.items()
    ]
    groups: dict[tuple[str, str], list[ErrorStats]] = {}
    for row in tensors:
        groups.setdefault((row["group"], row["encoding"]), []).append(errors[row["name"]])
    return Report(
        run=str(plan.context.run_dir),
        command=command,
        started=started,
        seconds=time.time() - started,
        inputs=[
            {
                "path": str(f.path),
                "nbytes": f.nbytes,
                "mtime_ns": f.mtime_ns,
                "xxh3_128": f.xxh3_128 or results.get(f"input:{f.path}"),
            }
            for f in plan.inputs
        ],
        outputs=[{"path": str(f.path), "nbytes": f.nbytes, "xxh3_128": f.xxh3_128} for f in _outputs(plan, results)],
        stages=list(stages.values()),
        errors=[
            _error_row(group, sum(s, ErrorStats())) | {"tensors": len(s), "encoding": encoding}
            for (group, encoding), s in groups.items()
        ],
        tensors=tensors,
        gains=[
            {"name": n, "group": group_of(n), "encoding": specs[n].encoding if n in specs else "", **plain(g)}
            for n, g in gains.items()
        ],
        nonfinite=[
            {"name": n, "encoding": specs[n].encoding if n in specs else "", "count": count}
            for n, count in sorted(nonfinite.items())
        ],
        nbytes_bf16=sum(2 * s.size for s in specs.values()),
        nbytes_in=sum(f.nbytes for f in plan.inputs),
        nbytes_out=nbytes_out,
        nbytes_source=source_nbytes(plan),
        encodings=encodings(specs.values()),
        chunks=done,
        backends=sorted(list(b) for b in backends),
        declined=[
            {"op": op, "backend": backend, "reason": reason, "ran": ran, "times": times}
            for (op, backend, reason, ran), times in sorted(declined.items())
        ],
        ignored=left_out(plan),
        unused=unused.rows(run.unread.values()),
        versions=versions(),
        environment=environment(),
        chosen=chosen(plan),
        exports={n: str(r.path) for n in plan.nodes if isinstance(r := results[n], Exported)},
        found=dict(found or {}),
        exit_code=max((optional(results[n], ResultHooks, "exit_code") for n in plan.nodes), default=0),
        results={n: plain(found) for n in plan.nodes if (found := _found(plan, results, n)) is not None},
    )


def _found(plan: Plan, results: Mapping[str, Any], name: str) -> Any:
    """What a stage has to tell: its result, or of a checkpoint that it made the report."""
    result = results[name]
    if not isinstance(result, Checkpoint):
        return None if isinstance(result, Exported) else result
    given = (results[source] for source in plan.nodes[name].inputs.values())
    passed_on = any(isinstance(g, Checkpoint) and g.report == result.report for g in given)
    return result.report if result.report and not passed_on else None


def left_out(plan: Plan) -> list[dict[str, Any]]:
    """What stages left out, each under the stage that did: stage, tensor and reason."""
    rows = []
    for name, node in plan.nodes.items():
        before = {i for s in node.inputs.values() for i in _ignored(plan.nodes[s]).items()}
        own = _ignored(node)
        rows += [{"stage": name, "tensor": n, "reason": why} for n, why in own.items() if (n, why) not in before]
    return rows


def _ignored(node: Node) -> Mapping[str, str]:
    """What a stage's result, its work and its computing leave out."""
    given = node.result.ignored if isinstance(node.result, Checkpoint) else optional(node.work, WorkHooks, "ignored")
    return {**given, **(node.takes.ignored if node.takes is not None else {})}


def chosen(plan: Plan) -> dict[str, str]:
    """See `Report.chosen`."""
    said = {n: (optional(w, WorkHooks, "chosen"), *optional(w, WorkHooks, "notes")) for n, w in plan.works.items()}
    return {name: text for name, parts in said.items() if (text := "; ".join(filter(None, parts)))}


def _stage_row(name: str) -> dict[str, Any]:
    return {"name": name, "tensors": 0, "nbytes_in": 0, "nbytes_out": 0, "seconds": 0.0}


def _outputs(plan: Plan, results: Mapping[str, Any]) -> list[Digested]:
    """Every file that was written: as an export digested it, or else as other work promised it.

    Raises:
        StageError: work did not write a file that it promised.
    """
    found = [f for r in results.values() if isinstance(r, Exported) for f in r.files]
    for name, work in plan.works.items():
        if not isinstance(results[name], Exported):
            missing = [str(f.path) for f in work.outputs if not f.path.is_file()]
            if missing:
                raise StageError(f"stage {name!r} promised files and did not write them: {', '.join(missing)}")
            found += [digest_file(f.path) for f in work.outputs]
    return found


def plain(value: Any) -> Any:
    """`value` as JSON holds it: dataclasses as mappings, NumPy scalars as numbers, what has no such form as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, np.generic):
        return plain(value.item())
    return short(str(value), LONGEST_TEXT)


def _error_row(name: str, e: ErrorStats) -> dict[str, Any]:
    sqnr = e.sqnr_db
    return {
        "name": name, "count": e.count, "max_abs": e.max_abs, "rmse": e.rmse,
        "sqnr_db": sqnr if abs(sqnr) != float("inf") else None, "sq_error": e.sq_error, "sq_signal": e.sq_signal,
    }  # fmt: skip
