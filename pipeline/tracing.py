"""What each process of a traced run did, and when: spans, instants and counters, for one timeline of the run.

A task's events are collected in memory while it runs and appended to a file of its process, a line each: when the
task ends, after `EVERY_S`, or when there are `MOST_KEPT` of them. So a process that is killed leaves what it had, and
nothing has to travel back over a Dask edge. `pipeline.reporting.trace` makes one file of them.

Where nothing is traced, `active` is False, and whoever could tell something asks that and no more. Times are those of
`clock`, CLOCK_MONOTONIC on Linux, which all processes of a machine share; the head of each file says which clock that
is, and when it said what beside the wall clock, so that several machines come to lie on one line.
"""

import json
import math
import os
import platform
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import short
from pipeline.redact import hide

active = False  # whether a task of a traced run is at work in this process

clock = time.perf_counter
PARTS = "trace.parts"  # folder of the files of processes, beside the trace that is made of them
PROFILES = "trace.jax"  # folder of what jax.profiler wrote
JOBS = "jobs.json"  # in the folder of a profile: of a sweep, those that it is for
MOST_KEPT = 4096  # events of a task in memory
MOST_EVENTS = 250_000  # of a process; what comes after is counted only
EVERY_S = 0.5  # how much a killed task may lose
SAMPLE_S = 0.05  # between two looks at the memory
LONGEST_ERROR = 300  # characters of why a task failed
JAX_KINDS = {"jaxpr_trace": "trace", "jaxpr_to_mlir_module": "lower", "backend_compile": "compile"}


@dataclass(frozen=True, slots=True)
class Tracing:
    """What a traced run tells its processes.

    Attributes:
        folder: where the trace will lie.
        session: of the try, so that its processes are known as its own.
        jax: `jax.profiler` is wanted as well.
        role: what a process of it is, for people; where it is not the one that the run began in.
        home: process id and clock of that one.
    """

    folder: str
    session: str
    jax: bool
    role: str
    home: tuple[int, str]


def encoded(line: Any) -> bytes:
    """A line of JSON with its end; `orjson` takes a fifth of the time of `json`, and refuses some that Python has."""
    import orjson  # a plan writes none

    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a character, as names of files have, or a number of more than 64 bits
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def clock_id() -> str:
    """Equal in processes whose `clock` is the same: of one boot of one machine, and one time namespace."""
    if sys.platform != "linux":
        return platform.node()
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/time')}"
    return platform.node()


def both_clocks() -> tuple[float, int]:
    """`clock` and, at the same moment, nanoseconds of the wall clock."""
    tries = [(clock(), time.time_ns(), clock()) for _ in range(8)]
    before, wall, after = min(tries, key=lambda t: t[2] - t[0])
    return (before + after) / 2, wall


class Sink:
    """The file of this process; what cannot be written is counted, and why is kept (`broken`)."""

    def __init__(self, what: Tracing, role: str):
        self.path = Path(what.folder) / PARTS / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self.broken = ""
        self.next_sample = 0.0
        self._what, self._role, self._pid = what, role, os.getpid()
        self._lock, self._fd, self._written, self._tasks = threading.Lock(), -1, 0, 0
        self._threads: set[int] = set()

    @property
    def mine(self) -> bool:
        """Whether it was made in this process, and not in one that this was forked from."""
        return self._pid == os.getpid()

    def number(self) -> int:
        """Of the next task in this file."""
        with self._lock:
            self._tasks += 1
            return self._tasks

    def write(self, events: Sequence[Sequence[Any]]) -> None:
        with self._lock:
            if self.broken:
                return
            room = max(0, MOST_EVENTS - self._written)
            lines: list[Any] = [*events[:room], *([["dropped", len(events) - room]] if len(events) > room else [])]
            thread = threading.get_native_id()
            if thread not in self._threads:
                self._threads.add(thread)
                lines.insert(0, ["thread", thread, threading.current_thread().name])
            self._written += min(room, len(events))
            try:
                if self._fd < 0:
                    self._open()
                self._append(lines)
            except OSError as why:
                self.broken = why.strerror or str(why)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        perf, wall = both_clocks()
        head = {"pid": self._pid, "host": platform.node(), "role": self._role, "session": self._what.session}
        self._append([head | {"clock": clock_id(), "perf_s": perf, "wall_ns": wall}])

    def _append(self, lines: Sequence[Any]) -> None:
        data = b"".join(map(encoded, lines))
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


