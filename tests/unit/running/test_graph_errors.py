"""What is said of a failure is what failed, wherever it failed and whatever its exception is like."""

import copyreg
import threading
import time

import distributed  # noqa: F401  when it is imported it makes all exceptions travel that there are
import pytest

from pipeline.errors import SourceError, StageError, StorageError, WeightmillError
from pipeline.running.graph import Failure, Task, attempt_remotely, run_threads
from pipeline.running.journal import Journal
from pipeline.tensors import rooms
from tests.unit.running.test_graph import CONF


class TwoWords(Exception):
    """Pickles, and does not come back: what `args` holds is not what `__init__` takes."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


class Held(Exception):
    """Does not pickle."""

    def __init__(self):
        super().__init__("held")
        self.lock = threading.Lock()


def fail(error):
    raise error()


@pytest.mark.parametrize("error", [lambda: TwoWords("a", "b"), Held])
def test_an_error_that_cannot_travel_travels_as_text(error):
    copyreg.dispatch_table.pop(TwoWords, None)  # where distributed was imported before, it has made it travel
    result = attempt_remotely(fail, 0, "export x", [error])
    assert type(result.error) is StageError
    assert str(result.error).startswith("export x: ")
    assert str(error()) in str(result.error)


@pytest.mark.parametrize("error", [lambda: SourceError("gone"), lambda: KeyError("k")])
def test_an_error_that_can_travels_as_it_is(error):
    result = attempt_remotely(fail, 0, "export x", [error])
    assert isinstance(result, Failure)
    assert type(result.error) is type(error())


def test_the_error_is_that_of_the_task_that_failed_and_not_of_one_it_stopped():
    def slow(n):
        time.sleep(0.02)
        raise SourceError(f"task {n}")

    for _ in range(10):
        tasks = [Task(f"t{n}", slow, (n,), label=f"t{n}") for n in range(40)]
        with pytest.raises(WeightmillError, match="task"):
            run_threads(tasks, CONF, 4, lambda task, result: None)


def test_a_journal_on_a_full_disk_says_so(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("a", 1)
    journal.close()
    full = Journal(tmp_path / "full")
    full.path.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        full.append("b", 2)
    full.close()  # nothing that failed is tried again


def test_what_a_task_read_into_is_let_go_of_where_it_failed():
    def reads():
        with rooms.reused():
            rooms.unfilled(rooms.LEAST_NBYTES)
        assert rooms._rooms
        raise SourceError("cut short")

    with pytest.raises(SourceError):
        run_threads([Task("t", reads, (), label="t")], CONF, 1, lambda task, result: None)
    assert not rooms._rooms
