"""Plan a run so that it fits: chunks as small, and problems as clear, as `dask.memory` makes them."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.config.spine import Dask, RunConfig
from pipeline.errors import PlanError, Problem
from pipeline.hooks import optional
from pipeline.ops import kernels_of
from pipeline.planning import kernels
from pipeline.planning.budget import PERCENT, SHARE, budget
from pipeline.planning.digests import Digests
from pipeline.planning.identity import keyed
from pipeline.planning.launchers import started_several
from pipeline.planning.rates import Rates
from pipeline.planning.sweep import Job, Sweep, group, together
from pipeline.planning.time import time_plan
from pipeline.planning.wiring import MemoryPlan, Node, Plan, make_plan, store_of
from pipeline.stage import Context, Footprint, Gang, StageHooks
from pipeline.units import parse_bytes, show_bytes

# Resident bytes of a process before its first chunk, measured with everything imported (Python 3.11, NumPy 2.4), and a
# margin of a fifth. What processes share (libraries) is counted for each.
BASE_THREADS = 84 << 20
BASE_CLIENT = 120 << 20  # with the scheduler of a LocalCluster and Python's resource tracker
BASE_WORKER = 90 << 20
PER_CHUNK = 4 << 10  # a chunk that is planned: its task, its place in the graph, its record
PER_CHUNK_CLUSTER = 12 << 10  # and what the scheduler keeps of it
# A tensor (its specs, parts, leaves, pieces, rows of the report) and a file that is written; measured with 10,000 and
# 100,000 tensors, kept as they are and quantized.
PER_TENSOR = 6 << 10
PER_FILE = 3 << 10
PER_TENSOR_CLIENT = 8 << 10  # the same, pickled, on its way to the workers and at the scheduler
PER_TENSOR_WORKER = 4 << 10
# What a process keeps that has run a model: JAX, programs, and heaps that are not given back. Measured after statistics
# of blocks of gpt-oss-20b's shapes.
RESIDENT = 700 << 20
SMALLEST_CHUNK = 256 << 10


def worker_count(conf: Dask) -> int:
    return conf.workers or len(os.sched_getaffinity(0))


def tasks_at_once(conf: Dask) -> int:
    return worker_count(conf) * (conf.threads_per_worker if conf.scheduler == "distributed" else 1)


def plan_run(run: RunConfig, run_dir: Path, *, fetch: bool = True, override: str = "{}") -> Plan:
    """The plan of a single run, see `plan_jobs`."""
    [plan] = plan_jobs([Job(run, run_dir)], fetch=fetch, override=override).plans
    return plan


def plan_jobs(jobs: Sequence[Job], *, fetch: bool = True, override: str = "{}") -> Sweep:
    """Plan all stages of all jobs as one, with chunks that fit `dask.memory`.

    Problems are in `Plan.problems` of each; a job that cannot fit has one, and says what would. Jobs that have none go
    on without those that do.

    Args:
        jobs: with equal `dask` settings.
        fetch: False: a plan to look at; of sources that lie elsewhere an outline is enough.
        override: how an override is written where it would be given, for problems that name one.
    """
    refused: dict[int, Problem] = {}
    while True:
        sweep, memory = _smaller_until_it_fits(jobs, refused, fetch)
        conf, sound = jobs[0].run.spine.dask, sweep.sound
        unfit = {} if memory.fits else {i: m for i in sound if not (m := _alone(sweep.plans[i], conf)).fits}
        if unfit and len(jobs) > 1:  # the others may fit without them
            refused |= {i: _too_little(m, _alone(sweep.plans[i], conf, 1), override) for i, m in unfit.items()}
            continue
        if not memory.fits:
            one = memory if len(sound) > 1 else _alone(sweep.plans[0], conf, 1)
            for i in sound:
                sweep.plans[i].problems.append(_too_little(memory, one, override, len(sound)))
        if not conf.address:  # whose machines are not this one
            rates = Rates.load()
            for plan in sweep.plans:
                plan.time = time_plan(plan, rates, tasks_at_once(conf))
            sweep.time = time_plan(sweep.whole, rates, tasks_at_once(conf)) if len(jobs) > 1 else sweep.plans[0].time
        return sweep


def _smaller_until_it_fits(
    jobs: Sequence[Job], refused: Mapping[int, Problem], fetch: bool
) -> tuple[Sweep, MemoryPlan]:
    conf = jobs[0].run.spine.dask
    chunk = parse_bytes(conf.chunk, "dask.chunk")
    sweep, memory = _planned(jobs, refused, chunk, fetch)
    while not memory.fits and chunk > SMALLEST_CHUNK and sweep.groups:
        chunk = max(SMALLEST_CHUNK, chunk // 2)
        smaller, less = _planned(jobs, refused, chunk, fetch)
        if less.peak >= memory.peak:  # more chunks now cost more than smaller ones save
            break
        sweep, memory = smaller, less
    return sweep, memory


def _planned(jobs: Sequence[Job], refused: Mapping[int, Problem], chunk: int, fetch: bool) -> tuple[Sweep, MemoryPlan]:
    """All jobs with chunks of `chunk` bytes, as one, and the memory that takes.

    Args:
        refused: jobs that are known not to fit.
    """
    conf, plans, digests = jobs[0].run.spine.dask, [], Digests()
    for i, (run, run_dir) in enumerate((job.run, job.run_dir) for job in jobs):
        spine = run.spine
        ctx = Context(run_dir, spine.seed, chunk, spine.overwrite, fetch, monitor=spine.monitor)
        plans.append(make_plan(run.stages, ctx))
        plans[i].tracker_nbytes = run.tracker.host_nbytes if run.tracker is not None else 0
        keyed(run, plans[i], digests.of)
        plans[i].problems += [*_lacking(plans[i], conf), *kernels.refused(plans[i]), *_not_installed(run.tracker)]
        if not conf.address:  # or it may well be one of several, of which others are workers (dask-mpi)
            plans[i].problems += started_several(max(map(_processes, plans[i].nodes.values()), default=1))
        plans[i].problems += [refused[i]] if i in refused else []
    sweep = together(jobs, plans, chunk // 2)
    if len(jobs) > 1:
        for i in sweep.sound:
            keyed(jobs[i].run, sweep.plans[i], digests.of)
    sound = [sweep.plans[i] for i in sweep.sound]
    chunks = sum(len(plan.chunks) for plan in sound)
    workers = worker_count(conf)
    without = _memory(sound, chunks, 0, conf, workers)
    sweep.groups = group(sweep, (without.budget.conversion - without.base) // without.tasks)
    sweep.memory = _memory(sound, chunks, max((g.peak_nbytes for g in sweep.groups), default=0), conf, workers)
    for job, plan in zip(jobs, sweep.plans, strict=True):
        plan.unread = job.run.unread
        plan.memory = _alone(plan, conf) if plan.problems and len(jobs) > 1 else sweep.memory
    return sweep, sweep.memory


def _alone(plan: Plan, conf: Dask, workers: int | None = None) -> MemoryPlan:
    task = max((c.peak_nbytes for c in plan.chunks), default=0)
    return _memory([plan], len(plan.chunks), task, conf, workers or worker_count(conf))


def _too_little(memory: MemoryPlan, one: MemoryPlan, override: str, jobs: int = 1) -> Problem:
    """What is needed, and what would do; `one` is the plan for one worker, `jobs` how many run together."""
    fewer = f" or {override.format('dask.workers=1')} ({show_bytes(one.peak)})" if one.fits else ""
    model = f", {show_bytes(memory.model)} to run the model (flow=convert does not)" if memory.model else ""
    enough = override.format(f"dask.memory={-(-memory.peak // (1 << 20))}MiB")
    who = f" for {jobs} jobs together" if jobs > 1 else ""
    return Problem(
        "dask.memory",
        f"{memory.budget.said} is too little{who}: {show_bytes(memory.base)} for the processes and {memory.tasks} × "
        f"{show_bytes(memory.task)} for tasks{model}, the least there can be; {enough}{fewer} would do",
    )


def fits_workers(memory: MemoryPlan, limits: Mapping[str, int]) -> None:
    """Raises PlanError when a worker has too little; which of them will run a model nobody knows."""
    if limits and memory.peak > SHARE * min(limits.values()):
        address = min(limits, key=limits.__getitem__)
        text = (
            f"auto allows {PERCENT} of what a worker has, and {address} has {show_bytes(limits[address])}; "
            f"{show_bytes(memory.peak)} are needed; dask.memory={-(-memory.peak // (1 << 20))}MiB takes them "
            "all the same"
        )
        raise PlanError([Problem("dask.memory", text)])


def _lacking(plan: Plan, conf: Dask) -> Iterator[Problem]:
    """Resources that a stage asks for and no worker has, or workers: its tasks would wait for ever."""
    for node in plan.nodes.values():
        if conf.scheduler == "distributed" and not conf.address and _processes(node) > worker_count(conf):
            text = f"{worker_count(conf)}: {node.name} has {_processes(node)} processes, each on a worker of its own"
            yield Problem("dask.workers", f"{text}; dask=threads starts them itself")
        for tag, amount in optional(node.stage, StageHooks, "resources").items():
            if not conf.address and amount > conf.resources.get(tag, 0):
                text = f"needs {amount} of resource {tag!r}; dask.resources has {conf.resources.get(tag, 'none')}"
                yield Problem(f"stages.{node.name}", text)


def _not_installed(tracker: Any) -> Iterator[Problem]:
    """Packages that the run's tracker needs; they are looked for, and not imported."""
    for module, extra in tracker.needs.items() if tracker is not None else ():
        if find_spec(module) is None:
            yield Problem("tracker", f"needs the package {module!r}, which is not installed: pip install '{extra}'")
            return