@dataclass(slots=True)
class _Task:
    """A task at work: what it told and is not written yet."""

    what: Tracing
    sink: Sink
    number: int
    key: str
    label: str
    jobs: tuple[str, ...]
    parts: tuple[str, ...] = ()
    events: list[tuple[Any, ...]] = field(default_factory=list)
    ends: list[Callable[[], None]] = field(default_factory=list)
    began: float = 0.0
    flushed: float = 0.0
    compiled: list[tuple[float, float]] = field(default_factory=list)

    def add(
        self, phase: str, name: str, kind: str, start: float, value: float, args: Mapping[str, Any], now: float
    ) -> None:
        """Args: as `pipeline.reporting.trace.Part.events`; `now`: as `clock` says."""
        events = self.events
        events.append((self.number, phase, name, kind, start, value, args, threading.get_native_id()))
        if now >= self.sink.next_sample:
            self.sink.next_sample = now + SAMPLE_S
            events.append((self.number, "C", "RSS", "memory", now, resident(), {}, 0))
        if len(events) >= MOST_KEPT or now - self.flushed >= EVERY_S:
            self.flush(now)

    def flush(self, now: float) -> None:
        self.sink.write(self.events)
        self.events, self.flushed = [], now


_here: ContextVar[_Task | None] = ContextVar("traced task", default=None)
_sinks: dict[tuple[str, str], Sink] = {}
_lock = threading.Lock()
_running = 0
_listening = False


def sink(what: Tracing) -> Sink:
    """The file of this process for that run."""
    key = what.folder, what.session
    with _lock:
        if key not in _sinks or not _sinks[key].mine:
            at_home = what.home == (os.getpid(), clock_id())
            _sinks[key] = Sink(what, "run" if at_home else what.role)
        return _sinks[key]


def forget(what: Tracing) -> None:
    """Close the file of this process."""
    with _lock:
        found = _sinks.pop((what.folder, what.session), None)
    if found is not None:
        found.close()


def in_task(
    what: Tracing, key: str, label: str, jobs: tuple[str, ...], parts: tuple[str, ...], fn: Callable[..., Any],
    *args: Any,
) -> Any:  # fmt: skip
    """`fn(*args)` as a task of a traced run.

    Args:
        jobs: those of a sweep that it is for.
        parts: of each chunk that it does the job, where it does several.
    """
    global active, _running
    file = sink(what)
    now = clock()
    task = _Task(what, file, file.number(), key, label, jobs, parts, began=now, flushed=now)
    token = _here.set(task)
    with _lock:
        _running += 1
        active = True
    listen()
    failed: dict[str, Any] = {"failed": "interrupted"}
    try:
        result = fn(*args)
        failed = {}
        return result
    except Exception as why:
        failed = failure(why)
        raise
    finally:
        while task.ends:
            task.ends.pop()()
        of = {"jobs": list(jobs)} if jobs else {}
        end = clock()
        about = {"key": key, **of, **failed}
        task.add("X", label, "task", task.began, end - task.began, about, end)
        task.events.append((task.number, "end", key))
        task.flush(end)
        _here.reset(token)
        with _lock:
            _running -= 1
            active = _running > 0


def failure(why: BaseException) -> dict[str, Any]:
    """What a span says of the error that ended it."""
    return {"failed": type(why).__name__, "error": short(hide(str(why)), LONGEST_ERROR)}


def carried(call: Callable[[], Any], role: Callable[[], str]) -> Callable[[], Any]:
    """`call` for another process, which takes part in the trace if this task does.

    Args:
        role: what that process is, asked there.
    """
    task = _here.get()
    if task is None:
        return call
    return partial(_in_member, task.what, role, task.key, task.label, task.jobs, call)


def _in_member(
    what: Tracing, role: Callable[[], str], key: str, label: str, jobs: tuple[str, ...], call: Callable[[], Any]
) -> Any:
    return in_task(replace(what, role=role()), key, label, jobs, (), call)


def part(n: int) -> None:
    """What follows is for the n-th chunk of the task."""
    task = _here.get()
    if task is not None and task.parts:
        task.jobs = (task.parts[n],)


def done(name: str, kind: str, start: float, seconds: float | None = None, **args: Any) -> None:
    """A span.

    Args:
        start: when it began, as `clock` said; 0: nothing was traced yet then, and nothing is told.
        seconds: how long it took; None: until now.
    """
    task = _here.get()
    if task is None or not start:
        return
    now = clock()
    if task.jobs:
        args["jobs"] = list(task.jobs)
    task.add("X", name, kind, start, now - start if seconds is None else seconds, args, now)


