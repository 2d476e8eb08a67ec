"""Plan → Dask. The only file that imports dask.

One list of tasks, two lowerings: a dict of `dask.task_spec` tasks for the threaded scheduler, and `client.submit` with
content-hash keys on a cluster. The threaded scheduler knows neither retries nor resources nor what a crash forgot;
those are ours, here and in the runner. Results of tasks are small and printable; they live with the caller, so that a
lost worker loses nothing that was done.
"""

import heapq
import logging
import pickle
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import resource_tracker
from typing import Any

from pipeline.config.spine import Dask
from pipeline.errors import ConfigError, StageError, WeightmillError

SILENT = logging.CRITICAL + 1  # closed connections are "critical" to a scheduler that is being closed


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
                return Failure(label, why)
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A pickled argument. The scheduler, through which it goes, makes objects of all it is sent but this."""

    content: bytes


def attempt_remotely(fn: Callable[..., Any], retries: int, label: str, args: Sequence[Any]) -> Any:
    """`attempt` on a worker: an error that would not survive the way back travels as its text."""
    from distributed.protocol.pickle import loads

    result = attempt(fn, retries, label, [loads(a.content) if isinstance(a, Sealed) else a for a in args])
    return [_travelling(r) for r in result] if isinstance(result, list) else _travelling(result)


def _travelling(result: Any) -> Any:
    if isinstance(result, Failure):
        try:
            pickle.loads(pickle.dumps(result.error))  # noqa: S301  our own bytes: the question is whether they pickle
        except Exception:
            return Failure(result.label, StageError(f"{result.label}: {type(result.error).__name__}: {result.error}"))
    return result


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
        WeightmillError: the first failure, unless `conf.keep_going`; or the scheduler is gone.
    """
    from distributed import as_completed
    from distributed.protocol.pickle import dumps

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
                future = client.submit(
                    attempt_remotely, task.fn, conf.retries, task.label, args,
                    key=f"{task.key}-{session}", retries=conf.retries, resources=dict(task.resources) or None,
                    pure=False, priority=-order[task.key],
                )  # fmt: skip
                futures[future.key] = task, future
                done.add(future)
            if not futures:  # all that was ready was done here
                continue
            future = next(done)
            if future.status == "lost":  # it was done, and its worker died before we looked: the scheduler repeats it
                done.add(future)
                continue
            task = futures.pop(future.key)[0]
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


@contextmanager
def connect(conf: Dask, workers: int, worker_nbytes: int, say: Callable[[str], None]) -> Iterator[Any]:
    """A client of the scheduler at `conf.address`, or of a LocalCluster that lives as long as the body.

    Raises:
        ConfigError: TLS without what it needs.
        StageError: no scheduler answers at the address.
    """
    import dask
    from distributed import Client, LocalCluster

    # A lost worker is dealt with, and what cannot be is raised.
    for name in ("distributed", "distributed.client", "tornado.application", "asyncio"):
        logging.getLogger(name).setLevel(SILENT)
    with ExitStack() as stack:
        if conf.address:
            try:
                security = _certificates(conf.address) if conf.address.startswith("tls://") else None
                client = stack.enter_context(
                    Client(conf.address, timeout="5s", set_as_default=False, security=security)
                )
            except (OSError, TimeoutError, ValueError) as why:
                raise StageError(f"dask.address={conf.address!r}: no scheduler answers there ({why})") from None
            try:
                client.wait_for_workers(1, timeout=5)
            except TimeoutError:
                raise StageError(f"dask.address={conf.address!r}: the scheduler there has no workers") from None
            there = len(client.scheduler_info(n_workers=-1)["workers"])
            say(f"Dask scheduler {client.scheduler.address}, {there} workers")
        else:
            # The plan bounds memory; pausing and spilling at fractions of the limit would only stall it.
            stack.enter_context(
                dask.config.set({f"distributed.worker.memory.{k}": False for k in ("target", "spill", "pause")})
            )
            security = _temporary() if conf.tls else None
            with _interrupts_are_ours():
                cluster = stack.enter_context(
                    LocalCluster(
                        n_workers=workers,
                        threads_per_worker=conf.threads_per_worker,
                        processes=True,
                        memory_limit=worker_nbytes,
                        silence_logs=SILENT,
                        dashboard_address="127.0.0.1:0",  # None would listen on every interface, at port 8787
                        scheduler_kwargs={"dashboard": conf.dashboard},
                        resources=dict(conf.resources) or None,
                        host="127.0.0.1",
                        security=security,
                        protocol="tls://" if conf.tls else None,
                    )
                )
            client = stack.enter_context(Client(cluster, set_as_default=False, security=security))
            where = f", dashboard {client.dashboard_link}" if conf.dashboard else ""
            say(f"Dask cluster: {workers} workers × {conf.threads_per_worker} threads{where}")
        yield client


def _temporary() -> Any:
    """Certificates that live as long as this run, in memory.

    Raises:
        ConfigError: the package that makes them is not installed.
    """
    from distributed import Security

    if find_spec("cryptography") is None:
        raise ConfigError(
            "dask.tls=true: needs the package cryptography, which is not installed: pip install cryptography"
        )
    return Security.temporary()


def _certificates(address: str) -> Any:
    """The certificates that Dask's settings name.

    Raises:
        ConfigError: they name none, or not enough, or what is no certificate.
    """
    from distributed import Security

    security: Any = Security()
    key = "distributed.comm.tls"
    said = (
        f"dask.address={address!r}: TLS takes its certificates from Dask's settings, {key}.ca-file, {key}.client.cert "
    )
    said += f"and {key}.client.key (DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT, …__CLIENT__KEY)"
    names = {"ca-file": security.tls_ca_file, "client.cert": security.tls_client_cert}
    if missing := [name for name, file in names.items() if not file]:
        raise ConfigError(f"{said}; not set: {', '.join(missing)}")
    try:
        security.get_connection_args("client")
    except (OSError, ValueError) as why:  # ssl.SSLError is an OSError
        raise ConfigError(f"{said}; {', '.join(map(str, names.values()))}: {why}") from None
    return security


def worker_limits(client: Any) -> dict[str, int]:
    """Address → bytes that each worker of a cluster may have, of those that have a limit."""
    found = client.scheduler_info(n_workers=-1)["workers"]
    return {address: worker["memory_limit"] for address, worker in found.items() if worker["memory_limit"]}


@contextmanager
def _interrupts_are_ours() -> Iterator[None]:
    """Threads and processes that start in the body never see SIGINT and SIGHUP: Ctrl-C and a closed window reach all of
    a terminal's processes, and one of them should end the run, once. What arrives meanwhile arrives after the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")  # it tidies up after a run that is killed: its job
    resource_tracker.ensure_running()  # it unblocks SIGINT in the thread that starts it
    sys.warnoptions.pop()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
