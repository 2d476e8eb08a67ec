"""Both lowerings of the graph, against the same cases: the threaded scheduler and worker processes.

Tasks leave their marks in files, since a worker process shares nothing else with the test.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.spine import Dask
from pipeline.errors import StageError, StorageError, WeightmillError
from pipeline.running import graph
from pipeline.running.cluster import connect
from pipeline.running.graph import Failure, Ref, Resources, Task, attempt, run_distributed, run_threads

CONF = Dask(
    scheduler="threads", address=None, tls=False, workers=4, threads_per_worker=4, memory="1GiB", chunk="1MiB",
    retries=0, keep_going=False, resources={"device": 1, "pair": 2}, dashboard=False,
)  # fmt: skip

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect(replace(CONF, scheduler="distributed"), 1, 1 << 30, lambda text: None) as client:
        yield client


@pytest.fixture(params=["threads", "distributed"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(tasks, retries=…, keep_going=…, done=[])` → results; `done` collects (key, result) of `on_done`."""

    def go(
        tasks: list[Task], done: list[tuple[str, Any]] | None = None, workers: int = 4, **conf: Any
    ) -> dict[str, Any]:
        def on_done(task: Task, result: Any) -> None:
            if done is not None:
                done.append((task.key, result))

        settings = replace(CONF, **conf)
        if request.param == "threads":
            return run_threads(tasks, settings, workers, on_done)
        # A key names what it computes; each test computes something else.
        salt = f"{request.node.name}-{time.monotonic_ns()}-"
        client = request.getfixturevalue("client")

        def salted(task: Task) -> Task:
            args = tuple(Ref(salt + a.key) if isinstance(a, Ref) else a for a in task.args)
            return replace(task, key=salt + task.key, args=args, after=tuple(salt + k for k in task.after))

        def unsalted(task: Task, result: Any) -> None:
            on_done(replace(task, key=task.key.removeprefix(salt)), result)

        found = run_distributed([salted(t) for t in tasks], settings, client, unsalted)
        return {k.removeprefix(salt): v for k, v in found.items()}

    return go


def give(value: Any) -> Any:
    return value


def add(*values: Any) -> Any:
    return sum(values)


def mark(folder: Path, name: str) -> int:
    """Leaves a mark; returns how many of that name there are now."""
    with (folder / name).open("ab") as file:
        file.write(b"x")
        return file.tell()


def marks(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in folder.iterdir()}


def fails_until(folder: Path, name: str, times: int) -> str:
    if (n := mark(folder, name)) <= times:
        raise OSError(f"try {n}")
    return "done"


def finds(folder: Path, name: str) -> None:
    mark(folder, name)
    raise StorageError(f"{name}: disk full")


def crashes(folder: Path, name: str) -> None:
    mark(folder, name)
    raise ZeroDivisionError("a bug")


def after_a_while(folder: Path, name: str, seconds: float) -> str:
    mark(folder, f"{name}-began")
    time.sleep(seconds)
    mark(folder, f"{name}-ended")
    return name


def at_once(folder: Path, name: str) -> int:
    """How many tasks of `name` are at work together, as far as this one sees."""
    mine = folder / f"{name}-{time.monotonic_ns()}-{threading.get_ident()}"
    mine.touch()
    time.sleep(0.05)
    seen = len([p for p in os.listdir(folder) if p.startswith(f"{name}-")])
    mine.unlink()
    return seen


def test_results_flow_along_the_edges(run: Run) -> None:
    done: list[tuple[str, Any]] = []
    tasks = [
        Task("a", give, (2,), handle=True),
        Task("b", add, (Ref("a"), 3)),
        Task("c", add, (Ref("a"), Ref("b"))),
        Task("d", give, ("x",), after=("c",)),
    ]
    assert run(tasks, done) == {"a": 2, "b": 5, "c": 7, "d": "x"}
    assert sorted(done) == [("a", 2), ("b", 5), ("c", 7), ("d", "x")]


def test_results_that_look_like_keys_or_graphs_are_left_alone(run: Run) -> None:
    """A string that is a key, and a tuple with a callable, are values."""
    tasks = [
        Task("a", give, (1,)),
        Task("b", give, ("a",)),
        Task("c", give, ((give, 1),)),
        Task("d", give, (Ref("c"),)),
    ]
    assert run(tasks) == {"a": 1, "b": "a", "c": (give, 1), "d": (give, 1)}


def test_no_tasks(run: Run) -> None:
    assert run([]) == {}