def instant(name: str, kind: str, **args: Any) -> None:
    """Something that takes no time."""
    task = _here.get()
    if task is not None:
        now = clock()
        task.add("i", name, kind, now, 0.0, args | ({"jobs": list(task.jobs)} if task.jobs else {}), now)


def counter(name: str, value: int) -> None:
    """So much from now on."""
    task = _here.get()
    if task is not None:
        now = clock()
        task.add("C", name, "memory", now, value, {}, now)


def kernel(start: float, op: str, backend: str, given: Any, gave: Any) -> None:
    """A call of an op, with the bytes of what it was given and gave. One that was traced by JAX, and not done, says so:
    it is done as a part of a compiled program."""
    if _here.get() is None:
        return
    seconds = clock() - start
    nbytes_in, nbytes_out = _nbytes(given), _nbytes(gave)
    kind = "kernel, traced" if _abstract(gave) else "kernel"
    done(op, kind, start, seconds, op=op, backend=backend, nbytes_in=nbytes_in, nbytes_out=nbytes_out)


def _nbytes(value: Any) -> int:
    """Of the arrays in what an op takes or gives."""
    if isinstance(value, list | tuple):
        return sum(map(_nbytes, value))
    if isinstance(value, dict):
        return sum(map(_nbytes, value.values()))
    if (components := getattr(value, "components", None)) is not None:
        return _nbytes(components)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return math.prod(shape) * int(getattr(dtype, "itemsize", 1)) if shape is not None and dtype is not None else 0


def _abstract(value: Any) -> bool:
    """Whether what an op gives stands for an array in a program that JAX makes."""
    jax = sys.modules.get("jax")
    if jax is None:
        return False
    while isinstance(value, list | tuple | dict) or getattr(value, "components", None) is not None:
        inner = value if isinstance(value, list | tuple | dict) else value.components
        value = next(iter(inner.values() if isinstance(inner, dict) else inner), None)
    return isinstance(value, jax.core.Tracer)


def profile(begin: Callable[[str], None], end: Callable[[], None]) -> None:
    """Have this task profiled, if that is asked for and not done yet.

    Args:
        begin: given the folder.
        end: called when the task ends.
    """
    task = _here.get()
    if task is None or not task.what.jax or task.ends:
        return
    safe = "".join(c if c.isalnum() or c in "_-" else "_" for c in task.label)[:80]
    place = Path(task.what.folder) / PROFILES / f"{safe}-{os.getpid()}-{task.number}"
    try:
        place.mkdir(parents=True)
        if task.jobs:
            (place / JOBS).write_text(json.dumps(task.jobs), encoding="utf-8")
        begin(str(place))
    except (OSError, RuntimeError) as why:  # of JAX: another profile is being taken in this process
        shutil.rmtree(place, ignore_errors=True)
        instant("no jax.profiler trace", "profile", why=str(why))
        return
    task.ends.append(end)
    instant("jax.profiler", "profile", folder=f"{PROFILES}/{place.name}")


def listen() -> None:
    """Hear of what JAX compiles, once somebody has imported it; it is not imported here."""
    global _listening
    monitoring = sys.modules.get("jax.monitoring")
    if monitoring is None or _listening:
        return
    _listening = True
    monitoring.register_event_duration_secs_listener(_compiled)


def _compiled(event: str, seconds: float, **about: Any) -> None:
    """JAX's durations come when they end, on the thread that compiles; what it compiles meanwhile lies within."""
    task = _here.get() if active else None
    kind = event.rpartition("/")[2].removesuffix("_duration")
    if task is None or kind not in JAX_KINDS:
        return
    end = clock()
    start = max(end - seconds, task.began)
    while task.compiled and (before := task.compiled[-1])[1] > start:  # JAX has another clock: a little is nothing
        if start > sum(before) / 2:
            start = before[1]
            break
        start = min(start, task.compiled.pop()[0])  # it lies within
    task.compiled.append((start, end))
    said = {k: str(v) for k, v in about.items()}
    done(f"{JAX_KINDS[kind]} {said.get('fun_name', '')}".strip(), "jax", start, end - start, event=event, **said)


def resident() -> int:
    """Resident bytes of this process now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
