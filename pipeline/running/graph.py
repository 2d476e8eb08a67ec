"""Plan → Dask.

One list of tasks, two lowerings: a dict of `dask.task_spec` tasks for the threaded scheduler, and `client.submit` with
content-hash keys on a cluster. The threaded scheduler knows neither retries nor resources nor what a crash forgot;
those are ours, here and in the runner. Results of tasks are small and printable; they live with the caller, so that a
lost worker loses nothing that was done.
"""

import heapq
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.config import extend
from pipeline.config.spine import Dask
from pipeline.errors import PlanError, StageError, WeightmillError
from pipeline.importing import without
from pipeline.running import gang, pinned
from pipeline.running.blame import blamed
from pipeline.running.cluster import bring_the_users_code
from pipeline.stage import Gang
from pipeline.tensors import rooms


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for another task's result among a task's arguments; for one of the results of a task that gives several.

    Attributes:
        key: of the task.
        item: which of its results; None: it gives one.
    """

    key: str
    item: int | None = None

    def of(self, result: Any) -> Any:
        """What is meant of the task's result."""
        return result if self.item is None or isinstance(result, Failure) else result[self.item]


@dataclass(frozen=True, slots=True)
class Task:
    """One call.

    Attributes:
        key: unique; content-hashed where the result is worth keeping.
        fn: module-level function, so that it pickles.
        args: values, or `Ref`s to other tasks' results.
        after: tasks that must be done first, whose results are not needed.
        behind: tasks that must have ended first, well or not.
        tolerant: takes the failures among its arguments, which would otherwise be its own.
        resources: tags and amounts that the task holds while it runs.
        handle: the result is a handle that many tasks take; on a cluster it stays with the workers.
        label: for people.
        weight: bytes, for progress.
        gang: the processes that it starts; on a cluster each on a worker of its own.
    """

    key: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    after: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    tolerant: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)
    handle: bool = False
    label: str = ""
    weight: int = 0
    gang: Gang | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The result of a task that failed, or that needed one which did."""

    label: str
    error: Exception

    def raise_(self) -> None:
        if isinstance(self.error, WeightmillError):
            raise self.error
        raise StageError(f"{self.label}: {type(self.error).__name__}: {self.error}") from self.error


OnDone = Callable[[Task, Any], None]
Wanted = Callable[[Task], bool]


def anything(task: Task) -> bool:
    """Every task is wanted."""
    return True


def _failed(task: Task, args: Sequence[Any], after: Sequence[Any]) -> Failure | None:
    """The failure of what came before that keeps `task` from running."""
    return next((r for r in (*(() if task.tolerant else args), *after) if isinstance(r, Failure)), None)


def attempt(fn: Callable[..., Any], retries: int, label: str, args: Sequence[Any]) -> Any:
    """Call `fn`; try again after errors from outside. A WeightmillError is a finding and would only be found again."""
    for left in range(retries, -1, -1):
        try:
            return fn(*args)
        except WeightmillError as why:
            return Failure(label, why)
        except Exception as why:
            if left == 0:
                return Failure(blamed(label, why), why)
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A pickled argument. The scheduler, through which it goes, makes objects of all it is sent but this."""

    content: bytes


def attempt_remotely(
    fn: Callable[..., Any], retries: int, label: str, args: Sequence[Any], start: gang.Start | None = None,
    code: str | None = None,
) -> Any:  # fmt: skip
    """`attempt` on a worker: an error that would not survive the way back travels as its text.

    Args:
        start: starts the processes of a gang; None: it has none.
        code: the version of the user's code that the worker was sent, and that it has to have; None: it was sent none.
    """
    from distributed.protocol.pickle import loads

    with ExitStack() as stack:
        try:
            stack.enter_context(extend.holding(code))
        except StageError as why:
            return Failure(label, why)
        stack.enter_context(nullcontext() if start is None else gang.started_by(start))
        result = attempt(fn, retries, label, [loads(a.content) if isinstance(a, Sealed) else a for a in args])
    return [_travelling(r) for r in result] if isinstance(result, list) else _travelling(result)


def _travelling(result: Any) -> Any:
    if isinstance(result, Failure):
        try:
            pickle.loads(pickle.dumps(result.error))  # noqa: S301  our own bytes: the question is whether they pickle
        except Exception:
            return Failure(result.label, StageError(f"{result.label}: {type(result.error).__name__}: {result.error}"))
    return result


