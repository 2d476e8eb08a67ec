"""Execute plans: resume what an earlier run left, run the graph, write the record of each job.

One job or the jobs of a sweep, it is the same: a single run is a sweep of one. What is one job's business is in
`attempt`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.spine import Dask, RunConfig
from pipeline.errors import StageError
from pipeline.events import Events
from pipeline.model_slot import ModelSlot
from pipeline.planning import kernels
from pipeline.planning.digests import Digests
from pipeline.planning.memory import BASE_CLIENT, BASE_WORKER, fits_workers, plan_jobs, tasks_at_once, worker_count
from pipeline.planning.obstacles import room
from pipeline.planning.rates import Rates
from pipeline.planning.sweep import Job, Sweep
from pipeline.planning.time import learn
from pipeline.records.system import monitored
from pipeline.reporting.manifest import Report
from pipeline.running import peak, text_stream
from pipeline.running.attempt import Attempt, stop_at
from pipeline.running.cluster import connect, worker_limits
from pipeline.running.exports import wait_for
from pipeline.running.graph import Failure, Ref, Task, run_distributed, run_threads
from pipeline.running.tasks import Graph, build_tasks, finish
from pipeline.running.traced import Traced, traced

if TYPE_CHECKING:  # runs are told to a tracker only where there is one
    from pipeline.running.tracking import Tracking

Outcome = Report | Exception
Settled = Callable[[int, Outcome], None]


def execute(run: RunConfig, run_dir: Path, command: list[str], events: Events) -> Report:
    """Run to the end, or raise; whatever was done stays done, and the same call goes on from there.

    Raises:
        PlanError: the plan has problems; nothing was touched.
        SourceError, StorageError, StageError: what stopped the run.
    """
    kernels.prepare([run], events.say)
    about = {"run": run_dir.name, "command": list(command)}
    with traced(run_dir, [run.spine], about, events.say) as trace:
        [outcome] = execute_jobs([Job(run, run_dir, tuple(command))], events, trace=trace)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def execute_jobs(
    jobs: Sequence[Job], events: Events, settled: Settled = lambda i, outcome: None,
    parents: "Mapping[Any, Tracking] | None" = None, trace: Traced | None = None,
) -> list[Outcome]:  # fmt: skip
    """Run jobs as one graph; returns the report of each, or what ended it. One that fails does not stop the others.

    Whatever was done stays done, and the same call goes on from there.

    Args:
        jobs: with equal `dask` settings.
        settled: told of each job as soon as it is complete or has failed, from any thread, one at a time.
        parents: what trackers are told of the sweep that the jobs are of, by tracker.
        trace: where it is told what was done when; None: nowhere.
    """
    outcomes: dict[int, Outcome] = {}
    held: dict[int, Attempt] = {}

    def settle(i: int, outcome: Outcome) -> None:
        outcomes[i] = outcome
        if isinstance(outcome, Exception) and i in held:
            held[i].fail(outcome)
        if trace is not None and len(jobs) > 1:
            trace.settled(jobs[i].name, well=not isinstance(outcome, Exception))
        settled(i, outcome)

    sweep = plan_jobs(jobs)
    digests = Digests()
    begun: dict[int, Attempt] = {}

    def each(step: Callable[[Attempt], None]) -> None:
        for i in [*begun]:
            try:
                step(begun[i])
            except Exception as why:
                del begun[i]
                settle(i, why)

    with ExitStack() as locks, text_stream.to(events.text, events.live):
        for i in range(len(jobs)):
            try:
                parent, stack = (parents or {}).get(jobs[i].run.tracker), locks.enter_context(ExitStack())
                begun[i] = held[i] = Attempt(sweep, i, stack, digests, events.say, parent)
            except Exception as why:
                settle(i, why)
        each(lambda one: one.compare(events))
        for i in [*begun]:
            if (report := begun[i].complete) is not None:
                del begun[i]
                settle(i, report)
        try:
            wait_for([one.exports for one in begun.values()], locks)
            each(lambda one: one.prepare())
            stop_at(room([(one.plan, one.known, one.exports.there) for one in begun.values()]))
            already = peak.begin()
            each(lambda one: one.begin(already))
            with monitored([one.job.run_dir for one in begun.values()], jobs[0].run.spine.monitor) as leave:
                _run(sweep, begun, digests, events, settle, trace, leave)
        except Exception as why:
            for i in (i for i in begun if i not in outcomes):
                settle(i, why)
    return [outcomes[i] for i in range(len(jobs))]


def _learn(sweep: Sweep, jobs: Mapping[int, Attempt], graph: Graph, ended: Mapping[str, float], events: Events) -> None:
    """Keep the rates that this run has measured, for the plans of later ones.

    Args:
        jobs: complete ones.
        ended: when each task was done.
    """
    if sweep.jobs[0].run.spine.dask.address or len(jobs) < len(sweep.jobs):
        return
    whole = sweep.whole
    chunks: list[Mapping[str, Any]] = []
    computed: dict[str, float] = {}
    repeated: dict[str, tuple[float, float]] = {}
    for i, one in jobs.items():
        names = {name: sweep.names[node] for name, node in sweep.plans[i].nodes.items()}
        if one.exports.there or one.known:
            return  # part of the work was done before
        chunks += [
            {**r, "stages": {names.get(n, n): t for n, t in r["stages"].items()}} for r in one.records if "digest" in r
        ]
        computed |= {names[n]: s for n, s in one.computed.items()}
        repeated |= {names[n]: s for n, s in one.repeated.items()}
    finished = {}
    for task in (t for t in graph.tasks if t.fn is finish and t.key in ended):
        before = [ended[a.key] for a in task.args if isinstance(a, Ref) and a.key in ended]
        finished[task.key] = ended[task.key] - max(before, default=ended[task.key])
    rates = Rates.load()
    learn(rates, whole, tasks_at_once(sweep.jobs[0].run.spine.dask), chunks, computed, finished, repeated)
    if why := rates.save():
        events.say(why)


def _run(  # noqa: C901  what becomes of a result, in one place
    sweep: Sweep, begun: Mapping[int, Attempt], digests: Digests, events: Events, settle: Settled,
    trace: Traced | None, leave: Callable[[Path], None],
) -> None:  # fmt: skip
    """Run the graph of the jobs in `begun`, and settle each.

    Args:
        leave: told of a folder in which nothing is to be written any more but by its run.

    Raises:
        WeightmillError: what ended the only job, or all.
    """
    if not begun:
        return
    alone = len(sweep.jobs) == 1
    conf = sweep.jobs[0].run.spine.dask
    models = ModelSlot()
    graph = build_tasks(sweep, {i: one.brings for i, one in begun.items()}, None if conf.remote else models)
    for key in (*graph.inputs, *graph.keys):
        for i in graph.owners[key]:
            begun[i].waiting.add(key)
    events.total(sum(t.weight for t in graph.tasks), sum(map(len, graph.chunks.values())))
    over: set[int] = set()

    def failed(i: int, why: Failure) -> None:
        begun[i].failures.append(why)
        if not conf.keep_going and i not in over:
            over.add(i)
            settle(i, _why(begun[i], keep_going=False))

    ended: dict[str, float] = {}

    def on_done(task: Task, result: Any) -> None:  # noqa: C901
        ended[task.key] = time.perf_counter()
        if trace is not None:
            trace.ended(task, result)
        several = graph.chunks.get(task.key)
        parts = result if several and len(several) > 1 and isinstance(result, list) else [result]
        for failure in dict.fromkeys(r for r in parts if isinstance(r, Failure)):
            events.say(f"failed: {failure.label}: {failure.error}")
        if isinstance(result, Failure):
            for i in graph.owners[task.key]:
                failed(i, result)
            return
        if task.key in graph.inputs:
            digests.add([(graph.inputs[task.key], result)])
        for n, i in enumerate(graph.owners[task.key]):
            if i in over:
                continue
            try:
                if task.key in graph.inputs:
                    begun[i].take_input(task.key, result)
                elif task.key in graph.keys:
                    begun[i].take_keys(task.key, result)
                elif several is None:
                    begun[i].take_node(task.key, result, begun[graph.owners[task.key][0]].job.run_dir)
                elif isinstance(parts[n], Failure):
                    failed(i, parts[n])
                else:
                    begun[i].take_chunk(several[n][1], parts[n])
                if not begun[i].waiting and not begun[i].failures:
                    over.add(i)
                    leave(begun[i].job.run_dir)
                    settle(i, begun[i].report(trace))
            except Exception as why:
                if alone:
                    raise
                over.add(i)
                settle(i, why)
        if several is not None:
            events.chunk(task.label, task.weight, all(isinstance(p, Mapping) and p.get("reused", False) for p in parts))

    def wanted(task: Task) -> bool:
        return any(i not in over for i in graph.owners[task.key])

    tasks: Sequence[Task] = graph.tasks
    asked: Callable[[Task], bool] = wanted
    if trace is not None:
        names = ["" if alone else job.name for job in sweep.jobs]
        owners = {} if alone else {key: [names[i] for i in of] for key, of in graph.owners.items()}
        parts = {} if alone else {key: [names[i] for i, _ in of] for key, of in graph.chunks.items()}
        tasks, asked = trace.tasks(graph.tasks, owners, parts), trace.begins(wanted)
    with models:
        _lowered(sweep, tasks, replace(conf, keep_going=conf.keep_going or not alone), events, on_done, asked)
    for i in (i for i in begun if i not in over):
        settle(i, _why(begun[i], keep_going=True))
    _learn(sweep, {i: one for i, one in begun.items() if i in over and not one.failures}, graph, ended, events)


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
    sweep: Sweep, tasks: Sequence[Task], conf: Dask, events: Events, on_done: Callable[[Task, Any], None],
    wanted: Callable[[Task], bool],
) -> None:  # fmt: skip
    """Run the tasks as `conf` says."""
    if not conf.remote:
        run_threads(tasks, conf, worker_count(conf), on_done, wanted)
        return
    workers, memory = worker_count(conf), sweep.memory
    assert memory is not None
    share = max(1, (memory.budget.conversion - BASE_CLIENT) // workers)
    if memory.model:  # one worker at a time holds a model, while it works on chunks too
        share = max(share, BASE_WORKER + memory.model + memory.task * conf.threads_per_worker)
    with connect(conf, workers, share, events.say) as client:
        if memory.budget.total is None:
            fits_workers(memory, worker_limits(client))
        run_distributed(tasks, conf, client, on_done, wanted)
