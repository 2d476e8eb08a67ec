"""Plan a run so that it fits: chunks as small, and problems as clear, as `dask.memory` makes them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pipeline.config.spine import Dask, RunConfig
from pipeline.errors import PlanError, Problem
from pipeline.hooks import optional
from pipeline.ops import kernels_of
from pipeline.planning.budget import PERCENT, SHARE, Budget, budget
from pipeline.planning.rates import Rates
from pipeline.planning.recipes import recipes
from pipeline.planning.time import time_plan
from pipeline.planning.wiring import MemoryPlan, Plan, make_plan, store_of
from pipeline.stage import Context, Footprint, StageHooks
from pipeline.units import parse_bytes, show_bytes

# Resident bytes of a process before its first chunk, measured with everything imported (Python 3.11, NumPy 2.4), and a
# margin of a fifth. What processes share (libraries) is counted for each.
BASE_THREADS = 80 << 20
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
SMALLEST_CHUNK = 256 << 10


def worker_count(conf: Dask) -> int:
    return conf.workers or len(os.sched_getaffinity(0))


def tasks_at_once(conf: Dask) -> int:
    return worker_count(conf) * (conf.threads_per_worker if conf.scheduler == "distributed" else 1)


def plan_run(run: RunConfig, run_dir: Path, *, fetch: bool = True, override: str = "{}") -> Plan:
    """Plan all stages, with chunks (and, where it is ours to choose, workers) that fit `dask.memory`.

    Args:
        run: the config.
        run_dir: the run's folder.
        fetch: False: a plan to look at; of sources that lie elsewhere an outline is enough.
        override: how an override is written where it would be given, for problems that name one.

    Problems are in `Plan.problems`; a run that cannot fit is one of them, and says what would.
    """
    conf = run.spine.dask
    allowed = budget(conf)
    chunk = parse_bytes(conf.chunk, "dask.chunk")
    ctx = Context(run_dir, run.spine.seed, chunk, run.spine.overwrite, fetch, recipes(run))
    plan = make_plan(run.stages, ctx)
    plan.memory = memory = _memory(plan, conf, allowed, worker_count(conf))
    while not memory.fits and chunk > SMALLEST_CHUNK and plan.chunks:
        chunk = max(SMALLEST_CHUNK, chunk // 2)
        smaller = make_plan(run.stages, replace(ctx, chunk_nbytes=chunk))
        smaller.memory = _memory(smaller, conf, allowed, worker_count(conf))
        if smaller.memory.peak >= memory.peak:  # more chunks now cost more than smaller ones save
            break
        plan, memory = smaller, smaller.memory
    plan.problems += _lacking(plan, conf)
    if not conf.address:  # whose machines are not this one
        plan.time = time_plan(plan, Rates.load(), tasks_at_once(conf))
    if not memory.fits:
        plan.problems.append(_too_little(memory, _memory(plan, conf, allowed, 1), override))
    return plan


def _too_little(memory: MemoryPlan, one: MemoryPlan, override: str) -> Problem:
    """What is needed, and what would do; `one` is the plan for one worker."""
    fewer = f" or {override.format('dask.workers=1')} ({show_bytes(one.peak)})" if one.fits else ""
    model = f", {show_bytes(memory.model)} to run the model (flow=convert does not)" if memory.model else ""
    enough = override.format(f"dask.memory={-(-memory.peak // (1 << 20))}MiB")
    return Problem(
        "dask.memory",
        f"{memory.budget.said} is too little: {show_bytes(memory.base)} for the processes and {memory.tasks} × "
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
    """Resources that a stage asks for and no worker has: its tasks would wait for ever."""
    for node in plan.nodes.values():
        for tag, amount in optional(node.stage, StageHooks, "resources").items():
            if not conf.address and amount > conf.resources.get(tag, 0):
                text = f"needs {amount} of resource {tag!r}; dask.resources has {conf.resources.get(tag, 'none')}"
                yield Problem(f"stages.{node.name}", text)


def computing(takes: Iterable[Footprint]) -> int:
    """Bytes that stages which compute need at their worst, one after another, with what earlier ones hold on to."""
    most = kept = 0
    for one in takes:
        most = max(most, kept + one.host_nbytes)
        kept += one.kept_nbytes
    return max(most, kept)


def _memory(plan: Plan, conf: Dask, allowed: Budget, workers: int) -> MemoryPlan:
    chunks = plan.chunks
    task = max((c.peak_nbytes for c in chunks), default=0)
    model = computing(plan.takes.values())
    stores = [s for n in plan.nodes.values() if (s := store_of(n)) is not None]
    tensors = max((len(s.specs) for s in stores), default=0)
    files = sum(len(w.outputs) for w in plan.works.values())
    # What a stage that computes needs is in its `Footprint`.
    lazy = (n.stage for n in plan.nodes.values() if n.takes is None)
    kept = max((kernel.resident for stage in lazy for kernel in kernels_of(stage)), default=0) if chunks else 0
    if conf.address:  # somebody else's processes: the bound is each worker's
        held = tensors * PER_TENSOR_WORKER
        return MemoryPlan(BASE_WORKER + kept + held, task, conf.threads_per_worker, allowed, model)
    held = tensors * PER_TENSOR + files * PER_FILE
    if conf.scheduler == "distributed":
        held += len(chunks) * PER_CHUNK_CLUSTER + tensors * PER_TENSOR_CLIENT
        base = BASE_CLIENT + workers * (BASE_WORKER + kept + tensors * PER_TENSOR_WORKER) + held
        return MemoryPlan(base, task, workers * conf.threads_per_worker, allowed, model)
    return MemoryPlan(BASE_THREADS + kept + len(chunks) * PER_CHUNK + held, task, workers, allowed, model)
