"""The jobs of a sweep as people meet them: planned and shown, or run and compared."""

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.errors import PlanError, Problem, StageError, StorageError, WeightmillError, some
from pipeline.events import Events
from pipeline.places import reason
from pipeline.planning import kernels
from pipeline.planning.memory import plan_jobs
from pipeline.planning.sweep import Asked, Job, distinct
from pipeline.records.sweeps import keep
from pipeline.reporting import console
from pipeline.reporting.compare.jobs import Comparison, compared, ended
from pipeline.reporting.manifest import Report
from pipeline.reporting.progress import progress
from pipeline.reporting.sweep import sweep_tables
from pipeline.running import tracked
from pipeline.running.attempt import obstacles_ahead, outputs_of
from pipeline.running.results import FOLDER, Results, run_id
from pipeline.running.runner import Outcome, execute_jobs
from pipeline.running.traced import traced
from pipeline.running.why import reasons


def planned(asked: Asked, verb: str) -> list[Any]:
    """Show what the sweep would do, all of it, and what is wrong with any of its jobs.

    Raises:
        PlanError: something is.
    """
    distinct(asked.jobs)
    problems: list[Problem] = []
    for alike in _by_dask(asked.jobs):
        sweep = plan_jobs([asked.jobs[i] for i in alike], fetch=False)
        if any(plan.failures for plan in sweep.plans):
            pass  # what could be planned all the same is not what was asked for
        elif verb == "graph":
            console.out(console.mermaid(sweep.whole))
        elif verb == "why":
            for job, plan in zip(sweep.jobs, sweep.plans, strict=True):
                results = Results(outputs_of(job.run) / FOLDER)
                console.out(job.name, *console.why_tables(reasons(plan, outputs_of(job.run), results)))
        else:
            console.out(*sweep_tables(sweep))
        for job, plan in zip(sweep.jobs, sweep.plans, strict=True):
            found = plan.problems or (
                obstacles_ahead(job.run, plan, job.run_dir, job.command) if verb == "plan" else []
            )
            problems += [Problem(f"{job.name}: {p.where}", p.message) for p in found]
    if problems:
        raise PlanError(problems)
    return [None] * len(asked.jobs)


def executed(asked: Asked) -> list[Outcome]:
    """Run the jobs, and say how they compare.

    Raises:
        StageError: some failed; names them with their cause, those that failed alike together.
        StorageError: the comparison cannot be kept.
    """
    with progress(asked.jobs[0].run.spine.progress) as events:
        found = ran(asked, events)
    console.out(*found.shown)
    failed = [(name, why) for name, why in found.reports if isinstance(why, Exception)]
    if failed:
        alike: dict[str, list[tuple[str, Exception]]] = {}
        for name, why in failed:
            alike.setdefault(_reason(why), []).append((name, why))
        lines = "\n".join(
            f"  {', '.join(name for name, _ in those)}: {_first_words(reason if len(those) > 1 else str(those[0][1]))}"
            for reason, those in alike.items()
        )
        raise StageError(f"{len(failed)} of {len(asked.jobs)} jobs failed\n{lines}")
    return [outcome for _, outcome in found.reports]


def ran(asked: Asked, events: Events) -> Comparison:
    """Run the jobs, say of each how it ended as soon as it did, and compare them.

    Raises:
        StorageError: the comparison cannot be kept.
    """
    jobs, first = asked.jobs, distinct(asked.jobs)
    try:
        asked.folder.mkdir(parents=True, exist_ok=True)
        (asked.folder / "multirun.yaml").write_text(asked.config, encoding="utf-8")
    except OSError as why:
        raise StorageError(f"{asked.folder}: {reason(why)}") from None
    _keep(asked)
    outcomes: dict[int, Outcome] = {}
    told: dict[str, str] = {}
    kernels.prepare([job.run for job in jobs], events.say)
    about = {"sweep": asked.folder.name, "jobs": {job.name: list(job.command) for job in jobs}}
    with tracked.sweep(jobs, asked.folder, events.say) as tracking:
        with traced(asked.folder, [job.run.spine for job in jobs], about, events.say) as trace:
            for alike in _by_dask(jobs, set(first)):

                def settled(n: int, outcome: Outcome, alike: Sequence[int] = alike) -> None:
                    _say(alike[n], asked, outcome, events, told)

                some = [jobs[i] for i in alike]
                found = execute_jobs(some, events, settled, tracking.by_tracker, trace)
                outcomes |= dict(zip(alike, found, strict=True))
        _keep(asked)
        rows = [(job.name, outcomes[i]) for job, i in zip(jobs, first, strict=True)]
        comparison = compared(rows, asked.folder)
        tracking.end(failed=any(isinstance(outcome, Exception) for outcome in outcomes.values()))
    return comparison


def _keep(asked: Asked) -> None:
    """Say in the sweep's folder which runs are its own; before they begin, by where they will be."""
    keep(asked.folder, [(job.name, job.run_dir, run_id(job.run_dir) or "") for job in asked.jobs])


def _by_dask(jobs: Sequence[Job], among: set[int] | None = None) -> Iterator[list[int]]:
    """Jobs that can be one graph: those with equal `dask` settings."""
    left = [i for i in range(len(jobs)) if among is None or i in among]
    while left:
        alike = [i for i in left if jobs[i].run.spine.dask == jobs[left[0]].run.spine.dask]
        left = [i for i in left if i not in alike]
        yield alike


def _reason(why: Exception) -> str:
    """Why a job failed; the same for others that failed alike, of whatever else."""
    return "\n".join(dict.fromkeys(p.message for p in why.problems)) if isinstance(why, PlanError) else str(why)


def _first_words(text: str) -> str:
    """What is wrong, without what to do about it, which was said when it came up."""
    return (text.splitlines() or [""])[0].partition("; ")[0]


def _say(i: int, asked: Asked, outcome: Outcome, events: Events, told: dict[str, str]) -> None:
    """How a job ended.

    Args:
        told: why jobs failed so far, and the first that did so; a reason is said once.
    """
    number, name = f"{i + 1}/{len(asked.jobs)}", asked.jobs[i].name
    if isinstance(outcome, Report):
        events.say(ended(number, name, outcome))
    elif (first := told.setdefault(_reason(outcome), name)) != name:
        of = f": {some([p.where for p in outcome.problems])}" if isinstance(outcome, PlanError) else ""
        events.say(f"[{number}] {name}: failed as {first} did{of}")
    else:
        events.say(f"[{number}] {name}: failed")
        known = isinstance(outcome, WeightmillError)
        for said in console.error_lines(outcome if known else StageError(f"{type(outcome).__name__}: {outcome}")):
            events.say(said)
