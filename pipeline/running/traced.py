"""A run that is traced: its tasks tell what they do, wherever they run, and at the end one file is made of it."""

import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import tracing
from pipeline.config.spine import Spine
from pipeline.reporting.trace import NAME, Unwritten, merge, profiles
from pipeline.running.graph import Failure, Task

MAIN = "run"


class Traced:
    """The trace of a run or a sweep, seen from the process that it began in.

    Attributes:
        file: the trace, once it is made.
    """

    def __init__(self, folder: Path, *, jax: bool):
        home = (os.getpid(), tracing.clock_id())
        self._what = tracing.Tracing(str(folder), uuid.uuid4().hex, jax, "worker", home)
        self._folder, self.file = folder, folder / NAME
        self._began = tracing.clock()
        self._lock = threading.Lock()
        self._jobs: dict[str, float] = {}
        self._done: dict[str, str] = {}
        self._told: list[Sequence[Any]] = []
        self._flushed = self._began

    def tasks(
        self, tasks: Sequence[Task], owners: Mapping[str, Sequence[str]], chunks: Mapping[str, Sequence[str]]
    ) -> list[Task]:
        """The same, each of which tells what it does.

        Args:
            owners: task → names of the jobs that it is for; empty where there is one job.
            chunks: task → of each chunk that it does, the job.
        """
        for name in dict.fromkeys(n for names in owners.values() for n in names):
            self._jobs.setdefault(name, tracing.clock())

        def told(task: Task) -> Task:
            of, parts = tuple(owners.get(task.key, ())), tuple(chunks.get(task.key, ()))
            about = (self._what, task.key, task.label or task.key, parts if len(parts) == 1 else of, parts)
            return replace(task, fn=tracing.in_task, args=(*about, task.fn, *task.args))

        return [told(t) for t in tasks]

    def begins(self, wanted: Callable[[Task], bool]) -> Callable[[Task], bool]:
        """`wanted`, which is asked as soon as a task could begin."""

        def asked(task: Task) -> bool:
            self._tell(["sent", task.key, tracing.clock()])
            return wanted(task)

        return asked

    def ended(self, task: Task, result: Any) -> None:
        self._tell(["got", task.key, tracing.clock()])
        if not isinstance(result, Failure):
            self._done[task.key] = task.label or task.key

    def settled(self, job: str, *, well: bool) -> None:
        """A job of a sweep is complete, or has failed."""
        start = self._jobs.pop(job, self._began)
        self._tell([0, "X", job, "job", start, tracing.clock() - start, {"jobs": [job], "failed": not well}, job])

    def links(self, run_dir: Path, job: str = "") -> dict[str, str]:
        """What the record of a job says of its trace: name → path from its folder.

        Args:
            job: of a sweep; of profiles only its own.
        """
        return _links(self._folder, run_dir, job)

    def _tell(self, event: Sequence[Any]) -> None:
        """Events are written together, as those of tasks."""
        with self._lock:
            self._told.append(event)
            if (now := tracing.clock()) - self._flushed >= tracing.EVERY_S or len(self._told) >= tracing.MOST_KEPT:
                tracing.sink(self._what).write(self._told)
                self._told, self._flushed = [], now

    def end(self, say: Callable[[str], None], about: Mapping[str, Any], *, well: bool) -> None:
        """Make the trace; what is wrong with it is said, and no more."""
        parts = self._folder / tracing.PARTS
        file = tracing.sink(self._what)
        if self._done:
            took = tracing.clock() - self._began
            self._told.append([0, "X", MAIN, "run", self._began, took, {"ended": "well" if well else "not"}, MAIN])
        if self._told:
            file.write(self._told)
            self._told = []
        tracing.forget(self._what)
        if file.broken:
            say(f"{file.path}: cannot be written: {file.broken}; the trace lacks what came after")
        if not parts.is_dir():
            if well and not self.file.exists():
                say(f"{self.file}: there is no trace, as nothing was done now; overwrite=true does it again")
            return
        _made(self._folder, about, self._done, say, well=well)


@contextmanager
def traced(
    folder: Path, spines: Sequence[Spine], about: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[Traced | None]:
    """The trace of what runs in the body, if any of `spines` asks for one.

    Args:
        folder: of the run, or of the sweep; nothing is written before there is one.
        about: for the trace's metadata.
        say: for people.
    """
    if not any(s.trace for s in spines):
        yield None
        if (folder / tracing.PARTS).is_dir():
            say(f"{folder / NAME}: tells of earlier tries only: trace=true was not asked for now")
            _made(folder, about, {}, say, well=True)
        return
    here = Traced(folder, jax=any(s.trace_jax for s in spines))
    well = False
    try:
        yield here
        well = True
    finally:
        here.end(say, about, well=well)


def _made(
    folder: Path, about: Mapping[str, Any], done: Mapping[str, str], say: Callable[[str], None], *, well: bool
) -> None:
    try:
        lacking = merge(folder, about, done)
    except Unwritten as why:
        say(f"{why}; there is no trace of this run")
        return
    for line in lacking:
        say(line)
    if well:  # of a run that is to go on they are needed again
        shutil.rmtree(folder / tracing.PARTS, ignore_errors=True)


def left(run_dir: Path) -> dict[str, str]:
    """The links of a run that is not traced now, to what earlier tries told."""
    there = (run_dir / NAME).is_file() or (run_dir / tracing.PARTS).is_dir()
    return _links(run_dir, run_dir, "") if there else {}


def _links(folder: Path, run_dir: Path, job: str) -> dict[str, str]:
    found = {NAME: os.path.relpath(folder / NAME, run_dir)}
    for profile in profiles(folder):
        if not job or job in _jobs_of(profile):
            found[f"{tracing.PROFILES}/{profile.name}"] = os.path.relpath(profile, run_dir)
    return found


def _jobs_of(profile: Path) -> Sequence[str]:
    with suppress(OSError, ValueError):
        return list(json.loads((profile / tracing.JOBS).read_text(encoding="utf-8")))
    return ()


def forgotten(run_dir: Path) -> None:
    """Take away the trace of what stood in the folder before."""
    (run_dir / NAME).unlink(missing_ok=True)
    for name in (tracing.PARTS, tracing.PROFILES):
        shutil.rmtree(run_dir / name, ignore_errors=True)
