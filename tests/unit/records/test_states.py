"""What a run is: complete, at work, killed, failed, elsewhere, or not to be read; and how far it came."""

import multiprocessing
import socket
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from pipeline.records import tries
from pipeline.records.registry import all_runs
from pipeline.records.run import read
from pipeline.running.journal import locked
from pipeline.running.reproduce import before
from tests.cases.many_runs import make_run, make_tree


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    make_tree(tmp_path / "outputs", 8, points=5)
    return tmp_path / "outputs"


def test_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    for i, state in enumerate(("complete", "interrupted", "failed", "elsewhere")):
        make_run(tmp_path / state, i, state=state)
        assert read(tmp_path / state).state == state
    assert read(tmp_path / "interrupted").reached == "3 of 12 chunks"
    assert read(tmp_path / "failed").reached == "no room"
    assert "elsewhere.example" in read(tmp_path / "elsewhere").reached
    with locked(tmp_path / "failed" / ".lock", "busy"):
        assert {r.name: r.state for r in all_runs(tmp_path)}["failed"] == "running"
    tries.begin(tmp_path / "failed", 5)
    assert read(tmp_path / "failed").state == "interrupted"  # it began again, and says nothing of an end
    tries.fail(tmp_path / "failed", ValueError("token=\x1b[31m"))
    assert read(tmp_path / "failed").why == "token=\x1b[31m"


def test_how_far_a_run_came_counts_all_its_stages(tmp_path: Path) -> None:
    """One that was killed while it evaluated what it had written is not done."""
    folder = tmp_path / "run"
    make_run(folder, 1, state="interrupted")  # three chunks are journaled
    tries.begin(folder, 3, 2)
    assert (read(folder).reached, read(folder).percent) == ("3 of 3 chunks, 0 of 2 other stages", 60)
    tries.made(folder, "evaluate")
    tries.made(folder, "evaluate")
    assert (read(folder).reached, read(folder).percent) == ("3 of 3 chunks, 1 of 2 other stages", 80)
    tries.made(folder, "generate")
    assert read(folder).percent == 99  # its record is not written
    [again] = all_runs(tmp_path)
    assert (again.reached, again.percent) == ("3 of 3 chunks, 2 of 2 other stages", 99)
    tries.begin(folder, 0, 2)  # results of an earlier try are found one after another
    (folder / "journal.jsonl").unlink()
    assert (read(folder).reached, read(folder).percent) == ("0 of 2 stages", None)


def test_runs_of_the_first_version_are_read(outputs: Path) -> None:
    """Their run.json knew neither an id nor keys."""
    folder = outputs / "gpt_oss-mxfp4-seed=0"
    (folder / "run.json").write_text('{"stages": {}, "seed": 0, "inputs": {"/a": [1, 2]}, "code": "x"}')
    assert (read(folder).state, read(folder).id, read(folder).problems) == ("complete", "", ())
    assert read(folder).metrics
    with pytest.raises(SourceError, match=r"by an earlier version of Weightmill.*overwrite=true makes it anew"):
        before(read(folder))
    (folder / "run.json").write_text('{"stages": {}, "seed": 0}')
    assert read(folder).state == "unreadable"


def test_who_looks_does_not_keep_a_run_from_beginning(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 1, state="interrupted")
    (tmp_path / "run" / ".lock").touch()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        looking = pool.map_async(_look, [str(tmp_path / "run")] * 2)
        for _ in range(200):
            with locked(tmp_path / "run" / ".lock", "busy"):
                pass
            (tmp_path / "run" / ".lock").touch()
        looking.get(60)


def _look(folder: str) -> None:
    for _ in range(3000):
        tries.held(Path(folder))


def test_foreign_and_partial_files_are_named_and_not_half_read(outputs: Path) -> None:
    whole = (outputs / "gpt_oss-mxfp4-seed=0" / "manifest.json").read_text()
    for name, text in {
        "cut": whole[:700], "list": "[1]", "other": '{"name": "an app"}', "later": '{"weightmill": 99}',
        "kinds": whole.replace('"started": ', '"started": "x'), "deep": "[" * 100_000, "number": "5", "none": "",
    }.items():  # fmt: skip
        make_run(outputs / name, 60)
        (outputs / name / "manifest.json").write_text(text)
        run = read(outputs / name)
        assert run.state == "unreadable", name
        assert str(outputs / name / "manifest.json") in run.problems[0]
        assert not run.metrics
        assert not run.command
    assert sum(run.state == "unreadable" for run in all_runs(outputs)) == 8
