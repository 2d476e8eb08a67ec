"""One job while it runs: what stands in its folder, what it is, what was done of it, and its record at the end.

A run's folder holds `config.yaml` (resolved), `run.json` (what this run is), `journal.jsonl` (what is done so far), and
at the end `manifest.json`, `metrics.jsonl` and `errors.csv`. The manifest is written last: a run with one is complete.
"""

import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.spine import RunConfig
from pipeline.digest import InputFile, digest_file
from pipeline.errors import ConfigError, PlanError, Problem, SourceError, StorageError, WeightmillError
from pipeline.events import Events
from pipeline.hooks import optional
from pipeline.places import reason
from pipeline.planning.digests import Digests
from pipeline.planning.identity import Key, differences, keyed, resolved
from pipeline.planning.memory import peak_after
from pipeline.planning.obstacles import obstacles, run_folder
from pipeline.planning.sweep import Sweep
from pipeline.planning.wiring import Plan, chunk_key
from pipeline.records import points, schemas, system, tries
from pipeline.reporting import unused
from pipeline.reporting.html import place
from pipeline.reporting.manifest import Report, build_report, versions
from pipeline.reporting.mesh import draw_placements
from pipeline.reporting.writing import write_config, write_records
from pipeline.running import peak
from pipeline.running.description import Description, describe, of_what_is_made, read_description, refuse
from pipeline.running.exports import Exports, adopts, places_of
from pipeline.running.graph import Failure
from pipeline.running.journal import Journal, locked
from pipeline.running.progress import Progress
from pipeline.running.results import FOLDER, Results
from pipeline.running.tasks import Made, Try, keeps
from pipeline.running.traced import Traced, forgotten, left
from pipeline.stage import StageHooks, WorkHooks

# What tells trackers is imported where there is one.
if TYPE_CHECKING:
    from pipeline.running.tracking import Tracking

NAME = "weightmill"


def outputs_of(run: RunConfig) -> Path:
    """Folder of all runs."""
    return Path(os.path.expanduser(run.spine.paths.outputs)).absolute()