def test_falsy_results_of_handles_arrive(run: Run) -> None:
    assert run([Task("a", give, (None,), handle=True), Task("b", give, (Ref("a"),))])["b"] is None
    assert run([Task("a", give, (0,)), Task("b", give, (Ref("a"),))])["b"] == 0


def test_after_is_an_order(run: Run, tmp_path: Path) -> None:
    tasks = [Task("late", listing, (tmp_path,), after=("x", "y", "z"))]
    tasks += [Task(k, after_a_while, (tmp_path, k, 0.05)) for k in "xyz"]
    assert run(tasks)["late"] == ["x-began", "x-ended", "y-began", "y-ended", "z-began", "z-ended"]


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_failures_from_outside_are_tried_again(run: Run, tmp_path: Path) -> None:
    assert run([Task("a", fails_until, (tmp_path, "a", 2))], retries=2) == {"a": "done"}
    assert marks(tmp_path) == {"a": 3}


def test_and_only_so_often(run: Run, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="shard 7: OSError: try 2"):
        run([Task("a", fails_until, (tmp_path, "a", 9), label="shard 7")], retries=1)
    assert marks(tmp_path) == {"a": 2}


def test_a_finding_is_not_tried_again(run: Run, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"^f: disk full$"):
        run([Task("f", finds, (tmp_path, "f"))], retries=5)
    assert marks(tmp_path) == {"f": 1}


def test_the_first_failure_ends_the_run(run: Run, tmp_path: Path) -> None:
    """Nothing that came after it starts, and it is the failure that is raised."""
    tasks = [Task("zzz", finds, (tmp_path, "bad"))]
    tasks += [Task(f"t{i}", after_a_while, (tmp_path, f"t{i}", 0.02)) for i in range(200)]
    with pytest.raises(StorageError, match="bad: disk full"):
        run(tasks)
    assert len([m for m in marks(tmp_path) if m.endswith("-ended")]) < 100


def test_keep_going_finishes_what_does_not_depend_on_it(run: Run, tmp_path: Path) -> None:
    done: list[tuple[str, Any]] = []
    tasks = [
        Task("bad", crashes, (tmp_path, "bad"), label="bad task"),
        Task("needs", give, (Ref("bad"),)),
        Task("waits", after_a_while, (tmp_path, "waits", 0), after=("needs",)),
        Task("good", after_a_while, (tmp_path, "good", 0.1)),
        Task("then", give, (Ref("good"),)),
    ]
    results = run(tasks, done, keep_going=True, retries=1)
    assert marks(tmp_path) == {"bad": 2, "good-began": 1, "good-ended": 1}
    assert results["good"] == results["then"] == "good"
    failure = results["bad"]
    assert isinstance(failure, Failure)
    assert results["needs"] == results["waits"] == failure or str(results["waits"].error) == str(failure.error)
    assert sorted(k for k, _ in done) == ["bad", "good", "then"]  # what never ran is not reported as done
    with pytest.raises(StageError, match="bad task: ZeroDivisionError: a bug"):
        failure.raise_()


@pytest.mark.parametrize(("tag", "most"), [("device", 1), ("pair", 2)])
def test_resources_bound_what_runs_at_once(run: Run, tmp_path: Path, tag: str, most: int) -> None:
    tasks = [Task(f"t{i}", at_once, (tmp_path, tag), resources={tag: 1}) for i in range(8)]
    assert max(run(tasks).values()) == most


def test_tasks_without_resources_run_beside_them(run: Run, tmp_path: Path) -> None:
    tasks = [Task(f"t{i}", at_once, (tmp_path, "free")) for i in range(12)]
    assert 1 < max(run(tasks).values()) <= 4


def test_a_task_may_hold_several_resources(run: Run, tmp_path: Path) -> None:
    tasks = [Task(f"t{i}", at_once, (tmp_path, "both"), resources={"device": 1, "pair": 2}) for i in range(4)]
    tasks += [Task(f"u{i}", give, (i,), resources={"pair": 1}) for i in range(4)]
    assert max(run(tasks)[f"t{i}"] for i in range(4)) == 1


def test_resources_come_back_after_a_failure() -> None:
    held = Resources({"device": 1})
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), held.take({"device": 1}):
            raise ZeroDivisionError


def test_an_interrupt_starts_nothing_more(tmp_path: Path) -> None:
    def on_done(task: Task, result: Any) -> None:
        raise KeyboardInterrupt

    tasks = [Task(f"t{i}", after_a_while, (tmp_path, f"t{i}", 0.01)) for i in range(50)]
    with pytest.raises(KeyboardInterrupt):
        run_threads(tasks, CONF, 1, on_done)
    time.sleep(0.1)
    assert len(marks(tmp_path)) < 10


