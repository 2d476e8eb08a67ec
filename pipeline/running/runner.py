"""Execute a plan: resume what an earlier run left, run the graph, write the run's record.

A run's folder holds `config.yaml` (resolved), `run.json` (what this run is), `journal.jsonl` (what is done so far), and
at the end `manifest.json`, `metrics.jsonl` and `errors.csv`. The manifest is written last: a run with one is complete.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config.spine import RunConfig
from pipeline.digest import InputFile, digest_file
from pipeline.errors import ConfigError, PlanError, Problem, SourceError, StageError, StorageError, WeightmillError
from pipeline.events import Events
from pipeline.files import read_whole, write_json
from pipeline.planning.digests import Digests
from pipeline.planning.identity import Key, differences, keyed, resolved
from pipeline.planning.memory import BASE_CLIENT, BASE_WORKER, fits_workers, plan_run, worker_count
from pipeline.planning.obstacles import obstacles, run_folder
from pipeline.planning.wiring import Plan
from pipeline.reporting.manifest import Report, build_report, write_config, write_records
from pipeline.running import held, text_stream
from pipeline.running.description import Description, describe, read_description, refuse
from pipeline.running.exports import Exports, places_of
from pipeline.running.graph import Failure, Task, connect, run_distributed, run_threads, worker_limits
from pipeline.running.journal import Journal, locked
from pipeline.running.results import FOLDER, Results
from pipeline.running.tasks import KEYS, build_tasks, digest_input, do_chunk, keeps, run_stage

MOST_RECORD_NBYTES = 1 << 30  # a manifest: a row for every tensor


def outputs_of(run: RunConfig) -> Path:
    """Folder of all runs."""
    return Path(os.path.expanduser(run.spine.paths.outputs)).absolute()


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
    outputs = outputs_of(run)
    with ExitStack() as locks:
        _stop([*run_folder(plan), *unkeepable(plan, Results(outputs / FOLDER))])
        locks.enter_context(locked(run_dir / ".lock", f"{run_dir}: another run is at work in this folder"))
        journal = Journal(run_dir / "journal.jsonl")
        digests = Digests()
        before = read_description(run_dir)
        what = _as_described(run, plan, before, digests)
        earlier = _earlier(run_dir, before, what, plan, run, events)
        if isinstance(earlier, Report):
            return earlier
        resuming = earlier == "unfinished" and journal.path.exists()
        known = journal.read() if resuming else {}
        results = Results(outputs / FOLDER, run_dir, what.id)
        plan.context = replace(plan.context, results=results)
        exports = Exports(plan, results, again=run.spine.overwrite or resuming)
        locks.callback(exports.close)
        with text_stream.to(events.text):
            exports.look()
        _stop(obstacles(plan, outputs, known, exports.there))
        for name, work in plan.works.items():
            if hasattr(work, "lock") and name not in exports.there:
                locks.enter_context(work.lock())
        _stop(obstacles(plan, outputs, known, exports.there))  # once more, now that no other run can change it
        if not resuming:
            for name in ("journal.jsonl", "manifest.json"):
                (run_dir / name).unlink(missing_ok=True)
        write_json(run_dir / "run.json", asdict(what))
        write_config(run_dir / "config.yaml", run.tree)
        started = time.time()
        with text_stream.to(events.text):
            exports.copy()
            try:
                graph = _graph(run, plan, journal, known, exports, digests, events, fresh=not resuming)
            finally:
                journal.close()
            exports.keep(graph.results, graph.keys)
        report = build_report(run, plan, graph.results, graph.records, command, started, graph.found)
        final = describe(plan, graph.keys, digests.of, what, graph.made)
        write_records(run_dir, run, report)
        write_json(run_dir / "run.json", asdict(final))  # until then the keys are those of the journal
        journal.path.unlink(missing_ok=True)
    return report


def obstacles_ahead(run: RunConfig, plan: Plan, run_dir: Path) -> list[Problem]:
    """What would stop this run on disk, for a plan that is not executed: another run, a target, too little space."""
    outputs = outputs_of(run)
    if found := [*run_folder(plan), *unkeepable(plan, Results(outputs / FOLDER))]:
        return found
    before = read_description(run_dir)
    what = _as_described(run, plan, before, Digests())
    same = before is not None and not before.new_in(what)
    if same and (run_dir / "manifest.json").exists() and not run.spine.overwrite:
        return []  # complete: running it again does nothing
    try:
        if not same and before is not None and not run.spine.overwrite:
            refuse(run_dir, before, before.new_in(what), what)
        known = Journal(run_dir / "journal.jsonl").read() if same else {}
        results = Results(outputs / FOLDER)
        targets = {n: w.target for n, w in plan.works.items() if hasattr(w, "adopt") and hasattr(w, "target")}
        there = [n for n, target in targets.items() if target in places_of(results, plan.keys[n], target)]
        return obstacles(plan, outputs, known, () if run.spine.overwrite else there)
    except WeightmillError as why:
        return [Problem("paths.run", str(why))]


def _as_described(run: RunConfig, plan: Plan, before: Description | None, digests: Digests) -> Description:
    """What the run is. The keys of one that goes on are those that it began with, whatever is known since."""

    def known(file: InputFile) -> str | None:
        return before.known(file) if before is not None and before.has(file) else digests.of(file)

    keyed(run, plan, known)
    what = describe(plan, plan.keys, known, before)
    if before is None or not before.new_in(what):
        return what
    keyed(run, plan, digests.of)
    return describe(plan, plan.keys, digests.of)


def unkeepable(plan: Plan, results: Results) -> Iterable[Problem]:
    """Why what a stage finds cannot be kept."""
    if any(keeps(node) for node in plan.nodes.values()) and (why := results.hindrance):
        yield Problem("paths.outputs", f"results cannot be kept in {results.folder}: {why}")


def _stop(found: Iterable[Problem]) -> None:
    """Raises PlanError, with the exit code of a StorageError, when there is something in the way."""
    if problems := list(found):
        raise PlanError(problems, exit_code=StorageError.exit_code)


def _earlier(
    run_dir: Path, before: Description | None, what: Description, plan: Plan, run: RunConfig, events: Events
) -> Report | str | None:
    """What stands in the folder: this run's report when it is complete, "unfinished" when it can go on, or None.

    Raises:
        SourceError: the source changed since the run in this folder began.
        ConfigError: the folder holds another run, or outputs that are no longer what this run wrote.
    """
    overwrite = run.spine.overwrite
    if before is None:
        return None
    if found := before.new_in(what):
        if not overwrite:
            refuse(run_dir, before, found, what)
        return None
    try:
        report = Report.from_json(json.loads(read_whole(run_dir / "manifest.json", MOST_RECORD_NBYTES)))
    except (SourceError, ValueError, KeyError, TypeError, AttributeError):
        return "unfinished"
    if overwrite:
        return None
    if not run.spine.dask.address:  # whose workers may have other devices than this process
        for name, key in plan.keys.items():
            then = before.nodes[name].get("found")
            if then is not None and (here := resolved(key)).id != then["key"]:
                new = differences({"resolved": then["resolved"]}, {"resolved": here.parts.get("resolved", {})})
                refuse(run_dir, before, [(name, d) for d in new], what)
    for file in report.outputs:
        path = Path(file["path"])
        if not path.exists():
            raise ConfigError(f"{path}: is gone since this run finished; overwrite=true makes it again")
        if digest_file(path).xxh3_128 != file["xxh3_128"]:
            raise ConfigError(f"{path}: was changed since this run finished; overwrite=true makes it again")
    events.say(f"complete already, outputs verified: {run_dir}")
    return replace(report, reused=True)


@dataclass(frozen=True)
class Graph:
    """What running the tasks gave.

    Attributes:
        results: by stage, by task of a chunk, and `input:PATH`.
        records: what chunks and stages that compute measured.
        keys: of all nodes, with the digests of what was read.
        made: those that were open, as they were in the run.
        found: stage → where its result, which was not made now, came from.
    """

    results: dict[str, Any]
    records: list[dict[str, Any]]
    keys: dict[str, Key]
    made: dict[str, Key]
    found: dict[str, str]


def _graph(
    run: RunConfig, plan: Plan, journal: Journal, known: Mapping[str, Any], exports: Exports, digests: Digests,
    events: Events, *, fresh: bool,
) -> Graph:  # fmt: skip
    """Run the tasks."""
    large = [f for f in plan.inputs if f.xxh3_128 is None]
    wanted = [f for f in large if digests.of(f) is None] if run.spine.digest_inputs else []
    contents = {str(f.path): d for f in large if (d := digests.of(f)) is not None}
    tasks = build_tasks(plan, known, fresh=fresh, digest=wanted, contents=contents, there=exports.there)
    chunk_keys = [t.key for t in tasks if t.fn is do_chunk]
    journaled = {t.key for t in tasks if t.fn in (do_chunk, digest_input)}
    events.total(sum(t.weight for t in tasks), len(chunk_keys))
    read: list[tuple[InputFile, str]] = []

    def on_done(task: Task, result: Any) -> None:
        if isinstance(result, Failure):
            events.say(f"failed: {result.label}: {result.error}")
        elif task.key in journaled:
            reused = result.get("reused", False) if task.fn is do_chunk else known.get(task.key) == result
            if not reused:
                journal.append(task.key, result)
            if task.fn is do_chunk:
                events.chunk(task.label, task.weight, reused)
            else:
                read.append((task.args[0], result))
        elif task.key in plan.works:
            exports.release(task.key)

    try:
        results = _scheduled(tasks, run, plan, events, on_done)
    finally:
        digests.add(read)
    failures = {f"{f.label}: {f.error}": f for f in results.values() if isinstance(f, Failure)}
    if failures:
        raise StageError(f"{len(failures)} tasks failed; what succeeded is kept\n  " + "\n  ".join(failures))
    results |= {f"input:{f.path}": digests.of(f) for f in large if run.spine.digest_inputs}
    made = {t.args[0]: results[t.key] for t in tasks if t.fn is run_stage}
    records = [*(results[k] for k in chunk_keys), *exports.records, *(m.record for m in made.values())]
    found = {name: m.found for name, m in made.items() if m.found}
    found |= {name: str(exports.kept[name].folder) for name in exports.there}
    keys = {name: m.key for name, m in made.items() if m.key is not None and plan.keys[name].open}
    return Graph(results, records, results[KEYS], keys, found)


def _scheduled(
    tasks: list[Task], run: RunConfig, plan: Plan, events: Events, on_done: Callable[[Task, Any], None]
) -> dict[str, Any]:
    """Every task's result."""
    conf = run.spine.dask
    if conf.address or conf.scheduler == "distributed":
        workers = worker_count(conf)
        assert plan.memory is not None
        share = max(1, (plan.memory.budget.conversion - BASE_CLIENT) // workers)
        if plan.memory.model:  # one worker at a time holds a model, while it works on chunks too
            share = max(share, BASE_WORKER + plan.memory.model + plan.memory.task * conf.threads_per_worker)
        with connect(conf, workers, share, events.say) as client:
            if plan.memory.budget.total is None:
                fits_workers(plan.memory, worker_limits(client))
            return run_distributed(tasks, conf, client, on_done)
    else:
        try:
            return run_threads(tasks, conf, worker_count(conf), on_done)
        finally:
            held.release()