def import_threads() -> None:
    """Dask's threaded scheduler, in a process that shows no notebook: without the tables that Dask draws there.

    They want jinja2, a third of the import.
    """
    with without("jinja2"):
        import dask.threaded  # noqa: F401


def run_threads(
    tasks: Sequence[Task], conf: Dask, workers: int, on_done: OnDone, wanted: Wanted = anything
) -> dict[str, Any]:
    """Run on Dask's threaded scheduler in this process; returns every task's result (a `Failure` where it failed).

    Args:
        on_done: told of every task that ran.
        wanted: asked when a task could begin; one that nobody wants any more fails without being tried.

    Raises:
        WeightmillError: the first failure, unless `conf.keep_going`.
    """
    from dask.task_spec import List, TaskRef
    from dask.task_spec import Task as DaskTask
    from dask.threaded import get

    lock = threading.Lock()
    stop = threading.Event()
    held = Resources(conf.resources)
    results: dict[str, Any] = {}
    first: list[Failure] = []

    def call(task: Task, given: list[Any], after: list[Any], behind: list[Any]) -> Any:
        args = [ref.of(a) if isinstance(ref, Ref) else a for ref, a in zip(task.args, given, strict=True)]
        failed = _failed(task, args, after) or _unwanted(task, wanted)
        if failed is not None or stop.is_set():
            result: Any = failed or Failure(task.label, StageError("stopped"))
        else:
            with held.take(task.resources):
                result = attempt(task.fn, conf.retries, task.label, args)
        with lock:
            results[task.key] = result
            if isinstance(result, Failure) and failed is None and not conf.keep_going and not stop.is_set():
                first.append(result)
                stop.set()
            if failed is None and not stop.is_set():
                on_done(task, result)
        if isinstance(result, Failure) and not conf.keep_going:
            result.raise_()
        return result

    # Among equals Dask takes the largest key first. Ours are hashes, but a checkpoint is best read from front to back.
    place = {t.key: f"{len(tasks) - i:09d}" for i, t in enumerate(tasks)}
    graph = {}
    for task in tasks:
        args = List(*(TaskRef(place[a.key]) if isinstance(a, Ref) else a for a in task.args))
        after, behind = (List(*(TaskRef(place[k]) for k in keys)) for keys in (task.after, task.behind))
        graph[place[task.key]] = DaskTask(place[task.key], call, task, args, after, behind)
    try:
        get(graph, list(graph), num_workers=workers)
    except Exception:
        if first:  # what Dask saw first may be a task that only stopped because of it
            first[0].raise_()
        raise
    finally:
        with lock:  # after an interrupt, tasks already queued must not start, and none may report any more
            stop.set()
        rooms.let_go()  # of threads whose work did not come to its end
    return results


def _unwanted(task: Task, wanted: Wanted) -> Failure | None:
    return None if wanted(task) else Failure(task.label, StageError("not wanted any more"))


class Resources:
    """Counted tags for the threaded scheduler: a task waits until all it needs is free, and takes it at once."""

    def __init__(self, capacity: Mapping[str, float]):
        self._free = dict(capacity)
        self._changed = threading.Condition()

    @contextmanager
    def take(self, wanted: Mapping[str, float]) -> Iterator[None]:
        if not wanted:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: all(self._free.get(k, 0.0) >= v for k, v in wanted.items()))
            for k, v in wanted.items():
                self._free[k] -= v
        try:
            yield
        finally:
            with self._changed:
                for k, v in wanted.items():
                    self._free[k] += v
                self._changed.notify_all()


