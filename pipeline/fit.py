"""Plan a run so that it fits: chunks as small, and problems as clear, as `dask.memory` makes them."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.errors import Problem
from pipeline.plan import MemoryPlan, Plan, make_plan
from pipeline.recipes import recipes
from pipeline.spine import Dask, RunConfig
from pipeline.stage import Context, Needs
from pipeline.units import parse_bytes, show_bytes

# Resident bytes of a process before its first chunk, measured with everything imported (Python 3.11, NumPy 2.4), and a
# margin of a fifth. What processes share (libraries) is counted for each.
BASE_THREADS = 80 << 20
BASE_CLIENT = 120 << 20  # with the scheduler of a LocalCluster and Python's resource tracker
BASE_WORKER = 90 << 20
PER_CHUNK = 4 << 10  # a chunk that is planned: its task, its place in the graph, its record
PER_CHUNK_CLUSTER = 12 << 10  # and what the scheduler keeps of it
SMALLEST_CHUNK = 256 << 10


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
    ctx = Context(run_dir, run.spine.seed, chunk, run.spine.overwrite, fetch, recipes(run))
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
