"""Sweeps: which runs are theirs, wherever these went, and which are not there any more."""

import shutil
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, SourceError
from pipeline.records.registry import all_runs, find, found
from pipeline.records.sweeps import keep
from tests.cases.many_runs import make_tree


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    make_tree(tmp_path / "outputs", 8, points=5)
    return tmp_path / "outputs"


def test_a_sweep_gives_its_runs_wherever_they_went(outputs: Path, tmp_path: Path) -> None:
    runs = all_runs(outputs)[:3]
    sweep = outputs / "sweep-a"
    sweep.mkdir()
    keep(sweep, [(run.name, run.folder, run.id) for run in runs])
    assert (
        [r.id for r in find(outputs, ["sweep-a"])]
        == [r.id for r in find(outputs, [str(sweep)])]
        == [r.id for r in runs]
    )
    runs[0].folder.rename(outputs / "moved")
    assert [r.name for r in find(outputs, ["sweep-a"])] == ["moved", runs[1].name, runs[2].name]
    assert {r.name for r in find(outputs, ["sweep=sweep-a"])} == {"moved", runs[1].name, runs[2].name}
    shutil.rmtree(runs[1].folder)
    assert len(find(outputs, ["sweep-a"])) == 2
    outputs.rename(outputs.parent / "elsewhere")
    assert len(find(outputs.parent / "elsewhere", ["sweep-a"])) == 2
    assert len(find(tmp_path / "empty", [str(outputs.parent / "elsewhere" / "sweep-a")])) == 2
    gone = outputs.parent / "elsewhere" / "sweep-gone"
    gone.mkdir()
    keep(gone, [("gone", gone / "gone", "5" * 32)])  # one whose runs were removed is in no other's way
    assert len(find(outputs.parent / "elsewhere", ["sweep-*"])) == 2
    (outputs.parent / "elsewhere" / "sweep-a" / "sweep.json").write_text('{"jobs"')
    assert len(all_runs(outputs.parent / "elsewhere")) == 7
    old = outputs.parent / "elsewhere" / "sweep-old"
    old.mkdir()
    (old / "sweep.csv").touch()
    with pytest.raises(SourceError, match="earlier version"):
        find(outputs.parent / "elsewhere", ["sweep-old"])


@pytest.fixture
def swept(outputs: Path) -> Path:
    """Two sweeps: the later one has the name that comes first by letters."""
    runs = sorted(all_runs(outputs), key=lambda run: run.started or 0)
    for name, those in (("sweep-old", runs[:3]), ("group/a,b", runs[3:5])):
        (outputs / name).mkdir(parents=True)
        keep(outputs / name, [(f"seed={i}", run.folder, run.id) for i, run in enumerate(those)])
    return outputs


def test_sweeps_are_called_as_tables_show_them(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(swept)
    old = {run.id for run in find(swept, ["sweep-old"])}
    for word in ("sweep=sweep-old", "sweep=a", "a", "sweep=sweep-o*", f"sweep={swept}/sweep-old", "sweep==./sweep-old"):
        assert {run.id for run in find(swept, [word])} == old, word
    assert {run.letters for run in find(swept, ["sweep-old"])} == {("a",)}  # it began first
    for word in ("sweep=a,b", "sweep=b", "sweep=group/a,b", "b", "a,b"):
        assert len(find(swept, [word])) == 2, word  # a name, before it is two
    assert len(find(swept, ["sweep=sweep-old,b"])) == 5
    assert len(find(swept, ["sweep!=a"])) == 5
    assert (
        len(find(swept, [str(swept / "gpt_oss-mxfp4-seed=0"), "sweep=a"])) == 1
    )  # typed as a folder, it knows its own
    with pytest.raises(ConfigError, match="sweep=sweep-odl: no sweep is called 'sweep-odl'; did you mean 'sweep-old'"):
        find(swept, ["sweep=sweep-odl"])
    with pytest.raises(ConfigError, match="words are = or != only"):
        find(swept, ["sweep<b"])


def test_jobs_that_are_gone_are_named(swept: Path) -> None:
    runs = find(swept, ["sweep-old"])
    assert found(swept, ["sweep-old"]).absent == {}
    runs[0].folder.rename(swept / "moved")
    assert found(swept, ["sweep-old"]).absent == {}  # it is there, elsewhere
    shutil.rmtree(runs[1].folder)
    never = swept / "never"
    keep(swept / "sweep-old", [*((f"seed={i}", r.folder, r.id) for i, r in enumerate(runs)), ("seed=9", never, "")])
    for word in ("sweep-old", "sweep=a", "sweep-*", "a", str(swept / "sweep-old")):
        asked = found(swept, [word])
        gone, not_begun = asked.said
        assert gone.startswith("seed=1, of sweep-old: gone: gpt_oss-int8-seed=1 is not there"), word
        assert not_begun == "seed=9, of sweep-old: did not begin"
        assert len(asked.runs) == 2
    assert found(swept.parent / "other", [str(swept / "sweep-old")]).said == [gone, not_begun]
    assert found(swept, ["gpt_oss-*"]).absent == found(swept, []).absent == {}
