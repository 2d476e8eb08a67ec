"""What is kept under a key: made once, whole or not at all, known to the runs that refer to it."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.files import clone
from pipeline.running.results import FOLDER, Results, keepable, packed, remove, unpacked, unreferred

KEY = "a" * 32
PARTS = {"stage": "stages.x.X"}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / FOLDER)


def counted(calls: list[int], value: Any = 1) -> Any:
    def make(folder: Path) -> Any:
        calls.append(1)
        (folder / "extra.bin").write_bytes(b"extra")
        (folder / "inner").mkdir()
        (folder / "inner" / "more.bin").write_bytes(b"more")
        return {"value": value}

    return make


def test_made_once_and_then_found(results: Results) -> None:
    calls: list[int] = []
    for _ in range(3):
        value, folder = results.once(KEY, counted(calls), files=["extra.bin"], parts=PARTS)
        assert value == {"value": 1}
        assert (folder / "extra.bin").read_bytes() == b"extra"
    assert len(calls) == 1
    assert sorted(p.name for p in results.folder.iterdir()) == [KEY]  # no lock and nothing half-written stays
    assert results.once(KEY, counted(calls, 2), again=True)[0] == {"value": 2}
    assert results.once(KEY, counted(calls))[0] == {"value": 2}
    assert len(calls) == 2


def test_what_is_damaged_or_lacks_a_file_is_made_again(results: Results) -> None:
    calls: list[int] = []
    _, folder = results.once(KEY, counted(calls))
    record = folder / "result.json"
    for damage in (
        lambda: (folder / "extra.bin").write_bytes(b"eXtra"),
        lambda: (folder / "extra.bin").unlink(),
        lambda: (folder / "inner" / "more.bin").write_bytes(b"less"),
        lambda: record.write_text(record.read_text().replace('"value": 1', '"value": 7')),
        lambda: record.write_text("{"),
    ):  # fmt: skip
        damage()
        before = len(calls)
        assert results.once(KEY, counted(calls))[0] == {"value": 1}
        assert len(calls) == before + 1
    other: list[int] = []
    results.once(KEY, counted(other), files=["states.npz"])  # there is a result, and not with that file
    assert other


def test_a_failure_keeps_nothing(results: Results) -> None:
    def fails(folder: Path) -> Any:
        (folder / "half").write_text("")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        results.once(KEY, fails)
    assert not results.folder.exists() or not [*results.folder.iterdir()]


def test_of_many_threads_one_computes(results: Results) -> None:
    calls: list[int] = []
    started = threading.Barrier(4)

    def make(folder: Path) -> Any:
        calls.append(1)
        time.sleep(0.2)
        return 5

    found: list[Any] = []

    def ask() -> None:
        started.wait()
        found.append(results.once(KEY, make)[0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (found, len(calls)) == ([5] * 4, 1)


OTHER = """
import sys, time
from pathlib import Path
from pipeline.running.results import Results

def make(folder):
    print("begun", flush=True)
    time.sleep({seconds})
    return "theirs"

print(Results(Path(sys.argv[1])).once({key!r}, make)[0], flush=True)
"""


def other(results: Results, seconds: float) -> subprocess.Popen[str]:
    """Another process, which has begun to compute the key."""
    code = OTHER.format(seconds=seconds, key=KEY)
    process = subprocess.Popen([sys.executable, "-c", code, str(results.folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_another_process_is_waited_for(results: Results) -> None:
    process = other(results, 0.5)
    calls: list[int] = []
    assert results.once(KEY, counted(calls))[0] == "theirs"
    assert not calls
    assert process.communicate()[0] == "theirs\n"


def test_when_it_dies_this_one_takes_over(results: Results) -> None:
    process = other(results, 600)
    killer = threading.Timer(0.3, process.kill)
    killer.start()
    calls: list[int] = []
    assert results.once(KEY, counted(calls))[0] == {"value": 1}
    assert len(calls) == 1
    assert process.wait() < 0
    process.communicate()
    assert sorted(p.name for p in results.folder.iterdir()) == [KEY]  # what the dead one had begun is gone


def run_of(folder: Path, identity: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"id": identity}))
    return folder


def test_what_no_run_refers_to_is_listed_and_removed(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    mine, theirs = run_of(outputs / "mine", "1"), run_of(tmp_path / "elsewhere", "2")
    first = Results(outputs / FOLDER, mine, "1")
    first.once(KEY, counted([]), parts=PARTS)
    Results(outputs / FOLDER, theirs, "2").once(KEY, counted([]))
    Results(outputs / FOLDER).once("b" * 32, counted([]), parts=PARTS)
    [found] = unreferred(outputs)
    assert (found.path.name, found.what) == ("b" * 32, "X")
    assert found.nbytes == sum(p.stat().st_size for p in found.path.rglob("*") if p.is_file())
    remove(found)
    assert unreferred(outputs) == []
    (mine / "run.json").unlink()
    assert unreferred(outputs) == []  # the other run, outside, has it
    run_of(theirs, "3")  # made again: it is another run now
    assert [f.path.name for f in unreferred(outputs)] == [KEY]


def test_a_run_that_was_moved_with_all_the_others_still_refers(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    Results(outputs / FOLDER, run_of(outputs / "mine", "1"), "1").once(KEY, counted([]))
    outputs.rename(tmp_path / "moved")
    assert unreferred(tmp_path / "moved") == []


def test_what_is_being_computed_is_not_removed(results: Results) -> None:
    with results.alone(KEY):
        (results.folder / f"{KEY}.partial").mkdir()
        assert unreferred(results.folder.parent) == []
    [left] = unreferred(results.folder.parent)  # of a process that was killed
    with results.alone(KEY), pytest.raises(StorageError, match="is being computed"):
        remove(left)
    remove(left)
    assert not [*results.folder.glob("*.partial")]


@dataclass(frozen=True)
class Row:
    name: str
    value: float


@dataclass(frozen=True)
class Finding:
    rows: tuple[Row, ...]
    texts: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, Any]
    worst: str | None = None


def test_results_come_back_from_json_as_they_were() -> None:
    finding = Finding((Row("a", 1.5), Row("b", float("inf"))), {"t": {"nll": 0.1}}, {"device": "cpu", "n": [1, 2]})
    assert keepable(finding, Finding)
    assert unpacked(json.loads(json.dumps(packed(finding))), Finding) == finding
    assert unpacked({"rows": []}, Finding) is None  # of another version of the class


def test_what_would_come_back_otherwise_is_not_kept() -> None:
    assert not keepable(None, Finding)
    assert not keepable(Finding((), {}, {"where": Path("/x")}), Finding)
    assert not keepable(Finding((), {}, {"pair": (1, 2)}), Finding)
    assert not keepable(Finding((), {}, {"by": {1: 2}}), Finding)


def test_a_copy_is_the_same_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content := bytes(range(256)) * 5000)
    clone(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == content
    with pytest.raises(FileExistsError):
        clone(tmp_path / "a", tmp_path / "b")


def test_a_copy_where_the_system_cannot_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(95, "not supported")

    monkeypatch.setattr("fcntl.ioctl", fails)
    monkeypatch.setattr("os.copy_file_range", fails)
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    clone(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"x" * 3_000_000