def run_distributed(  # noqa: C901  one loop with its state
    tasks: Sequence[Task], conf: Dask, client: Any, on_done: OnDone, wanted: Wanted = anything
) -> dict[str, Any]:
    """Run on a Dask cluster; the same contract as `run_threads`.

    A task is submitted when everything before it is done and its results are here, so nothing that was done depends on
    a worker staying alive. A worker that dies has its running tasks repeated elsewhere; tasks write the same bytes to
    the same place, so that is safe.

    Raises:
        WeightmillError: the first failure, unless `conf.keep_going`; or the scheduler is gone, or another run with
            other code of its own is at work on workers that are not ours.
    """
    from distributed import as_completed
    from distributed.protocol.pickle import dumps

    code = bring_the_users_code(client) if conf.address else None  # our own workers have the folder
    session = uuid.uuid4().hex  # a scheduler may serve others, whose keys must not be ours
    waiting = {t.key: {*_refs(t), *t.after, *t.behind} for t in tasks}
    users: dict[str, list[str]] = {}
    for key, needs in waiting.items():
        for need in needs:
            users.setdefault(need, []).append(key)
    order = {t.key: i for i, t in enumerate(tasks)}
    ready = [order[k] for k, needs in waiting.items() if not needs]
    heapq.heapify(ready)
    results: dict[str, Any] = {}
    handles: dict[str, Any] = {}
    futures: dict[str, tuple[Task, Any]] = {}
    done = as_completed(loop=client.loop, raise_errors=False)
    for task in tasks:
        if task.gang is not None:  # rather now than when they are to start
            pinned.choose(client, task.gang, task.resources)

    def settle(task: Task, result: Any, *, ran: bool) -> None:
        results[task.key] = result
        if ran:
            on_done(task, result)
        if isinstance(result, Failure) and not conf.keep_going:
            result.raise_()
        for user in users.get(task.key, ()):
            waiting[user].discard(task.key)
            if not waiting[user]:
                heapq.heappush(ready, order[user])

    try:
        while ready or futures:
            while ready:
                task = tasks[heapq.heappop(ready)]
                given = [a.of(results[a.key]) if isinstance(a, Ref) else a for a in task.args]
                failed = _failed(task, given, [results[k] for k in task.after]) or _unwanted(task, wanted)
                if failed is not None:
                    settle(task, failed, ran=False)
                    continue
                if task.handle and task.key not in users and not (_refs(task) or task.after):  # nobody there takes it
                    settle(task, attempt(task.fn, conf.retries, task.label, task.args), ran=True)
                    continue
                there = [handles.get(a.key) if isinstance(a, Ref) and a.item is None else None for a in task.args]
                args = [future or Sealed(dumps(a)) for future, a in zip(there, given, strict=True)]
                how: dict[str, Any] = {"resources": dict(task.resources) or None}
                start: gang.Start | None = None
                if task.gang is not None:  # it watches on the first of their workers; they take what it would
                    try:
                        places = pinned.choose(client, task.gang, task.resources)
                    except PlanError as why:
                        settle(task, Failure(task.label, why), ran=True)
                        continue
                    start = partial(pinned.on_workers, places, task.resources, code)
                    how = {"workers": [places[0]], "allow_other_workers": False}
                future = client.submit(
                    attempt_remotely, task.fn, conf.retries, task.label, args, start, code,
                    key=f"{task.key}-{session}", retries=conf.retries, pure=False, priority=-order[task.key], **how,
                )  # fmt: skip
                futures[future.key] = task, future
                done.add(future)
                if task.gang is not None:
                    pinned.cancelled_without(client, places[0], future)
            if not futures:  # all that was ready was done here
                continue
            future = next(done)
            if future.status == "lost":  # it was done, and its worker died before we looked: the scheduler repeats it
                done.add(future)
                continue
            task = futures.pop(future.key)[0]
            if future.status == "cancelled" and task.gang is not None and client.status == "running":
                text = f"{task.label}: the Dask worker that watched its {task.gang.processes} processes is gone"
                settle(task, Failure(task.label, StageError(f"{text}; the others were ended")), ran=True)
                continue
            if future.status not in ("finished", "error"):
                raise StageError(f"{task.label}: lost ({future.status}): the Dask scheduler is gone or dropped it")
            good = future.status == "finished"
            try:
                result = future.result() if good else Failure(task.label, future.exception())
            except (OSError, CancelledError) as why:  # a connection that broke is an OSError
                raise StageError(f"{task.label}: its result is lost, the Dask scheduler is gone ({why})") from None
            if task.handle:
                handles[task.key] = future
            del future  # the scheduler keeps what somebody refers to, and would make it again should its worker die
            settle(task, result, ran=True)
    finally:
        if futures and client.status == "running":
            client.cancel([f for _, f in futures.values()], force=True)
    return results


def _refs(task: Task) -> list[str]:
    return [a.key for a in task.args if isinstance(a, Ref)]
