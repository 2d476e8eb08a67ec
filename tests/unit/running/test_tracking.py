"""What a tracker is told, when, and how often; the thread that tells it, with a tracker that only remembers."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.digest import identity
from pipeline.errors import StageError
from pipeline.records.points import Writer, file_of
from pipeline.running import tracking
from pipeline.running.point_reader import PointReader
from pipeline.running.tracking import Tracking, told_of
from pipeline.tracker import Point, State, Tracked
from tests.cases.written_runs import write


@dataclass(frozen=True)
class Memory:
    """Remembers what it was told; fails where `fails` says so."""

    place: str = "memory"
    fails: set[str] = field(default_factory=set, hash=False)
    asked: list[str] = field(default_factory=list, hash=False)
    runs: dict[str, list[Point]] = field(default_factory=dict, hash=False)
    parents: dict[str, str] = field(default_factory=dict, hash=False)
    states: dict[str, str] = field(default_factory=dict, hash=False)
    tokens: dict[str, str] = field(default_factory=dict, hash=False)
    waits_for: threading.Event | None = None
    required: bool = False
    weights: bool = False
    patience_s: float = 60.0
    host_nbytes: int = 1
    needs: Mapping[str, str] = field(default_factory=dict, hash=False)

    def _asked(self, what: str) -> None:
        self.asked.append(what)
        if self.waits_for is not None:
            self.waits_for.wait(60)
        if {what, "all"} & self.fails:
            try:
                raise ConnectionRefusedError(111, "Connection refused")
            except OSError as why:
                raise RuntimeError(f"a client says {'much ' * 50}: {why}") from None

    def begin(self, run: Tracked, known: str = "") -> str:
        self._asked("begin")
        begun = next((tracked for tracked, token in self.tokens.items() if token == run.token), "")
        tracked = next((one for one in (known, begun) if one in self.runs), f"{run.name} {len(self.asked)}")
        self.runs.setdefault(tracked, [])
        self.parents[tracked], self.tokens[tracked] = run.parent, run.token
        if "begun" in self.fails:
            raise TimeoutError("it did not say what it has")
        return tracked

    def last(self, tracked: str, names: Sequence[str]) -> Mapping[str, int]:
        self._asked("last")
        points = sorted(self.runs[tracked], key=lambda p: p.step or 0)
        return {p.name: p.step or 0 for p in points if p.name in names}

    def log(self, tracked: str, points: Sequence[Point]) -> None:
        self._asked("log")
        self.runs[tracked] += points

    def files(self, tracked: str, files: Mapping[str, Path]) -> None:
        self._asked("files")

    def end(self, tracked: str, state: State) -> None:
        self._asked("end")
        self.states[tracked] = state


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "EVERY_S", 0.01)


def made(folder: Path) -> Tracked:
    write(folder, complete=False)
    return Tracked(identity([str(folder)]), folder.name, folder, 0.0)


def looks(folder: Path, values: Sequence[float]) -> None:
    """What the run took, seen so often."""
    writer = Writer(file_of(folder, "system"))
    for value in values:
        writer.row("system", {"time": 100 + value, "rss": value})
    writer.close()


def updates(folder: Path, steps: Sequence[int]) -> None:
    writer = Writer(file_of(folder))
    for step in steps:
        writer.row("train", {"step": step, "time": float(step), "loss": 1 / (1 + step)})
    writer.close()


def seen(memory: Memory, tracked: str, name: str) -> list[tuple[int | None, float, float]]:
    return [(p.step, p.value, p.time) for p in memory.runs[tracked] if p.name == name]


def test_looks_are_numbered_and_have_their_time(tmp_path: Path) -> None:
    memory, run = Memory(), made(tmp_path / "one")
    looks(run.folder, [1.0, 2.0])
    with Tracking(memory, run, print) as telling:
        telling.catch_up()
        looks(run.folder, [3.0])
        telling.end("complete")
    [tracked] = memory.runs
    assert seen(memory, tracked, "system/rss") == [(0, 1.0, 101.0), (1, 2.0, 102.0), (2, 3.0, 103.0)]
    assert memory.states == {tracked: "complete"}


def test_a_run_that_goes_on_tells_what_is_missing(tmp_path: Path) -> None:
    """Looks have no step of their own, and are known again nevertheless; updates that were done again are not."""
    memory, run = Memory(), made(tmp_path / "one")
    looks(run.folder, [1.0, 2.0])
    updates(run.folder, range(5))
    first = Tracking(memory, run, print)
    first.catch_up()
    first._asked.put(None)  # nobody tells it any more: killed
    first._thread.join()
    looks(run.folder, [3.0])
    file_of(run.folder).unlink()
    updates(run.folder, range(8))
    with Tracking(memory, run, print) as telling:
        telling.end("complete")
    [tracked] = memory.runs
    assert [step for step, _, _ in seen(memory, tracked, "system/rss")] == [0, 1, 2]
    assert [step for step, _, _ in seen(memory, tracked, "train/loss")] == [*range(8)]
    assert (told := told_of(run.folder)) is not None
    assert told.points == 11


@pytest.mark.parametrize("state", ["failed", "killed"])
def test_however_it_ends_the_last_points_are_told(tmp_path: Path, state: str) -> None:
    memory, run = Memory(), made(tmp_path / "one")
    why = KeyboardInterrupt if state == "killed" else ValueError
    with pytest.raises(why), Tracking(memory, run, print) as telling:  # noqa: PT012
        telling.catch_up()
        updates(run.folder, range(3))
        raise why
    [tracked] = memory.runs
    assert len(seen(memory, tracked, "train/loss")) == 3
    assert memory.states == {tracked: state}


def test_points_that_failed_on_the_way_are_told_once(tmp_path: Path) -> None:
    memory, run, said = Memory(), made(tmp_path / "one"), list[str]()
    updates(run.folder, range(3))
    with Tracking(memory, run, said.append) as telling:
        telling.catch_up()
        memory.fails.add("log")
        updates(run.folder, range(3, 9))
        telling.catch_up()
        assert telling.shown == {"told": "3 points, 3 params", "missing": "6 points"}
        memory.fails.clear()
        telling._answers.failed = 0.0
        telling.end("complete", files={"a": run.folder / "config.yaml"})
        assert telling.shown == {"told": "9 points, 3 params, 1 artifact"}
    [tracked] = memory.runs
    assert [step for step, _, _ in seen(memory, tracked, "train/loss")] == [*range(9)]
    assert said == ["tracker: memory: ConnectionRefusedError: [Errno 111] Connection refused; the run goes on, "
                    "and its folder has everything"]  # fmt: skip


def test_nothing_was_told(tmp_path: Path) -> None:
    memory, run = Memory(fails={"all"}), made(tmp_path / "one")
    updates(run.folder, range(3))
    with Tracking(memory, run, print) as telling:
        telling.end("complete", [Point("size", 1.0, None, 0.0)], {"a": run.folder / "config.yaml"})
    assert telling.shown == {"told": "", "missing": "4 points, 3 params, 1 artifact"}
    assert telling.record == {"place": "memory", "problem": telling.problem}


def test_a_run_that_is_gone_there_is_told_anew(tmp_path: Path) -> None:
    memory, run = Memory(), made(tmp_path / "one")
    updates(run.folder, range(3))
    with Tracking(memory, run, print) as telling:
        telling.end("complete")
    memory.runs.clear()
    with Tracking(memory, run, print) as telling:
        telling.end("complete")
    [tracked] = memory.runs
    assert len(seen(memory, tracked, "train/loss")) == 3


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[[Memory, list[str]], tuple[Tracking, list[Tracking]]]:
    def begun(memory: Memory, said: list[str]) -> tuple[Tracking, list[Tracking]]:
        whole = made(tmp_path / "sweep")
        above = Tracking(memory, Tracked(whole.id, whole.name, whole.folder, 0.0, sweep=True), said.append)
        jobs = [made(tmp_path / name) for name in "abc"]
        return above, [Tracking(memory, job, said.append, parent=above) for job in jobs]

    return begun


def test_a_sweep_says_once_that_nobody_answers(sweep: Any) -> None:
    memory, said = Memory(fails={"all"}), list[str]()
    above, jobs = sweep(memory, said)
    for one in [*jobs, above]:
        one.end("complete")
    assert len(said) == 1
    assert all(one.problem == "ConnectionRefusedError: [Errno 111] Connection refused" for one in [*jobs, above])


def test_jobs_are_below_their_sweep_or_wait_for_it(sweep: Any) -> None:
    """Where a sweep could not be begun, none of its jobs is begun apart from it."""
    memory = Memory(fails={"begin"})
    above, jobs = sweep(memory, [])
    for one in jobs:
        one.catch_up()
    assert not memory.runs
    memory.fails.clear()
    above._answers.failed = 0.0
    for one in [*jobs, above]:
        one.end("complete")
    [swept] = [tracked for tracked in memory.runs if tracked.startswith("sweep")]
    assert sorted(memory.parents.values()) == ["", swept, swept, swept]


def test_all_wait_together_for_a_place_that_hangs(sweep: Any) -> None:
    memory = Memory(waits_for=threading.Event(), patience_s=0.3)
    above, jobs = sweep(memory, [])
    jobs[0].catch_up()
    assert above._answers.left_s == 0
    for one in [*jobs, above]:
        one.end("complete")
    assert all(one.problem == "it has not answered for 0.3 s" for one in jobs)
    memory.waits_for.set()


def test_a_required_one_that_does_not_answer_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"tracker\.required=true, and it was not told: ConnectionRefusedError"):
        Tracking(Memory(fails={"begin"}, required=True), made(tmp_path / "one"), print)


def test_records_of_earlier_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / "tracker.json").write_text(json.dumps({"place": "p", "run": "r", "steps": {"a": 3}}))
    assert (told := told_of(tmp_path)) is not None
    assert (told.steps, told.points) == ({"a": 3}, 0)


def test_a_file_that_was_cut_is_read_again(tmp_path: Path) -> None:
    reader, found, cut = PointReader(tmp_path), list[Point](), list[int]()
    updates(tmp_path, range(5))
    reader.read(found.extend, lambda: cut.append(len(found)))
    file_of(tmp_path).write_bytes(b"")
    updates(tmp_path, range(2))
    reader.read(found.extend, lambda: cut.append(len(found)))
    assert cut == [5]
    assert [p.step for p in found] == [*range(5), 0, 1]
    assert reader.taken == 2


def test_a_begin_that_was_not_answered_leaves_no_second_run(tmp_path: Path) -> None:
    """Whether the place did not say what it has, or whoever asked was killed before it wrote that down."""
    memory, run = Memory(fails={"begun"}), made(tmp_path / "one")
    with Tracking(memory, run, print) as telling:
        telling.end("complete")
    assert telling.problem.startswith("TimeoutError")
    memory.fails.clear()
    updates(run.folder, range(3))
    with Tracking(memory, run, print) as telling:
        telling.end("complete")
    [tracked] = memory.runs
    assert len(seen(memory, tracked, "train/loss")) == 3
    with Tracking(memory, run, print, again=True) as telling:
        telling.end("complete")
    assert len(memory.runs) == 2  # a run that is made again is another


def test_a_run_that_is_told_to_two_places_in_turn_goes_on_in_both(tmp_path: Path) -> None:
    one, two, run = Memory(), Memory("elsewhere"), made(tmp_path / "one")
    for upto, memory in enumerate((one, two, one, two), 1):
        updates(run.folder, [upto - 1])
        with Tracking(memory, run, print) as telling:
            telling.end("complete")
    for memory, steps in ((one, 3), (two, 4)):
        [tracked] = memory.runs
        assert [step for step, _, _ in seen(memory, tracked, "train/loss")] == [*range(steps)]
    assert (told := told_of(run.folder)) is not None
    assert [(t.place, t.points) for t in (told, *told.elsewhere)] == [("elsewhere", 4), ("memory", 3)]


def test_a_killed_run_is_ended_wherever_it_was_told(tmp_path: Path) -> None:
    """Also where it is told to another place since, or is made again."""
    one, two, run = Memory(), Memory("elsewhere"), made(tmp_path / "one")
    for memory, again in ((one, False), (two, False), (two, True)):
        killed = Tracking(memory, run, print, again=again)
        killed.catch_up()
        killed._asked.put(None)
        killed._thread.join()
    first, second = two.runs
    assert two.states == {first: "killed"}
    with Tracking(one, made(tmp_path / "two"), print) as telling:
        telling.end("complete")
    assert set(one.states.values()) == {"killed", "complete"}
    assert second not in two.states
