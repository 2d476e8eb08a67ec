"""Execute plans: resume what an earlier run left, run the graph, write the record of each job.

One job or the jobs of a sweep, it is the same: a single run is a sweep of one.

A run's folder holds `config.yaml` (resolved), `run.json` (what this run is), `journal.jsonl` (what is done so far), and
at the end `manifest.json`, `metrics.jsonl` and `errors.csv`. The manifest is written last: a run with one is complete.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.spine import Dask, RunConfig
from pipeline.digest import InputFile, digest_file, identity
from pipeline.errors import ConfigError, PlanError, Problem, SourceError, StageError, StorageError, WeightmillError
from pipeline.events import Events
from pipeline.files import read_whole, write_json
from pipeline.places import reason
from pipeline.planning.memory import BASE_CLIENT, BASE_WORKER, fits_workers, plan_jobs, worker_count
from pipeline.planning.obstacles import obstacles, room, run_folder
from pipeline.planning.recipes import code_of, nodes_of
from pipeline.planning.sweep import Job, Sweep
from pipeline.planning.wiring import Plan, chunk_key
from pipeline.reporting.manifest import Report, build_report, write_config, write_records
from pipeline.running import held, text_stream
from pipeline.running.graph import Failure, Task, connect, run_distributed, run_threads, worker_limits
from pipeline.running.journal import Journal, locked
from pipeline.running.tasks import Graph, Made, Try, build_tasks

Outcome = Report | Exception
Settled = Callable[[int, Outcome], None]

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
    [outcome] = execute_jobs([Job(run, run_dir, tuple(command))], events)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def execute_jobs(jobs: Sequence[Job], events: Events, settled: Settled = lambda i, outcome: None) -> list[Outcome]:
    """Run jobs as one graph; returns the report of each, or what ended it. One that fails does not stop the others.

    Whatever was done stays done, and the same call goes on from there.

    Args:
        jobs: with equal `dask` settings.
        settled: told of each job as soon as it is complete or has failed, from any thread, one at a time.
    """
    outcomes: dict[int, Outcome] = {}

    def settle(i: int, outcome: Outcome) -> None:
        outcomes[i] = outcome
        settled(i, outcome)

    sweep = plan_jobs(jobs)
    begun: dict[int, Attempt] = {}
    with ExitStack() as locks:
        for i in range(len(jobs)):
            try:
                one = Attempt(sweep, i, locks.enter_context(ExitStack()), events)
            except Exception as why:
                settle(i, why)
            else:
                if one.complete is not None:
                    settle(i, one.complete)
                else:
                    begun[i] = one
        try:
            _stop(room([(one.plan, one.brings.run_id, one.known) for one in begun.values()]))
            with text_stream.to(events.text):
                _run(sweep, begun, events, settle)
        except Exception as why:
            for i in (i for i in begun if i not in outcomes):
                settle(i, why)
    return [outcomes[i] for i in range(len(jobs))]


class Attempt:
    """A job while it runs.

    Attributes:
        complete: its report, when there was nothing to do.
        failures: what of it failed, in order.
        waiting: tasks that it waits for.
    """

    def __init__(self, sweep: Sweep, i: int, locks: ExitStack, events: Events):
        """Make its folder ready, and hold the locks.

        Raises:
            PlanError: the plan has problems; nothing was touched. Or something is in the way on disk.
            SourceError, ConfigError: as `_earlier`.
            StorageError: another run is at work.
        """
        self.job, self.plan, self.locks = sweep.jobs[i], sweep.plans[i], locks
        self.complete: Report | None = None
        self.failures: list[Failure] = []
        run, run_dir, plan = self.job.run, self.job.run_dir, self.plan
        if plan.problems:
            kinds = {w.exit_code for w in plan.failures}
            raise PlanError(plan.problems, exit_code=kinds.pop() if len(kinds) == 1 else None)
        what = describe(run, plan)
        _stop(run_folder(plan))
        locks.enter_context(locked(run_dir / ".lock", f"{run_dir}: another run is at work in this folder"))
        self.journal = Journal(run_dir / "journal.jsonl")
        locks.callback(self.journal.close)
        earlier = _earlier(run_dir, what, run.spine.overwrite, events)
        if isinstance(earlier, Report):
            self.complete = earlier
            return
        resuming = earlier == "unfinished" and self.journal.path.exists()
        self.known: Mapping[str, Any] = self.journal.read() if resuming else {}
        outputs = Path(os.path.expanduser(run.spine.paths.outputs)).absolute()
        _stop(obstacles(plan, outputs, identity(what), self.known))
        for work in plan.works.values():
            if hasattr(work, "lock"):
                locks.enter_context(work.lock())
        _stop(obstacles(plan, outputs, identity(what), self.known))  # once more, now that no other run can change it
        if not resuming:
            for name in ("journal.jsonl", "manifest.json"):
                (run_dir / name).unlink(missing_ok=True)
        write_json(run_dir / "run.json", what)
        write_config(run_dir / "config.yaml", run.tree)
        self.started = time.time()
        self.brings = Try(identity(what), self.known, not resuming)
        self.stages = {sweep.names[node]: name for name, node in plan.nodes.items()}
        self.waiting = {*self.stages}
        self._results: dict[str, Any] = {}
        self._chunks: dict[str, Any] = {}
        self._made: dict[str, Any] = {}

    def take_input(self, key: str, file: InputFile, digest: str) -> None:
        self._results[f"input:{file.path}"] = digest
        self.waiting.discard(key)
        if self.known.get(key) != digest:
            self.journal.append(key, digest)

    def take_chunk(self, key: str, record: Mapping[str, Any]) -> None:
        self._chunks[key] = record
        if not record.get("reused", False):
            self.journal.append(key, record)

    def take_node(self, key: str, result: Any, made_in: Path) -> None:
        """The result of a node, or what it measured.

        Args:
            made_in: folder of the job for which it was made; what it writes there is copied.

        Raises:
            StorageError: it cannot be copied.
        """
        if isinstance(result, Made):
            name = self.stages[key.removesuffix(":run").removesuffix(":work")]
            self._made[name] = result.record
            written = getattr(self.plan.nodes[name].stage, "writes", ()) if made_in != self.job.run_dir else ()
            for file in (made_in / w for w in written if (made_in / w).exists()):
                try:
                    shutil.copyfile(file, self.job.run_dir / file.name)
                except OSError as why:
                    raise StorageError(f"{self.job.run_dir / file.name}: {reason(why)}") from None
        elif key in self.waiting:
            self.waiting.discard(key)
            self._results[self.stages[key]] = result

    def report(self) -> Report:
        """What was done, written down; the job is complete then."""
        run_dir, ids = self.job.run_dir, self.brings.run_id
        keys = [chunk_key(ids, name, chunk) for name, work in self.plan.works.items() for chunk in work.chunks]
        records = [self._chunks[k] for k in keys] + [self._made[n] for n in self.plan.nodes if n in self._made]
        command = list(self.job.command)
        report = build_report(self.job.run, self.plan, self._results, records, command, self.started)
        write_records(run_dir, self.job.run, report)
        self.journal.path.unlink(missing_ok=True)
        self.locks.close()
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


def _run(sweep: Sweep, begun: Mapping[int, Attempt], events: Events, settle: Settled) -> None:
    """Run the graph of the jobs in `begun`, and settle each.

    Raises:
        WeightmillError: what ended the only job, or all.
    """
    if not begun:
        return
    alone = len(sweep.jobs) == 1
    conf = sweep.jobs[0].run.spine.dask
    graph = build_tasks(sweep, {i: one.brings for i, one in begun.items()})
    for key in graph.inputs:
        for i in graph.owners[key]:
            begun[i].waiting.add(key)
    events.total(sum(t.weight for t in graph.tasks), sum(map(len, graph.chunks.values())))
    over: set[int] = set()

    def failed(i: int, why: Failure) -> None:
        begun[i].failures.append(why)
        if not conf.keep_going and i not in over:
            over.add(i)
            settle(i, _why(begun[i], keep_going=False))

    def on_done(task: Task, result: Any) -> None:
        several = graph.chunks.get(task.key)
        parts = result if several and len(several) > 1 and isinstance(result, list) else [result]
        for failure in dict.fromkeys(r for r in parts if isinstance(r, Failure)):
            events.say(f"failed: {failure.label}: {failure.error}")
        if isinstance(result, Failure):
            for i in graph.owners[task.key]:
                failed(i, result)
            return
        for n, i in enumerate(graph.owners[task.key]):
            if i in over:
                continue
            try:
                if task.key in graph.inputs:
                    begun[i].take_input(task.key, graph.inputs[task.key], result)
                elif several is None:
                    begun[i].take_node(task.key, result, begun[graph.owners[task.key][0]].job.run_dir)
                elif isinstance(parts[n], Failure):
                    failed(i, parts[n])
                else:
                    begun[i].take_chunk(several[n][1], parts[n])
                if not begun[i].waiting and not begun[i].failures:
                    over.add(i)
                    settle(i, begun[i].report())
            except Exception as why:
                if alone:
                    raise
                over.add(i)
                settle(i, why)
        if several is not None:
            events.chunk(task.label, task.weight, all(isinstance(p, Mapping) and p.get("reused", False) for p in parts))

    def wanted(task: Task) -> bool:
        return any(i not in over for i in graph.owners[task.key])

    _lowered(sweep, graph, replace(conf, keep_going=conf.keep_going or not alone), events, on_done, wanted)
    for i in (i for i in begun if i not in over):
        settle(i, _why(begun[i], keep_going=True))


def _why(one: Attempt, *, keep_going: bool) -> Exception:
    """What ended a job that failed."""
    if not keep_going:
        try:
            one.failures[0].raise_()
        except Exception as why:
            return why
    lines = list(dict.fromkeys(f"{f.label}: {f.error}" for f in one.failures))
    return StageError(f"{len(lines)} tasks failed; what succeeded is kept\n  " + "\n  ".join(lines))


def _lowered(
    sweep: Sweep, graph: Graph, conf: Dask, events: Events, on_done: Callable[[Task, Any], None],
    wanted: Callable[[Task], bool],
) -> None:  # fmt: skip
    """Run the tasks as `conf` says."""
    if not conf.address and conf.scheduler != "distributed":
        try:
            run_threads(graph.tasks, conf, worker_count(conf), on_done, wanted)
        finally:
            held.release()
        return
    workers, memory = worker_count(conf), sweep.memory
    assert memory is not None
    share = max(1, (memory.budget.conversion - BASE_CLIENT) // workers)
    if memory.model:  # one worker at a time holds a model, while it works on chunks too
        share = max(share, BASE_WORKER + memory.model + memory.task * conf.threads_per_worker)
    with connect(conf, workers, share, events.say) as client:
        if memory.budget.total is None:
            fits_workers(memory, worker_limits(client))
        run_distributed(graph.tasks, conf, client, on_done, wanted)