def _processes(node: Node) -> int:
    """Of the gang that a stage runs in."""
    gang: Gang | None = optional(node.stage, StageHooks, "gang")
    return 1 if gang is None else gang.processes


def computing(takes: Iterable[Footprint]) -> int:
    """Bytes that stages which compute need at their worst, one after another, with what earlier ones hold on to."""
    most = kept = 0
    for one in takes:
        most = max(most, kept + one.host_nbytes)
        kept += one.kept_nbytes
    return max(most, kept)


def _beside(plans: Sequence[Plan], model: int, tasks: int, *, shared: bool) -> int:
    """Bytes beside what tasks need, for `model` bytes of stages that compute.

    Of one job, what chunks are made from has been computed when the first of them is read: of these stages only what
    a process keeps (libraries, compiled programs) is there beside tasks. Jobs of a sweep are not so orderly.
    """
    if len(plans) != 1 or shared:
        return model
    nodes = plans[0].nodes
    writes = [name for name, work in plans[0].works.items() if work.chunks]
    earlier = set.intersection(*(_above(nodes, name) for name in writes)) if writes else set()
    before = [n.takes for n in nodes.values() if n.takes is not None and n.name in earlier]
    after = [n.takes for n in nodes.values() if n.takes is not None and n.name not in earlier]
    if not before or any(t.kept_nbytes for t in before):
        return model
    first = computing(before)
    return max(first - tasks, min(first, RESIDENT), computing(after))


