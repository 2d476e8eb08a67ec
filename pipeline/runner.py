"""Execute a plan: resume what an earlier run left, run the graph, write the run's record.

A run's folder holds `config.yaml` (resolved), `run.json` (what this run is), `journal.jsonl` (what is done so far), and
at the end `manifest.json`, `metrics.jsonl` and `errors.csv`. The manifest is written last: a run with one is complete.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline import extend, live, meter
from pipeline.digest import code_version, digest_file, identity
from pipeline.errors import ConfigError, PlanError, Problem, SourceError, StageError, WeightmillError
from pipeline.graph import Failure, Ref, Task, connect, run_distributed, run_threads
from pipeline.journal import Journal, locked, write_json
from pipeline.plan import MemoryPlan, Node, Plan, make_plan, timed
from pipeline.report import Report, build_report, write_config, write_records
from pipeline.resolve import OWN_PACKAGES
from pipeline.spine import Dask, RunConfig
from pipeline.stage import Checkpoint, Chunk, Context, InputFile, Needs, Work
from pipeline.tensors.spec import TensorSpec
from pipeline.units import parse_bytes, show_bytes

# Resident bytes of a process before its first chunk, measured with everything imported (Python 3.11, NumPy 2.4), and a
# margin of a fifth. What processes share (libraries) is counted for each.
BASE_THREADS = 80 << 20
BASE_CLIENT = 120 << 20  # with the scheduler of a LocalCluster and Python's resource tracker
BASE_WORKER = 90 << 20
PER_CHUNK = 4 << 10  # a chunk that is planned: its task, its place in the graph, its record
PER_CHUNK_CLUSTER = 12 << 10  # and what the scheduler keeps of it
SMALLEST_CHUNK = 256 << 10


@dataclass(frozen=True, slots=True)
class Events:
    """Where a run tells what it is doing. Called from any thread, one call at a time."""

    say: Callable[[str], None] = lambda text: None
    total: Callable[[int, int], None] = lambda nbytes, chunks: None
    chunk: Callable[[str, int, bool], None] = lambda label, nbytes, reused: None
    text: Callable[[str], None] = lambda text: None


def worker_count(conf: Dask) -> int:
    return conf.workers or len(os.sched_getaffinity(0))


def plan_run(run: RunConfig, run_dir: Path, *, fetch: bool = True) -> Plan:
    """Plan all stages, with chunks (and, where it is ours to choose, workers) that fit `dask.memory`.

    Without `fetch`, a plan to look at: of sources that lie elsewhere an outline is enough.

    Problems are in `Plan.problems`; a run that cannot fit is one of them, and says what would.
    """
    conf = run.spine.dask
    bound = parse_bytes(conf.memory, "dask.memory")
    chunk = parse_bytes(conf.chunk, "dask.chunk")
    ctx = Context(run_dir, run.spine.seed, chunk, run.spine.overwrite, fetch)
    plan = make_plan(run.stages, ctx)
    plan.memory = fit = _memory(plan, conf, bound, worker_count(conf))
    while fit.peak > bound and chunk > SMALLEST_CHUNK and plan.chunks:
        chunk = max(SMALLEST_CHUNK, chunk // 2)
        smaller = make_plan(run.stages, replace(ctx, chunk_nbytes=chunk))
        smaller.memory = _memory(smaller, conf, bound, worker_count(conf))
        if smaller.memory.peak >= fit.peak:  # more chunks now cost more than smaller ones save
            break
        plan, fit = smaller, smaller.memory
    plan.problems += _lacking(plan, conf)
    if fit.peak > bound:
        one = _memory(plan, conf, bound, 1)
        fewer = f" or dask.workers=1 ({show_bytes(one.peak)})" if one.peak <= bound else ""
        model = f", {show_bytes(fit.model)} to run the model (flow=convert does not)" if fit.model else ""
        plan.problems.append(
            Problem(
                "dask.memory",
                f"{conf.memory} is too little: {show_bytes(fit.base)} for the processes and {fit.tasks} × "
                f"{show_bytes(fit.task)} for tasks{model}, the least there can be; "
                f"dask.memory={-(-fit.peak // (1 << 20))}MiB{fewer} would do",
            )
        )
    return plan


def _lacking(plan: Plan, conf: Dask) -> Iterator[Problem]:
    """Resources that a stage asks for and no worker has: its tasks would wait for ever."""
    for node in plan.nodes.values():
        for tag, amount in getattr(node.stage, "resources", {}).items():
            if not conf.address and amount > conf.resources.get(tag, 0):
                text = f"needs {amount} of resource {tag!r}; dask.resources has {conf.resources.get(tag, 'none')}"
                yield Problem(f"stages.{node.name}", text)


def _memory(plan: Plan, conf: Dask, bound: int, workers: int) -> MemoryPlan:
    chunks = plan.chunks
    task = max((c.peak_nbytes for c in chunks), default=0)
    model = max((n.result.host_nbytes for n in plan.nodes.values() if isinstance(n.result, Needs)), default=0)
    if conf.address:  # somebody else's processes: the bound is each worker's
        return MemoryPlan(BASE_WORKER, task, conf.threads_per_worker, bound, model)
    if conf.scheduler == "distributed":
        base = BASE_CLIENT + workers * BASE_WORKER + len(chunks) * PER_CHUNK_CLUSTER
        return MemoryPlan(base, task, workers * conf.threads_per_worker, bound, model)
    return MemoryPlan(BASE_THREADS + len(chunks) * PER_CHUNK, task, workers, bound, model)


def _code(nodes: Mapping[str, Any]) -> str:
    """Version of all code that the run's bytes depend on: ours, the user's folder, and installed plugins it names."""
    root = Path(__file__).parents[1]
    ours = _ours(*(root / p for p in ("pipeline", *OWN_PACKAGES)))
    theirs = [Path(f) for p in sorted(_packages(nodes) - {*OWN_PACKAGES}) for f in import_module(p).__path__]
    theirs += extend.roots()
    return identity([ours, code_version(*theirs)]) if theirs else ours


_ours = cache(code_version)


def _packages(node: Any) -> set[str]:
    """Top-level packages of every `_target_` in a config."""
    if isinstance(node, Mapping):
        own = {str(node["_target_"]).partition(".")[0]} if "_target_" in node else set()
        return own.union(*map(_packages, node.values()))
    return set().union(*map(_packages, node)) if isinstance(node, list | tuple) else set()


def describe(run: RunConfig, plan: Plan) -> dict[str, Any]:
    """What makes this run this run; equal descriptions, equal bytes."""
    nodes = {name: {k: v for k, v in run.nodes[name].items() if k != "remotes"} for name in run.stages}  # see Remote
    return {
        "stages": nodes,
        "seed": run.spine.seed,
        "inputs": [[str(f.path), f.nbytes, f.mtime_ns] for f in plan.inputs],
        "code": _code(nodes),
    }


def execute(run: RunConfig, run_dir: Path, command: list[str], events: Events) -> Report:
    """Run to the end, or raise; whatever was done stays done, and the same call goes on from there.

    Raises:
        PlanError: the plan has problems; nothing was touched.
        SourceError, StorageError, StageError: what stopped the run.
    """
    plan = plan_run(run, run_dir)
    if plan.problems:
        kinds = {w.exit_code for w in plan.failures}
        raise PlanError(plan.problems, exit_code=kinds.pop() if len(kinds) == 1 else None)
    what = describe(run, plan)
    with locked(run_dir):
        journal = Journal(run_dir / "journal.jsonl")
        earlier = _earlier(run_dir, what, run.spine.overwrite, events)
        if isinstance(earlier, Report):
            return earlier
        resuming = earlier == "unfinished" and journal.path.exists()
        if not resuming:
            for name in ("journal.jsonl", "manifest.json"):
                (run_dir / name).unlink(missing_ok=True)
        known = journal.read() if resuming else {}
        obstacles = _obstacles(plan, identity(what), known)
        if obstacles:
            raise PlanError(obstacles, exit_code=5)
        write_json(run_dir / "run.json", what)
        write_config(run_dir / "config.yaml", run.tree)
        started = time.time()
        try:
            with live.to(events.text):
                results, records = _graph(run, plan, identity(what), journal, known, events, fresh=not resuming)
        finally:
            journal.close()
        report = build_report(run, plan, results, records, command, started)
        write_records(run_dir, run, report)
        journal.path.unlink(missing_ok=True)
    return report


def obstacles_ahead(run: RunConfig, plan: Plan, run_dir: Path) -> list[Problem]:
    """What would stop this run on disk, for a plan that is not executed: another run, a target, too little space."""
    what = describe(run, plan)
    try:
        same = json.loads((run_dir / "run.json").read_bytes()) == json.loads(json.dumps(what))
    except (OSError, ValueError):
        same = False
    if same and (run_dir / "manifest.json").exists() and not run.spine.overwrite:
        return []  # complete: running it again does nothing
    try:
        if not same:
            _earlier(run_dir, what, run.spine.overwrite, Events())
        known = Journal(run_dir / "journal.jsonl").read() if same else {}
        return _obstacles(plan, identity(what), known)
    except WeightmillError as why:
        return [Problem("paths.run", str(why))]


def _obstacles(plan: Plan, run_id: str, known: Mapping[str, Any]) -> list[Problem]:
    """What works that can tell (`obstacles`) find in their way, given what an earlier try had done."""
    found = []
    for name, work in plan.works.items():
        if hasattr(work, "obstacles"):
            finished = all(chunk_key(run_id, name, chunk) in known for chunk in work.chunks)
            found += work.obstacles(finished=finished)
    return found


def chunk_key(run_id: str, name: str, chunk: Chunk) -> str:
    """The hash of the run's identity and the chunk, so that a journal line of another run never matches."""
    return f"{name}-{identity([run_id, [str(p) for p in chunk.pieces]])}"


