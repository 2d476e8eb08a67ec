"""Where an export may go, and which folders a run may write its records into."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hydra_plugins._weightmill import FILES, check_folder
from pipeline.api import compose_run
from pipeline.config.spine import RunConfig
from pipeline.digest import InputFile
from pipeline.errors import PlanError, StorageError
from pipeline.events import Events
from pipeline.planning.memory import plan_run
from pipeline.planning.obstacles import RECORDS, clashes
from pipeline.running.attempt import obstacles_ahead
from pipeline.running.runner import execute
from pipeline.running.target import MARKER
from stages.export_work import ExportWork


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a source, a home beside it."""
    for folder in ("home/me", "work/source/inner", "work/store"):
        (tmp_path / folder).mkdir(parents=True)
    save_file({"model.norm.weight": np.ones(8, np.float32)}, tmp_path / "work/store/blob")
    (tmp_path / "work/source/model.safetensors").symlink_to(tmp_path / "work/store/blob")
    (tmp_path / "work/source/config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setenv("HOME", str(tmp_path / "home/me"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@cache
def composed(*overrides: str) -> RunConfig:
    """Places are as they are typed, so that it serves every working directory."""
    return compose_run([*overrides])


EXPORTING = ("+model=llama", "stages=[load,export]", "export=plain", "model.source=source")


def said(*args: str, run_dir: str = "outputs/run") -> list[str]:
    """`found_by` of the run that `args` describe."""
    everything = ["+model=llama", "stages=[load,export]", "export=plain", f"paths.run={run_dir}", *args]
    if not any(a.startswith("model.source=") for a in args):
        everything.append("model.source=source")
    return found_by(composed(*everything))


def found_by(run: RunConfig) -> list[str]:
    """What `plan` finds in the way on disk, and that a run is refused for the same, with nothing written."""
    folder = Path(run.spine.paths.run).expanduser().absolute()
    plan = plan_run(run, folder)
    assert not plan.problems
    before = sorted(str(p) for p in Path("..").rglob("*"))
    found = [str(p) for p in obstacles_ahead(run, plan, folder)]
    if found:
        with pytest.raises(PlanError) as why:
            execute(run, folder, [], Events())
        assert (why.value.exit_code, [str(p) for p in why.value.problems]) == (5, found)
    assert sorted(str(p) for p in Path("..").rglob("*")) == before
    return found


TARGETS = {
    "source": "is what this run reads",
    "../work/./source": "is what this run reads",
    "link-to-source": "is what this run reads",
    "store": "is what this run reads",  # where a link of the source leads
    "source/inner/new": "lies in what this run reads",
    "outputs/run": "is the run's folder",
    "outputs": "holds the run's folder",
    ".": "holds the run's folder",
    "..": "holds the run's folder",
    "/": "holds the run's folder",
    "~": "is your home",
    "../home": "holds your home",
    "outputs/run/errors.csv": "is a record of the run itself",
}


@pytest.mark.parametrize("target", TARGETS)
def test_an_export_never_replaces_what_holds_the_user_or_the_run(here: Path, target: str) -> None:
    (here / "link-to-source").symlink_to("source")
    for folder in (here / "source", here / "store", here.parent / "home", here.parent / "home/me", here, here.parent):
        (folder / MARKER).write_text('{"weightmill": 1, "key": "", "files": []}')  # ours, as it says
    run = composed(*EXPORTING, "paths.run=outputs/run")
    run = replace(run, stages={**run.stages, "export": replace(run.stages["export"], path=target)})
    for overwrite in (True, False):
        [found] = found_by(replace(run, spine=replace(run.spine, overwrite=overwrite)))
        assert TARGETS[target] in found
        assert found.startswith("export.path: ")


def test_capitals_and_mounts_make_no_other_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system where two names are one folder, the folder counts."""
    real = os.stat
    (here / "SOURCE").mkdir()
    monkeypatch.setattr(os, "stat", lambda p, **how: real(str(p).replace("SOURCE", "source"), **how))
    run = composed(*EXPORTING)
    plan = plan_run(run, here / "outputs/run")
    assert "is what this run reads" in next(clashes(here / "SOURCE", "export", plan, here / "outputs"))


@pytest.mark.parametrize(
    ("source", "target"), [("source", "outputs/run/model"), ("source", "new"), ("source", "sourc")]
)
def test_other_places_are_fine(here: Path, source: str, target: str) -> None:
    assert said(f"export.path={target}") == []


def test_the_working_directory_may_be_the_source(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "source")
    assert said("model.source=.") == []
    assert "lies in what" in said("model.source=.", "export.path=new")[0]
    assert "lies in what" in said("model.source=.", run_dir=".")[0]


def test_two_exports_of_one_run(here: Path) -> None:
    run = composed(*EXPORTING)
    stages = dict(run.stages) | {"again": replace(run.stages["export"], path="new/inner")}
    stages["export"] = replace(run.stages["export"], path="new")
    both = replace(run, stages=stages, nodes=dict(run.nodes) | {"again": run.nodes["export"]})
    found = obstacles_ahead(both, plan_run(both, here / "outputs/run"), here / "outputs/run")
    assert len(found) == 2
    assert all("are in each other's way" in str(p) for p in found)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.brief("manifest.json", "metrics.jsonl", "run.json")
def test_records_that_are_somebody_elses_stay(here: Path, name: str) -> None:
    (here / "mine").mkdir()
    (here / "mine" / name).write_text("{}")
    for overwrite in ("true", "false"):
        [found] = said(f"overwrite={overwrite}", run_dir="mine")
        assert found.startswith(f"paths.run: {here / 'mine'} holds {name}, and no run.json of Weightmill")
    assert (here / "mine" / name).read_text() == "{}"


def test_what_a_stage_writes_beside_them_counts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "picture.png").write_text("")
    assert said(run_dir="mine") == []
    run = composed(*EXPORTING)
    monkeypatch.setattr(type(run.stages["export"]), "writes", ("picture.png",), raising=False)
    assert "holds picture.png" in said(run_dir="mine")[0]


def overwriting(run: RunConfig) -> RunConfig:
    return replace(run, spine=replace(run.spine, overwrite=True))


def test_folders_that_a_run_may_have(here: Path) -> None:
    """Empty, new, with other things in it, or of a run before."""
    (here / "empty").mkdir()
    (here / "full").mkdir()
    (here / "full" / "notes.txt").write_text("mine")
    for folder in ("empty", "new/deep", "full"):
        run = compose_run(["+model=llama", "stages=[load,export]", "model.source=source", f"paths.run={folder}"])
        for again in (False, True):
            assert execute(run, here / folder, [], Events()).reused == again
        assert not execute(overwriting(run), here / folder, [], Events()).reused
    assert (here / "full" / "notes.txt").read_text() == "mine"


def test_run_folders_that_cannot_be_made(here: Path) -> None:
    (here / "file").write_text("")
    (here / "dangling").symlink_to("nowhere")
    for run_dir, why in {"file": "not a folder", "file/run": "not a folder", "dangling": "leads nowhere",
                         "n" * 300: "at most 255"}.items():  # fmt: skip
        [found] = [p for p in said(run_dir=run_dir) if p.startswith("paths.run")]
        assert why in found


def test_a_refused_run_leaves_the_finished_one_as_it_is(here: Path) -> None:
    run = compose_run(
        ["+model=llama", "stages=[load,export]", "model.source=source", "paths.run=run", "overwrite=true"]
    )
    execute(run, here / "run", [], Events())
    manifest = (here / "run/manifest.json").read_bytes()
    (here / "run/model/notes").write_text("mine")
    with pytest.raises(PlanError, match=r"holds what no run put there \(notes\)"):
        execute(run, here / "run", [], Events())
    assert (here / "run/manifest.json").read_bytes() == manifest


def test_what_changes_in_the_partial_folder_is_not_put_in_place(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte of a chunk, after it was written: noticed, nothing in place, and written again by the same command."""
    run = compose_run(["+model=llama", "stages=[load,export]", "model.source=source", "paths.run=run"])
    real = ExportWork.finish

    def spoilt(work: ExportWork, records: object) -> object:
        path = work.partial / "model.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        return real(work, records)

    with monkeypatch.context() as while_spoilt:
        while_spoilt.setattr(ExportWork, "finish", spoilt)
        with pytest.raises(Exception, match=r"model.norm.weight\[0:8\] is no longer what was written"):
            execute(run, here / "run", [], Events())
    assert not (here / "run/model").exists()
    assert not execute(run, here / "run", [], Events()).reused


@pytest.mark.parametrize("name", FILES)
def test_a_sweep_overwrites_no_other_files(here: Path, name: str) -> None:
    """Its folder is known by Hydra's multirun.yaml, in which our sweeper stands, also after a kill."""
    check_folder(here / "new")
    (here / name).write_text("_target_: somebody.else")
    with pytest.raises(StorageError, match=f"{here} holds {name}, which no sweep of Weightmill wrote"):
        check_folder(here)
    (here / "multirun.yaml").write_text("hydra:\n  sweeper:\n    _target_: hydra_plugins.weightmill.Sweeper\n")
    check_folder(here)
    with pytest.raises(StorageError, match="not a folder"):
        check_folder(here / name / "sweep")


def test_results_that_cannot_be_kept_are_in_the_plan(here: Path) -> None:
    (here / "outputs").mkdir()
    (here / "outputs" / ".results").write_text("mine")
    run = compose_run(["+model=gpt_oss", "flow=evaluate", "quant=mxfp4"])
    [problem] = obstacles_ahead(run, plan_run(run, here / "outputs/run"), here / "outputs/run")
    assert str(problem).startswith(f"paths.outputs: results cannot be kept in {here / 'outputs/.results'}: ")
    assert f"{here / 'outputs/.results'} is not a folder" in str(problem)


def test_inputs_are_what_counts_not_their_names(here: Path) -> None:
    """The plan of a run that reads one file of a folder."""
    run = compose_run(["+model=llama", "stages=[load,export]", "model.source=source/model.safetensors"])
    plan = plan_run(run, here / "outputs/run")
    assert all(isinstance(f, InputFile) for f in plan.inputs)
    assert not list(clashes(here / "source/new", "export", plan, here / "outputs"))  # beside a file: nobody's folder
    assert list(clashes(here / "source", "export", plan, here / "outputs"))