class Attempt:
    """A job while it runs: compared with what stands in its folder, prepared, begun, fed with results, reported.

    Attributes:
        complete: its report, when there was nothing to do.
        began: its folder says what it is.
        records: what was measured of what was done now.
        known: what its journal says an earlier try has done.
        failures: what of it failed, in order.
        waiting: tasks that it waits for.
    """

    def __init__(
        self, sweep: Sweep, i: int, locks: ExitStack, digests: Digests, say: Callable[[str], None],
        parent: "Tracking | None" = None,
    ):  # fmt: skip
        """Hold its folder.

        Args:
            say: takes lines for people.
            parent: what a tracker is told of the sweep that it is of.

        Raises:
            PlanError: the plan has problems, or something is in the way on disk; nothing was touched.
            StorageError: another run is at work there.
        """
        self.job, self.plan, self._locks, self._digests = sweep.jobs[i], sweep.plans[i], locks, digests
        self.complete: Report | None = None
        self.began = False
        self._held_nbytes = 0
        self.failures: list[Failure] = []
        self.known: Mapping[str, Any] = {}
        self.stages = {sweep.names[node]: name for name, node in self.plan.nodes.items() if node in sweep.names}
        self.waiting = {*self.stages}
        self._given: dict[str, Any] = {}
        self._made: dict[str, Made] = {}
        self._keys: Mapping[str, Key] = {}
        self._alone = len(sweep.jobs) == 1
        self._first = math.inf
        self.records: list[Mapping[str, Any]] = []
        self.tracking: Tracking | None = None
        self._say, self._parent = say, parent
        plan, run_dir = self.plan, self.job.run_dir
        if plan.problems:
            raise plan.refusal
        self._outputs = outputs_of(self.job.run)
        stop_at([*run_folder(plan), *unkeepable(plan, Results(self._outputs / FOLDER))])
        locks.enter_context(locked(run_dir / ".lock", f"{run_dir}: another run is at work in this folder"))

    def compare(self, events: Events) -> None:
        """With what stands in its folder.

        Raises:
            SourceError, ConfigError: as `_earlier`.
        """
        run, run_dir, plan = self.job.run, self.job.run_dir, self.plan
        self.journal = Journal(run_dir / "journal.jsonl")
        self._locks.callback(self.journal.close)
        before = read_description(run_dir)
        self._what = _as_described(run, plan, before, self._digests, self.job.command)
        earlier = _earlier(run_dir, before, self._what, plan, run, events)
        if isinstance(earlier, Report):
            earlier = replace(earlier, unused=unused.rows(run.unread.values()))  # of what was typed now
            self.complete = replace(earlier, tracked=self._tell_of(earlier)) if run.tracker is not None else earlier
            self._locks.close()
            return
        self._goes_on = earlier == "unfinished"
        self._resuming = self._goes_on and self.journal.path.exists()
        self.known = self.journal.read() if self._resuming else {}
        results = Results(self._outputs / FOLDER, run_dir, self._what.id)
        plan.context = replace(plan.context, results=results)
        self.exports = Exports(plan, results, again=run.spine.overwrite or self._resuming)

    def prepare(self) -> None:
        """See what there is, and hold what it writes.

        Raises:
            PlanError: something is in the way on disk.
            StorageError: another run is at work there.
        """
        self.exports.look()
        stop_at(obstacles(self.plan, self._outputs, self.known, self.exports.there))
        for name, work in self.plan.works.items():
            if name not in self.exports.there and (lock := optional(work, WorkHooks, "lock")) is not None:
                self._locks.enter_context(lock())
        # Once more, now that no other run can change it.
        stop_at(obstacles(self.plan, self._outputs, self.known, self.exports.there))

    def begin(self, held_nbytes: int) -> None:
        """Write down what the job is, and put in place what is there already.

        Args:
            held_nbytes: of memory, that this process has already.
        """
        self._held_nbytes = held_nbytes
        run_dir = self.job.run_dir
        if not self._resuming:
            taken = [] if not self._goes_on else system.files(run_dir)  # what an earlier try took is still so
            of_work = [file for file in points.files(run_dir) if file not in taken]
            for file in (run_dir / "journal.jsonl", run_dir / "manifest.json", *of_work):
                file.unlink(missing_ok=True)
        if not self._goes_on:
            forgotten(run_dir)
        place.forgotten(run_dir)
        schemas.write("run", run_dir / "run.json", asdict(self._what))
        write_config(run_dir / "config.yaml", self.job.run.tree)
        works = (work for name, work in self.plan.works.items() if name not in self.exports.there)
        computing = [n for n in self.stages.values() if self.plan.nodes[n].computes and n not in self.exports.there]
        tries.begin(run_dir, sum(len(work.chunks) for work in works), len(computing))
        self.began, self.started = True, time.time()
        if self.job.run.tracker is not None:
            self.tracking = self._locks.enter_context(self._tracked(self.started, again=self.job.run.spine.overwrite))
        self.exports.copy()

    def fail(self, why: Exception) -> None:
        """Note why it failed; what stopped it before it began says nothing of the run in its folder."""
        if self.began:
            tries.fail(self.job.run_dir, why)

    @property
    def brings(self) -> Try:
        large = [f for f in self.plan.inputs if f.xxh3_128 is None]
        wanted = [f for f in large if self._digests.of(f) is None] if self.job.run.spine.digest_inputs else []
        contents = {str(f.path): d for f in large if (d := self._digests.of(f)) is not None}
        return Try(self.known, not self._resuming, tuple(wanted), contents, self.exports.there)

    def take_input(self, key: str, digest: str) -> None:
        self.waiting.discard(key)
        if self.known.get(key) != digest:
            self.journal.append(key, digest)

    def take_chunk(self, key: str, record: Mapping[str, Any]) -> None:
        self._given[key] = record
        if not record.get("reused", False):
            self.journal.append(key, record)
            self._worked(record["seconds"])

    def _worked(self, seconds: float) -> None:
        """Note work of the job's own, which ends now."""
        self._first = min(self._first, time.time() - seconds)

    def take_keys(self, key: str, keys: Mapping[str, Key]) -> None:
        self.waiting.discard(key)
        self._keys = keys

    def take_node(self, key: str, result: Any, made_in: Path) -> None:
        """The result of a node, or what was made for it.

        Args:
            made_in: folder of the job for which it was made; what it writes there is copied.

        Raises:
            StorageError: it cannot be copied.
        """
        if isinstance(result, Made):
            name = self.stages[key.removesuffix(":run").removesuffix(":work")]
            self._made[name] = result
            if self.plan.nodes[name].computes:
                tries.made(self.job.run_dir, name)
                if not result.found:
                    self._worked(result.record["lasted"])
            if made_in == self.job.run_dir:
                return
            if result.key is not None:
                self.exports.results.refer(result.key.id)
            written = (made_in / w for w in optional(self.plan.nodes[name].stage, StageHooks, "writes"))
            for file in (f for f in written if f.exists()):
                try:
                    shutil.copyfile(file, self.job.run_dir / file.name)
                except OSError as why:
                    raise StorageError(f"{self.job.run_dir / file.name}: {reason(why)}") from None
        elif key in self.waiting:
            self.waiting.discard(key)
            self._given[self.stages[key]] = result
            if self.stages[key] in self.plan.works:
                self.exports.release(self.stages[key])

    @property
    def computed(self) -> dict[str, float]:
        """Seconds of the stages that computed all that they give."""
        mine = {n: m.record for n, m in self._made.items() if not m.found and not m.record["took"]}
        return {n: sum(t["seconds"] for t in r["stages"].values()) for n, r in mine.items() if n in self.plan.takes}

    @property
    def repeated(self) -> dict[str, tuple[float, float]]:
        """Of these stages, what they did again and again: seconds, and how often."""
        found = {n: self._made[n].record.get("repeated", (0.0, 0.0)) for n in self.computed}
        return {n: (seconds, times) for n, (seconds, times) in found.items() if times}

    def report(self, trace: Traced | None = None) -> Report:
        """What was done, written down; the job is complete then.

        Args:
            trace: in which it will be seen when.
        """
        run, run_dir, plan, there = self.job.run, self.job.run_dir, self.plan, self.exports.there
        self.exports.keep(self._given, self._keys)
        works = {name: work for name, work in plan.works.items() if name not in there}
        keys = [chunk_key(plan, name, chunk) for name, work in works.items() for chunk in work.chunks]
        made = {name: self._made[name] for name in plan.nodes if name in self._made}
        records = [*(self._given[k] for k in keys), *self.exports.records, *(m.record for m in made.values())]
        found = {name: m.found for name, m in made.items() if m.found}
        found |= {name: str(self.exports.kept[name].folder) for name in there}
        resolved_now = {n: m.key for n, m in made.items() if m.key is not None and plan.keys[n].open}
        large = [f for f in plan.inputs if f.xxh3_128 is None] if run.spine.digest_inputs else []
        given = {**self._given, **{f"input:{f.path}": self._digests.of(f) for f in large}}
        # Jobs of a sweep begin together and take turns: one's time is from when it first works itself.
        started = self.started if self._alone else max(self.started, min(self._first, time.time()))
        report = build_report(run, plan, given, records, list(self.job.command), started, found)
        self.records = [*(self._given[k] for k in keys), *(m.record for m in made.values() if not m.found)]
        done = [r for r in self.records if not r.get("reused")]
        whole = len(done) == len(records) and not any(r.get("took") for r in done)
        report = replace(
            report, predicted=_kept_to(run, plan, report, done, self._held_nbytes, whole=whole and self._alone)
        )
        job = "" if self._alone else self.job.name
        report = replace(report, traces=left(run_dir) if trace is None else trace.links(run_dir, job))
        final = describe(plan, self._keys, self._digests.of, self._what, resolved_now)
        final = replace(final, command=self._what.command)
        draw_placements(plan, run_dir)
        if self.tracking is not None:
            self.tracking.catch_up()
            report = replace(report, tracked=self.tracking.record)
        write_records(run_dir, report)
        schemas.write("run", run_dir / "run.json", asdict(final))  # until then the keys are those of the journal
        if self.tracking is not None:
            from pipeline.running.tracked import completed

            report = completed(self.tracking, report)
        self.journal.path.unlink(missing_ok=True)
        self._locks.close()
        return report

    def _tracked(self, started: float, *, again: bool = False) -> "Tracking":
        """What the run's tracker is told of it from now on."""
        from pipeline.running.tracking import Tracking
        from pipeline.tracker import Tracked

        folder = self.job.run_dir
        tags = {"command": shlex.join(self._what.command), "folder": str(folder), "version": versions().get(NAME, "")}
        run = Tracked(self._what.id, folder.name, folder, started, tags=tags)
        return Tracking(self.job.run.tracker, run, self._say, again=again, parent=self._parent)

    def _tell_of(self, report: Report) -> dict[str, str]:
        """A run that is complete already is told to a tracker that has not heard all of it; see `Report.tracked`."""
        from pipeline.running.tracked import completed, known

        if (there := known(self.job.run.tracker, report)) is not None:
            return there
        with self._tracked(report.started) as tracking:
            tracking.catch_up()
            return completed(tracking, report).tracked