def test_on_done_sees_one_call_at_a_time() -> None:
    inside: list[int] = []
    most: list[int] = []

    def on_done(task: Task, result: Any) -> None:
        inside.append(1)
        time.sleep(0.002)
        most.append(len(inside))
        inside.pop()

    run_threads([Task(f"t{i}", give, (i,)) for i in range(50)], CONF, 8, on_done)
    assert len(most) == 50
    assert set(most) == {1}


def test_attempt_counts() -> None:
    tries: list[int] = []

    def fn(error: Exception) -> None:
        tries.append(1)
        raise error

    assert isinstance(attempt(fn, 3, "x", [OSError()]), Failure)
    assert len(tries) == 4
    tries.clear()
    assert isinstance(attempt(fn, 3, "x", [StageError("x")]), Failure)
    assert len(tries) == 1


def dies_once(folder: Path, name: str) -> str:
    if mark(folder, name) == 1:
        os.kill(os.getpid(), 9)
    return "done"


def test_chunks_run_in_the_order_of_the_plan() -> None:
    """Keys are hashes; on a disk that turns, and for read-ahead, the order of the file is better."""
    seen: list[str] = []
    hashes = [f"{i * 2654435761 % 2**32:08x}" for i in range(200)]
    tasks = [Task("work", give, (1,), handle=True), Task("begin", give, (Ref("work"),))]
    tasks += [Task(h, seen.append, (h,), after=("begin",)) for h in hashes]
    tasks += [Task("finish", give, (Ref("work"),), after=tuple(hashes))]
    run_threads(tasks, CONF, 1, lambda task, result: None)
    assert seen == hashes


def test_a_worker_that_dies_loses_nothing_that_was_done(client: Any, tmp_path: Path) -> None:
    tasks = [
        Task("handle", give, ({"k": 1},), handle=True),
        Task("first", after_a_while, (tmp_path, "first", 0), after=("handle",)),
        Task("dies", dies_once, (tmp_path, "dies"), after=("first",)),
        Task("last", give, (Ref("handle"),), after=("dies",)),
    ]
    results = run_distributed(tasks, replace(CONF, retries=2), client, lambda task, result: None)
    assert results["last"] == {"k": 1}
    assert marks(tmp_path) == {"first-began": 1, "first-ended": 1, "dies": 2}


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_a_result_that_its_worker_took_along_is_made_again(client: Any) -> None:
    """A worker dies between the end of a task and our looking at it."""
    lost: list[str] = []

    def on_done(task: Task, result: Any) -> None:
        if task.key != "first":
            return
        later = next(s for k, s in client.futures.items() if str(k).startswith("later-"))
        wait_until(lambda: later.status == "finished")
        os.kill(result, 9)
        wait_until(lambda: later.status == "lost")
        lost.append(later.status)

    tasks = [Task("first", pid_after, (0,)), Task("later", pid_after, (0.3,))]
    results = run_distributed(tasks, CONF, client, on_done)
    assert lost == ["lost"]
    assert results["later"] not in (results["first"], None)


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.repeats  # tests/cli/resume/test_schedulers.py
def test_no_scheduler_at_the_address() -> None:
    conf = replace(CONF, address="tcp://127.0.0.1:1")
    with (
        pytest.raises(WeightmillError, match=r"dask\.address='tcp://127\.0\.0\.1:1': no scheduler answers"),
        connect(conf, 1, 1 << 30, lambda text: None),
    ):
        pass


def test_a_failure_says_what_failed() -> None:
    why = StorageError("full")
    with pytest.raises(StorageError) as caught:
        Failure("x", why).raise_()
    assert caught.value is why
    with pytest.raises(StageError, match=r"chunk 3: KeyError: 'k'"):
        Failure("chunk 3", KeyError("k")).raise_()


def test_a_graph_of_nothing_but_what_is_there(run: Run) -> None:
    """A handle that nobody takes is not sent to a worker; with nothing else to do, that is the end."""
    assert run([Task("there", abs, (-3,), handle=True, label="there")]) == {"there": 3}


def test_commands_import_dask_without_what_draws_in_notebooks() -> None:
    """And whoever wants jinja2 later has it: chat templates do."""
    code = "import sys\nfrom pipeline.running.graph import import_threads\nimport_threads()\n"
    code += "assert 'dask.threaded' in sys.modules and 'jinja2' not in sys.modules\nimport jinja2\n"
    code += "from dask.threaded import get\nprint(get({'a': 1, 'b': (lambda a: a + 1, 'a')}, 'b'))"
    root = Path(graph.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
