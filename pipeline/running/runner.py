"""Execute a plan: resume what an earlier run left, run the graph, write the run's record.

A run's folder holds `config.yaml` (resolved), `run.json` (what this run is), `journal.jsonl` (what is done so far), and
at the end `manifest.json`, `metrics.jsonl` and `errors.csv`. The manifest is written last: a run with one is complete.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.spine import RunConfig
from pipeline.digest import digest_file, identity
from pipeline.errors import ConfigError, PlanError, Problem, SourceError, StageError, StorageError, WeightmillError
from pipeline.events import Events
from pipeline.files import read_whole, write_json
from pipeline.hooks import optional
from pipeline.planning.memory import BASE_CLIENT, BASE_WORKER, fits_workers, plan_run, tasks_at_once, worker_count
from pipeline.planning.obstacles import obstacles, run_folder
from pipeline.planning.rates import Rates
from pipeline.planning.recipes import code_of, nodes_of
from pipeline.planning.time import learn
from pipeline.planning.wiring import Plan
from pipeline.reporting.manifest import Report, build_report, write_config, write_records
from pipeline.running import held, peak, text_stream
from pipeline.running.graph import Failure, Ref, Task, connect, run_distributed, run_threads, worker_limits
from pipeline.running.journal import Journal, locked
from pipeline.running.tasks import build_tasks, digest_input, do_chunk, finish, run_stage
from pipeline.stage import WorkHooks

MOST_RECORD_NBYTES = 1 << 30  # a manifest: a row for every tensor


def describe(run: RunConfig, plan: Plan) -> dict[str, Any]:
    """What makes this run this run; equal descriptions, equal bytes."""
    nodes = nodes_of(run)
    return {
        "stages": nodes,
        "seed": run.spine.seed,
        "inputs": [f.identity for f in plan.inputs],
        "code": code_of(nodes),
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
    with ExitStack() as locks:
        _stop(run_folder(plan))
        locks.enter_context(locked(run_dir / ".lock", f"{run_dir}: another run is at work in this folder"))
        journal = Journal(run_dir / "journal.jsonl")
        earlier = _earlier(run_dir, what, run.spine.overwrite, events)
        if isinstance(earlier, Report):
            return earlier
        resuming = earlier == "unfinished" and journal.path.exists()
        known = journal.read() if resuming else {}
        outputs = Path(os.path.expanduser(run.spine.paths.outputs)).absolute()
        _stop(obstacles(plan, outputs, identity(what), known))
        for work in plan.works.values():
            if (lock := optional(work, WorkHooks, "lock")) is not None:
                locks.enter_context(lock())
        _stop(obstacles(plan, outputs, identity(what), known))  # once more, now that no other run can change it
        if not resuming:
            for name in ("journal.jsonl", "manifest.json"):
                (run_dir / name).unlink(missing_ok=True)
        write_json(run_dir / "run.json", what)
        write_config(run_dir / "config.yaml", run.tree)
        started = time.time()
        peak.begin()
        try:
            with text_stream.to(events.text):
                results, records, times = _graph(run, plan, identity(what), journal, known, events, fresh=not resuming)
        finally:
            journal.close()
        report = build_report(run, plan, results, records, command, started)
        report = replace(report, predicted=_kept_to(run, plan, report, records))
        _learn(run, plan, records, times, events)
        write_records(run_dir, run, report)
        journal.path.unlink(missing_ok=True)
    return report


def obstacles_ahead(run: RunConfig, plan: Plan, run_dir: Path) -> list[Problem]:
    """What would stop this run on disk, for a plan that is not executed: another run, a target, too little space."""
    if found := list(run_folder(plan)):
        return found
    what = describe(run, plan)
    try:
        same = json.loads(read_whole(run_dir / "run.json")) == json.loads(json.dumps(what))
    except (SourceError, ValueError):
        same = False
    if same and (run_dir / "manifest.json").exists() and not run.spine.overwrite:
        return []  # complete: running it again does nothing
    try:
        if not same:
            _earlier(run_dir, what, run.spine.overwrite, Events())
        known = Journal(run_dir / "journal.jsonl").read() if same else {}
        return obstacles(plan, Path(os.path.expanduser(run.spine.paths.outputs)).absolute(), identity(what), known)
    except WeightmillError as why:
        return [Problem("paths.run", str(why))]


def _stop(found: Iterable[Problem]) -> None:
    """Raises PlanError, with the exit code of a StorageError, when there is something in the way."""
    if problems := list(found):
        raise PlanError(problems, exit_code=StorageError.exit_code)


def _earlier(run_dir: Path, what: Mapping[str, Any], overwrite: bool, events: Events) -> Report | str | None:
    """What stands in the folder: this run's report when it is complete, "unfinished" when it can go on, or None.

    Raises:
        SourceError: the source changed since the run in this folder began.
        ConfigError: the folder holds another run, or outputs that are no longer what this run wrote.
    """
    try:
        before = dict(json.loads(read_whole(run_dir / "run.json")))
    except (SourceError, ValueError, TypeError):
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
        report = Report.from_json(json.loads(read_whole(run_dir / "manifest.json", MOST_RECORD_NBYTES)))
    except (SourceError, ValueError, KeyError, TypeError, AttributeError):
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


def _kept_to(run: RunConfig, plan: Plan, report: Report, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """See `Report.predicted`."""
    mine, conf = [r for r in records if not r.get("reused")], run.spine.dask
    workers: dict[int, int] = {}
    for pid, nbytes in (r["process"] for r in mine):
        workers[pid] = max(nbytes, workers.get(pid, 0))
    main = {} if conf.address else {os.getpid(): peak.nbytes()}
    found = {**workers, **main}.values()  # with `address`, a plan is of one worker
    assert plan.memory is not None
    rows = [
        ("memory", "bytes", plan.memory.peak, max(found, default=0) if conf.address else sum(found)),
        ("device", "bytes", max((t.device_nbytes for t in plan.takes.values()), default=0),
         max((r["device_nbytes"] for r in mine), default=0)),
        ("disk", "bytes", plan.disk_nbytes,
         sum(f["nbytes"] for f in report.outputs) + sum(r["written"] for r in mine)),
        ("time", "s", plan.time.seconds if plan.time is not None else None, report.seconds),
    ]  # fmt: skip
    unknown = list(plan.time.unknown) if plan.time is not None else []
    return [
        {"what": what, "unit": unit, "planned": planned, "measured": measured}
        | ({"no_rate_yet": unknown} if what == "time" and unknown else {})
        for what, unit, planned, measured in rows
        if planned or measured
    ]


def _learn(
    run: RunConfig, plan: Plan, records: Iterable[Mapping[str, Any]], times: Mapping[str, float], events: Events
) -> None:
    """Keep the rates that this run has measured, for the plans of later ones."""
    conf = run.spine.dask
    if conf.address:
        return
    rates = Rates.load()
    computed = {n: times[n] for n in plan.takes if n in times}
    finished = {n: times[n] for n in plan.works if n in times}
    learn(rates, plan, tasks_at_once(conf), [r for r in records if "digest" in r], computed, finished)
    if why := rates.save():
        events.say(why)


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
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, float]]:
    """Run the tasks; returns results by stage (and `input:PATH`), what chunks and stages that compute measured, and
    seconds: of a stage that computes, and of the last step of work."""
    conf = run.spine.dask
    tasks = build_tasks(plan, run_id, known, fresh=fresh, digest_inputs=run.spine.digest_inputs)
    chunk_keys = [t.key for t in tasks if t.fn is do_chunk]
    journaled = {t.key for t in tasks if t.fn in (do_chunk, digest_input)}
    events.total(sum(t.weight for t in tasks), len(chunk_keys))

    ended: dict[str, float] = {}

    def on_done(task: Task, result: Any) -> None:
        ended[task.key] = time.perf_counter()
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
        assert plan.memory is not None
        share = max(1, (plan.memory.budget.conversion - BASE_CLIENT) // workers)
        if plan.memory.model:  # one worker at a time holds a model, while it works on chunks too
            share = max(share, BASE_WORKER + plan.memory.model + plan.memory.task * conf.threads_per_worker)
        with connect(conf, workers, share, events.say) as client:
            if plan.memory.budget.total is None:
                fits_workers(plan.memory, worker_limits(client))
            results = run_distributed(tasks, conf, client, on_done)
    else:
        try:
            results = run_threads(tasks, conf, worker_count(conf), on_done)
        finally:
            held.release()
    failures = {f"{f.label}: {f.error}": f for f in results.values() if isinstance(f, Failure)}
    if failures:
        raise StageError(f"{len(failures)} tasks failed; what succeeded is kept\n  " + "\n  ".join(failures))
    results |= {f"input:{t.args[0].path}": results[t.key] for t in tasks if t.fn is digest_input}
    records = [results[k] for k in chunk_keys]
    times = {}
    for task in tasks:
        if task.fn is run_stage:
            times[task.label] = sum(t["seconds"] for t in results[task.key].record["stages"].values())
        elif task.fn is finish:
            before = [ended[a.key] for a in task.args if isinstance(a, Ref) and a.key in ended]
            times[task.key] = ended[task.key] - max(before)
    return results, records + [results[t.key].record for t in tasks if t.fn is run_stage], times