def obstacles_ahead(run: RunConfig, plan: Plan, run_dir: Path, command: Sequence[str] = ()) -> list[Problem]:
    """What would stop this run on disk, for a plan that is not executed: another run, a target, too little space."""
    outputs = outputs_of(run)
    if found := [*run_folder(plan), *unkeepable(plan, Results(outputs / FOLDER))]:
        return found
    before = read_description(run_dir)
    what = _as_described(run, plan, before, Digests(), command)
    same = before is not None and not before.new_in(what)
    if same and (run_dir / "manifest.json").exists() and not run.spine.overwrite:
        return []  # complete: running it again does nothing
    try:
        if not same and before is not None and not run.spine.overwrite:
            refuse(run_dir, before, before.new_in(what), what)
        known = Journal(run_dir / "journal.jsonl").read() if same else {}
        results = Results(outputs / FOLDER)
        mine = {n: optional(w, WorkHooks, "target") for n, w in plan.works.items() if adopts(w)}
        targets = {n: target for n, target in mine.items() if target is not None}
        there = [n for n, target in targets.items() if target in places_of(results, plan.keys[n], target)]
        return obstacles(plan, outputs, known, () if run.spine.overwrite else there)
    except WeightmillError as why:
        return [Problem("paths.run", str(why))]


def _as_described(
    run: RunConfig, plan: Plan, before: Description | None, digests: Digests, command: Sequence[str]
) -> Description:
    """What the run is. The keys of one that goes on are those that it began with, whatever is known since."""

    def known(file: InputFile) -> str | None:
        return before.known(file) if before is not None and before.has(file) else digests.of(file)

    keyed(run, plan, known)
    what = describe(plan, plan.keys, known, before)
    if before is not None and before.new_in(what):
        keyed(run, plan, digests.of)
        what = describe(plan, plan.keys, digests.of)
    return replace(what, command=of_what_is_made(command))


