"""Exports that jobs of one sweep have in common: who holds their lock, and for how long."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipeline.digest import digest_file
from pipeline.errors import StorageError
from pipeline.events import Events
from pipeline.planning.digests import Digests
from pipeline.planning.identity import keyed
from pipeline.planning.memory import plan_jobs
from pipeline.planning.sweep import Job
from pipeline.reporting.manifest import Report
from pipeline.running import attempt, text_stream
from pipeline.running.exports import Exports, Held, wait_for
from pipeline.running.results import FOLDER, Results
from pipeline.running.runner import Outcome, execute_jobs
from stages.export_work import ExportWork
from tests.unit.running.test_sweep import job

LONG_S = 60.0


def nobody_waits(text: str) -> None:
    """Listens to what a sweep says; nobody else is at work here, so that whoever waits waits forever."""
    assert "waiting for another run" not in text


def equal_exports(here: Path, count: int) -> list[Job]:
    """Jobs whose exports have one key and a folder each, at once."""
    same = ("flow=convert", "quant=mxfp4", f"dask.workers={count}")
    mine = [job(here / "outputs", *same, f"export.path={here / str(i)}") for i in range(count)]
    return [Job(one.run, here / f"outputs/run{i}", (), str(i)) for i, one in enumerate(mine)]


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sources hold was read before: what an export is noted under is then what it was planned under."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [plan] = plan_jobs(equal_exports(tmp_path, 1)).plans
    Digests().add((f, digest_file(f.path).xxh3_128) for f in plan.inputs if f.xxh3_128 is None)


def in_order(jobs: Sequence[Job], order: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """Run them so that they end in this order: the export of each is finished when the one before it is settled."""
    turn = {jobs[i].run_dir: n for n, i in enumerate(order)}
    over = [threading.Event() for _ in order]
    real = ExportWork.finish

    def waits(self: ExportWork, records: Any) -> Any:
        if n := turn[self.run_dir]:
            assert over[n - 1].wait(LONG_S), "the one before never ended"
        return real(self, records)

    monkeypatch.setattr(ExportWork, "finish", waits)
    return execute_jobs(jobs, Events(text=nobody_waits), lambda i, outcome: over[order.index(i)].set())


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.brief(1)
def test_jobs_with_equal_exports_do_not_wait_for_each_other(
    order: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of what they write is held by one thread, and it is noted by another, under the lock of results: one
    that waited there for the other job would wait forever. It happened whenever the job that held it ended last."""
    jobs = equal_exports(tmp_path, 3)
    outcomes = in_order(jobs, order, monkeypatch)
    assert [type(o) for o in outcomes] == [Report] * 3, outcomes
    [result] = (tmp_path / "outputs" / FOLDER).glob("*/result.json")
    found = Results(tmp_path / "outputs" / FOLDER).read(result.parent.name)
    assert found is not None
    assert {*found[0]["places"]} == {str(tmp_path / str(i)) for i in range(3)}


@pytest.mark.usefixtures("known")
def test_one_that_fails_leaves_the_lock_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = equal_exports(tmp_path, 3)
    real = ExportWork.begin

    def breaks(self: ExportWork, *, fresh: bool) -> None:
        if self.run_dir == jobs[0].run_dir:
            raise StorageError("the disk is gone")
        real(self, fresh=fresh)

    monkeypatch.setattr(ExportWork, "begin", breaks)
    outcomes = in_order(jobs, (0, 1, 2), monkeypatch)
    assert [type(o) for o in outcomes] == [StorageError, Report, Report], outcomes
    monkeypatch.setattr(ExportWork, "begin", real)
    [again] = execute_jobs(jobs[:1], Events(text=nobody_waits))  # nobody holds it any more
    assert isinstance(again, Report)


def test_who_has_read_the_source_before_waits_for_who_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Two users, each with a cache folder: one plans with a stamp in the place of the source's digest, one with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    without, asked = equal_exports(tmp_path, 2)
    [first] = plan_jobs([without]).plans
    keyed(without.run, first, Digests().of)
    request.getfixturevalue("known")
    [second] = plan_jobs([asked]).plans
    keyed(asked.run, second, Digests().of)
    assert first.keys["export"].id != second.keys["export"].id
    results, said = Results(tmp_path / "outputs" / FOLDER), list[str]()
    with ExitStack() as locks:
        wait_for([Exports(first, results)], locks)

        def hear(text: str) -> None:
            said.append(text)
            locks.close()

        with text_stream.to(hear), ExitStack() as others:
            wait_for([Exports(second, results)], others)
    assert len(said) == 1
    assert "waiting for another run" in said[0]


@pytest.mark.usefixtures("known")
def test_one_that_was_killed_before_its_manifest_notes_its_export_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its export is whole and noted by then: going on writes the manifest, and nothing that was finished."""
    jobs = equal_exports(tmp_path, 1)

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(attempt, "write_records", killed)
        [outcome] = execute_jobs(jobs, Events())
    assert isinstance(outcome, RuntimeError)
    [result] = (tmp_path / "outputs" / FOLDER).glob("*/result.json")
    before = result.stat()
    [outcome] = execute_jobs(jobs, Events())
    assert isinstance(outcome, Report)
    after = result.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_lock_in_common_is_let_go_of_by_the_last() -> None:
    """A job that let go of it early would wait, when it notes what it made, for one that waits for it."""
    said: list[str] = []
    lock = ExitStack()
    lock.callback(said.append, "let go of")
    held = Held(lock, users=2)
    held.let_go()
    assert (held.users, said) == (1, [])
    held.let_go()
    assert (held.users, said) == (0, ["let go of"])