def _earlier(run_dir: Path, what: Mapping[str, Any], overwrite: bool, events: Events) -> Report | str | None:
    """What stands in the folder: this run's report when it is complete, "unfinished" when it can go on, or None.

    Raises:
        SourceError: the source changed since the run in this folder began.
        ConfigError: the folder holds another run, or outputs that are no longer what this run wrote.
    """
    try:
        before = json.loads((run_dir / "run.json").read_bytes())
    except (OSError, ValueError):
        return None
    now = json.loads(json.dumps(what))
    if before != now:
        if overwrite:
            return None
        changed = [k for k in now if before.get(k) != now[k]]
        if changed == ["inputs"]:
            names = ", ".join(_changed_inputs(before["inputs"], now["inputs"]))
            raise SourceError(
                f"{names}: changed since the run in {run_dir} began; overwrite=true starts afresh from the new source"
            )
        if changed == ["code"]:
            raise ConfigError(f"{run_dir} was made by another version of the code; overwrite=true makes it again")
        raise ConfigError(
            f"{run_dir} holds a run with other {' and '.join(changed)}{_first_difference(before, now)}; "
            "overwrite=true replaces it, paths.run=DIR puts this one elsewhere"
        )
    try:
        report = Report.from_json(json.loads((run_dir / "manifest.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return "unfinished"
    if overwrite:
        return None
    for file in report.outputs:
        path = Path(file["path"])
        if not path.exists():
            raise ConfigError(f"{path}: is gone since this run finished; overwrite=true makes it again")
        if digest_file(path).xxh3_128 != file["xxh3_128"]:
            raise ConfigError(f"{path}: was changed since this run finished; overwrite=true makes it again")
    events.say(f"complete already, outputs verified: {run_dir}")
    return replace(report, reused=True)


def _changed_inputs(before: list[Any], now: list[Any]) -> Iterator[str]:
    old = {b[0]: b for b in before}
    yield from (n[0] for n in now if old.pop(n[0], None) != n)
    yield from (f"{name} (gone)" for name in old)


def _first_difference(before: Any, now: Any, where: str = "") -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*now, *before]:
            if before.get(key) != now.get(key) and (key in before) and (key in now):
                return _first_difference(before[key], now[key], f"{where}.{key}" if where else str(key))
    if isinstance(before, str | int | float | bool | None) and isinstance(now, str | int | float | bool | None):
        return f" ({where}: {before} → {now})"
    return f" ({where})" if where else ""


def _graph(
    run: RunConfig, plan: Plan, run_id: str, journal: Journal, known: Mapping[str, Any], events: Events, *, fresh: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the tasks; returns results by stage (and `input:PATH`), and what chunks and eager stages measured."""
    conf = run.spine.dask
    tasks = build_tasks(plan, run_id, known, fresh=fresh, digest_inputs=run.spine.digest_inputs)
    chunk_keys = [t.key for t in tasks if t.fn is do_chunk]
    journaled = {t.key for t in tasks if t.fn in (do_chunk, digest_input)}
    events.total(sum(t.weight for t in tasks), len(chunk_keys))

    def on_done(task: Task, result: Any) -> None:
        if isinstance(result, Failure):
            events.say(f"failed: {result.label}: {result.error}")
        elif task.key in journaled:
            reused = result.get("reused", False) if task.fn is do_chunk else known.get(task.key) == result
            if not reused:
                journal.append(task.key, result)
            if task.fn is do_chunk:
                events.chunk(task.label, task.weight, reused)

    if conf.address or conf.scheduler == "distributed":
        workers = worker_count(conf)
        share = max(1, (parse_bytes(conf.memory, "dask.memory") - BASE_CLIENT) // workers)
        if plan.memory is not None and plan.memory.model:  # one worker at a time holds a model
            share = max(share, BASE_WORKER + plan.memory.model)
        with connect(conf, workers, share, events.say) as client:
            results = run_distributed(tasks, conf, client, on_done)
    else:
        results = run_threads(tasks, conf, worker_count(conf), on_done)
    failures = {f"{f.label}: {f.error}": f for f in results.values() if isinstance(f, Failure)}
    if failures:
        raise StageError(f"{len(failures)} tasks failed; what succeeded is kept\n  " + "\n  ".join(failures))
    results |= {f"input:{t.args[0].path}": results[t.key] for t in tasks if t.fn is digest_input}
    records = [results[k] for k in chunk_keys]
    return results, records + [results[t.key].record for t in tasks if t.fn is run_stage]


def build_tasks(
    plan: Plan, run_id: str, known: Mapping[str, Any], *, fresh: bool, digest_inputs: bool = False
) -> list[Task]:
    """The plan as tasks, in order: each stage's handle, and for work its beginning, chunks and end."""
    tasks: list[Task] = []
    if digest_inputs:
        for file in plan.inputs:
            key = f"input-{identity([run_id, str(file.path)])}"
            tasks.append(Task(key, digest_input, (file, known.get(key)), label=f"digest {file.path.name}"))
    lane: tuple[str, ...] = ()  # models are run one after another: there is one device, and one of them fits
    for node in plan.nodes.values():
        resources = dict(getattr(node.stage, "resources", {}))
        if node.work is None:
            tasks += _result_tasks(node.name, node, plan.context, resources, lane)
            lane = (node.name,) if isinstance(node.result, Needs) else lane
        else:
            tasks += _work_tasks(node, plan, run_id, known, resources, fresh=fresh)
    return tasks


def _result_tasks(
    key: str, node: Node, ctx: Context, resources: Mapping[str, float], lane: tuple[str, ...] = ()
) -> Iterator[Task]:
    """The stage's result under `key`: as planned, or made in the graph when it computes, or builds on what does."""
    if not node.eager and not node.late:
        yield Task(key, give, (node.result,), handle=True, label=key)
        return
    promised = node.result.store.specs if isinstance(node.result, Checkpoint) else None
    args = (node.name, node.stage, promised, ctx, *(Ref(s) for s in node.inputs.values()))
    after = lane if isinstance(node.result, Needs) else ()
    yield Task(f"{key}:run", run_stage, args, after, resources, handle=True, label=node.name)
    yield Task(key, value_of, (Ref(f"{key}:run"),), handle=True, label=key)


def _work_tasks(
    node: Node, plan: Plan, run_id: str, known: Mapping[str, Any], resources: Mapping[str, float], *, fresh: bool
) -> Iterator[Task]:
    name, work, inputs = node.name, node.work, plan.inputs
    assert work is not None
    handle, begun = f"{name}:work", f"{name}:begin"
    yield from _result_tasks(handle, node, plan.context, resources)
    yield Task(begun, begin, (Ref(handle), fresh), label=f"{name} begin")
    keys = []
    for chunk in work.chunks:
        key = chunk_key(run_id, name, chunk)
        keys.append(key)
        yield Task(
            key, do_chunk, (Ref(handle), chunk, known.get(key)), (begun,), resources,
            label=f"{name} {chunk}", weight=chunk.nbytes_in,
        )  # fmt: skip
    yield Task(name, finish, (Ref(handle), inputs, *map(Ref, keys)), (begun,), label=f"{name} finish")


def give(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Made:
    """What a stage's `run` gave in the graph, and what it measured."""

    value: Any
    record: dict[str, Any]


def run_stage(name: str, stage: Any, promised: Mapping[str, TensorSpec] | None, ctx: Context, *inputs: Any) -> Made:
    """Run a stage in the graph.

    Raises:
        StageError: it gives other tensors than its plan promised.
    """
    with meter.metered() as measured, meter.stage(name):
        value = timed(stage.run(ctx, *inputs), name, inputs)
    if promised is not None and (given := dict(value.store.specs)) != promised:
        different = [t for t in {**promised, **given} if promised.get(t) != given.get(t)]
        first = f"{different[0]!r}: planned {promised.get(different[0])}, got {given.get(different[0])}"
        raise StageError(f"stage {name!r} gives other tensors than its `plan` promised; {first}")
    return Made(value, measured.record())


def value_of(made: Made) -> Any:
    return made.value


def begin(work: Work[Any], fresh: bool) -> None:
    work.begin(fresh=fresh)


def do_chunk(work: Work[Any], chunk: Chunk, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Do the chunk unless what `known` says was written is still there."""
    if known is not None and work.digest(chunk) == known["digest"]:
        return {**known, "reused": True}
    start = time.perf_counter()
    with meter.metered() as measured:
        digest = work.do(chunk)
    return {"digest": digest, "seconds": time.perf_counter() - start, **measured.record()}


def finish(work: Work[Any], inputs: tuple[InputFile, ...], *records: Mapping[str, Any]) -> Any:
    for file in inputs:
        unchanged(file)
    return work.finish(records)


def digest_input(file: InputFile, known: str | None) -> str:
    unchanged(file)
    digest = known or digest_file(file.path).xxh3_128
    unchanged(file)
    return digest


def unchanged(file: InputFile) -> None:
    """Raises SourceError when the file is not the one that was planned."""
    try:
        stat = file.path.stat()
    except OSError as why:
        raise SourceError(f"{file.path}: {why.strerror}; it was there when the run began") from None
    if (stat.st_size, stat.st_mtime_ns) != (file.nbytes, file.mtime_ns):
        raise SourceError(f"{file.path}: changed while it was being read; the output would mix two versions")