def unkeepable(plan: Plan, results: Results) -> Iterable[Problem]:
    """Why what a stage finds cannot be kept."""
    if any(keeps(node) for node in plan.nodes.values()) and (why := results.hindrance):
        yield Problem("paths.outputs", f"results cannot be kept in {results.folder}: {why}")


def stop_at(found: Iterable[Problem]) -> None:
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
        report = Report.from_json(schemas.read("manifest", run_dir / "manifest.json"))
    except schemas.Newer:
        raise
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
    going = Progress("verifying outputs", sum(file["nbytes"] for file in report.outputs), "B")
    for file in report.outputs:
        path = Path(file["path"])
        if not path.exists():
            raise ConfigError(f"{path}: is gone since this run finished; overwrite=true makes it again")
        if digest_file(path).xxh3_128 != file["xxh3_128"]:
            raise ConfigError(f"{path}: was changed since this run finished; overwrite=true makes it again")
        going.add(file["nbytes"])
    events.say(f"complete already, outputs verified: {run_dir}")
    return replace(report, reused=True)


def _kept_to(
    run: RunConfig, plan: Plan, report: Report, mine: Sequence[Mapping[str, Any]], held_nbytes: int, *, whole: bool
) -> list[dict[str, Any]]:
    """See `Report.predicted`.

    Args:
        mine: records of what was done now.
        held_nbytes: that this process had before.
        whole: that is all of it, and nothing was done beside it, so that the time can be compared.
    """
    if not mine:
        return []
    conf = run.spine.dask
    workers: dict[int, int] = {}
    for pid, nbytes in (r["process"] for r in mine):
        workers[pid] = max(nbytes, workers.get(pid, 0))
    main = {} if conf.address else {os.getpid(): peak.nbytes()}
    found = {**workers, **main}.values()  # with `address`, a plan is of one worker
    beside = max((r.get("processes_nbytes", 0) for r in mine), default=0)  # stages that compute come one by one
    assert plan.memory is not None
    rows: list[tuple[str, str, float | None, float]] = [
        ("memory", "bytes", peak_after(plan.memory, conf, held_nbytes),
         (max(found, default=0) if conf.address else sum(found)) + beside),
        ("device", "bytes", max((t.device_nbytes for t in plan.takes.values()), default=0),
         max((r["device_nbytes"] for r in mine), default=0)),
        ("disk", "bytes", plan.written_nbytes + plan.kept_nbytes,
         sum(f["nbytes"] for f in report.outputs) + sum(r["written"] for r in mine)),
    ]  # fmt: skip
    timed = whole and (plan.time is None or plan.time.parts)  # where no time is planned for anything nothing is said
    rows += [("time", "s", plan.time.seconds if plan.time is not None else None, report.seconds)] if timed else []
    unknown = list(plan.time.unknown) if plan.time is not None else []
    return [
        {"what": what, "unit": unit, "planned": planned, "measured": measured}
        | ({"no_rate_yet": unknown} if what == "time" and unknown else {})
        for what, unit, planned, measured in rows
        if planned or measured
    ]