def _above(nodes: Mapping[str, Node], name: str) -> set[str]:
    """The stages that a stage comes after."""
    found = set[str]()
    todo = [name]
    while todo:
        new = {*nodes[todo.pop()].inputs.values()} - found
        found |= new
        todo += new
    return found


def _memory(plans: Sequence[Plan], chunks: int, task: int, conf: Dask, workers: int) -> MemoryPlan:
    """What jobs that run together take.

    Args:
        chunks: how many they have.
        task: bytes that their hungriest task takes.
    """
    allowed = budget(conf)
    nodes = list(dict.fromkeys(n for plan in plans for n in plan.nodes.values()))  # jobs have some in common
    if conf.address:  # somebody else's processes: the bound is each worker's, and a gang has one on each of several
        takes = [_share(n.takes, _processes(n)) for n in nodes if n.takes is not None]
    else:
        takes = [n.takes for n in nodes if n.takes is not None]
    model = _beside(plans, computing(takes), task * workers, shared=bool(conf.address))
    tensors = sum(_tensors(plan) for plan in plans)
    files = sum(len(w.outputs) for plan in plans for w in plan.works.values())
    # What a stage that computes needs is in its `Footprint`.
    lazy = (n.stage for n in nodes if n.takes is None)
    kept = max((kernel.resident for stage in lazy for kernel in kernels_of(stage)), default=0) if chunks else 0
    if conf.address:
        held = tensors * PER_TENSOR_WORKER
        return MemoryPlan(BASE_WORKER + kept + held, task, conf.threads_per_worker, allowed, model)
    held = tensors * PER_TENSOR + files * PER_FILE + max((plan.tracker_nbytes for plan in plans), default=0)
    if conf.scheduler == "distributed":
        held += chunks * PER_CHUNK_CLUSTER + tensors * PER_TENSOR_CLIENT
        base = BASE_CLIENT + workers * (BASE_WORKER + kept + tensors * PER_TENSOR_WORKER) + held
        return MemoryPlan(base, task, workers * conf.threads_per_worker, allowed, model)
    return MemoryPlan(BASE_THREADS + kept + chunks * PER_CHUNK + held, task, workers, allowed, model)


def peak_after(memory: MemoryPlan, conf: Dask, held_nbytes: int) -> int:
    """The peak of a run in a process that already has `held_nbytes`: an earlier run's, or of the program that calls.

    A plan is of a process of its own. What another run left is mostly what running a model leaves (`RESIDENT`), which
    the next one that runs a model does not take again.
    """
    own = BASE_CLIENT if conf.scheduler == "distributed" else BASE_THREADS
    if conf.address or held_nbytes <= own:  # with `address`, a plan is of one worker
        return memory.peak
    return max(memory.peak, memory.conversion + max(0, memory.model - RESIDENT) + held_nbytes - own)


def _share(takes: Footprint, parts: int) -> Footprint:
    """What one of as many processes takes of the host's memory."""
    return replace(takes, host_nbytes=-(-takes.host_nbytes // parts), kept_nbytes=-(-takes.kept_nbytes // parts))


def _tensors(plan: Plan) -> int:
    """Of its largest store."""
    stores = [s for n in plan.nodes.values() if (s := store_of(n)) is not None]
    return max((len(s.specs) for s in stores), default=0)
