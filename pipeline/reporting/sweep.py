"""The plan of a sweep for people: its jobs, what they have in common, and what all of it takes."""

from collections.abc import Sequence
from typing import Any

from pipeline.planning.sharing import SharedStore
from pipeline.planning.sweep import Sweep
from pipeline.planning.wiring import store_of
from pipeline.reporting import unused
from pipeline.reporting.console import memory_lines, time_line
from pipeline.reporting.manifest import chosen
from pipeline.tables import table
from pipeline.terminal import line
from pipeline.units import show_bytes


def sweep_tables(sweep: Sweep) -> list[Any]:
    """What is shared is numbered by the jobs that share it."""
    jobs: list[Sequence[str]] = []
    for i, (job, plan) in enumerate(zip(sweep.jobs, sweep.plans, strict=True)):
        written = sum(f.nbytes for w in plan.works.values() for f in w.outputs)
        said = f"cannot run: {plan.problems[0]}" if plan.problems else "; ".join(chosen(plan).values())
        jobs.append((str(i + 1), line(job.name), str(len(plan.chunks)), show_bytes(written), line(said)))
    found = [table("Jobs", ("", "job", "chunks", "writes", ""), jobs, right=(0, 2, 3))]
    shared: list[Sequence[str]] = []
    for node in sweep.names:
        if len(users := sweep.users(node)) > 1:
            read = isinstance(store_of(node), SharedStore)
            how = (
                "computed once" if node.computes else "read once" if read else "opened once" if not node.inputs else ""
            )
            shared.append((line(node.name), ", ".join(str(i + 1) for i in users), how))
    if shared:
        found.append(table("In common", ("stage", "jobs", ""), shared))
    typed = unused.in_all([unused.rows(plan.unread.values()) for plan in sweep.plans])
    return [*found, *unused.lines(typed), *_totals(sweep)]


def _totals(sweep: Sweep) -> list[str]:
    plans = [sweep.plans[i] for i in sweep.sound]
    nodes = sum(len(plan.nodes) for plan in plans)
    once, each = sum(g.nbytes_in for g in sweep.groups), sum(c.nbytes_in for p in plans for c in p.chunks)
    written = sum(f.nbytes for p in plans for w in p.works.values() for f in w.outputs)
    chunks = sum(len(p.chunks) for p in plans)
    return [
        f"{len(plans)} jobs with {nodes} stages, {len(sweep.names)} of them different",
        f"chunks read {show_bytes(once)} ({show_bytes(each)} job by job) and write {show_bytes(written)}, "
        f"{chunks} chunks in {len(sweep.groups)} task{'s' * (len(sweep.groups) != 1)}",
        *(memory_lines(sweep.memory) if sweep.memory is not None else ()),
        *([time_line(sweep.time)] if sweep.time is not None and sweep.time.parts else ()),
    ]
