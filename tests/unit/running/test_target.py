"""What may stand at a target, and what may be replaced there: nothing that is not ours."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.running.target import MARKER, Target, read_marker

FILES = ("model.safetensors", "deep/er/part", MARKER)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path / "shelf" / "model", "0123456789abcdef0123", tmp_path / "run", FILES, overwrite=False)


def fill(target: Target, text: str = "ours") -> None:
    """What a run does between `begin` and `put_in_place`."""
    for name in FILES[:-1]:
        (target.partial / name).parent.mkdir(parents=True, exist_ok=True)
        (target.partial / name).write_text(text)
    target.mark()


def make(target: Target, text: str = "ours") -> None:
    with target.lock():
        assert not list(target.obstacles(finished=False))
        target.begin(fresh=True)
        replaces = target.check()
        fill(target, text)
        target.put_in_place(replaces)


def other(target: Target, **more: Any) -> Target:
    """The same target of another run."""
    return replace(target, key="fedcba98765432100000", run=target.run.with_name("other"), **more)


def in_the_way(target: Target, *, finished: bool = False) -> str:
    said = list(target.obstacles(finished=finished))
    assert len(said) <= 1, said
    return said[0] if said else ""


def test_what_is_ours_is_replaced_when_asked(target: Target) -> None:
    make(target)
    assert json.loads((target.path / MARKER).read_bytes()) == {
        "weightmill": 1, "key": target.key, "files": list(FILES[:-1])
    }  # fmt: skip
    assert in_the_way(other(target)).endswith("exists already; choose another, or overwrite=true to replace it")
    make(other(target, overwrite=True), "new")
    assert (target.path / FILES[1]).read_text() == "new"
    assert [p.name for p in target.path.parent.iterdir()] == ["model"]


def test_a_finished_export_is_known_where_it_was_moved(target: Target) -> None:
    make(target)
    moved = replace(other(target, overwrite=True), path=target.path.with_name("moved"))
    target.path.rename(moved.path)
    make(moved, "new")
    assert (moved.path / FILES[0]).read_text() == "new"


def stand(target: Target, what: str) -> None:
    """Put something at the target that no run may replace."""
    path = target.path
    path.parent.mkdir(exist_ok=True)
    elsewhere = path.with_name("elsewhere")
    match what:
        case "a file":
            path.write_text("mine")
        case "a dangling link":
            path.symlink_to(elsewhere)
        case "a link to a folder of ours":
            make(target)
            path.rename(elsewhere)
            path.symlink_to(elsewhere)
        case "a folder":
            path.mkdir()
            (path / "notes").write_text("mine")
        case "an empty folder":
            path.mkdir()
        case "ours and a file":
            make(target)
            (path / "notes").write_text("mine")
        case "ours and a folder":
            make(target)
            (path / "deep" / "mine").mkdir()
        case "ours and a link":
            make(target)
            shutil.rmtree(path / "deep" / "er")
            (path / "deep" / "er").symlink_to(path.parent)
        case "a marker that says nothing":
            path.mkdir()
            (path / MARKER).write_text("[]")
        case "a marker that lists what is elsewhere":
            path.mkdir()
            (path / MARKER).write_text('{"weightmill": 1, "key": "", "files": ["../notes"]}')
            (path.parent / "notes").write_text("mine")


STANDING = {
    "a file": "and is no folder",
    "a dangling link": "a link that leads nowhere",
    "a link to a folder of ours": "a link that leads to .*elsewhere; links are not replaced",
    "a folder": "has no .weightmill.json",
    "an empty folder": "has no .weightmill.json",
    "ours and a file": r"holds what no run put there \(notes\)",
    "ours and a folder": r"holds what no run put there \(deep/mine/\)",
    "ours and a link": r"holds what no run put there \(deep/er/\)",
    "a marker that says nothing": "has no .weightmill.json",
    "a marker that lists what is elsewhere": "has no .weightmill.json",
}


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(p), p.lstat().st_ino) for p in folder.rglob("*"))


@pytest.mark.parametrize("what", STANDING)
def test_what_is_not_ours_is_not_replaced(target: Target, what: str) -> None:
    stand(target, what)
    before = listing(target.path.parent)
    for overwrite in (False, True):
        assert re.search(STANDING[what], in_the_way(other(target, overwrite=overwrite)))
    assert in_the_way(target, finished=True)  # not this run's own either
    with other(target, overwrite=True).lock():
        pass
    assert listing(target.path.parent) == before


def test_a_mount_point(target: Target) -> None:
    target.path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(target.path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    try:
        assert "exists already: a mount point" in in_the_way(replace(target, overwrite=True))
    finally:
        subprocess.run(["umount", str(target.path)], check=True)


@pytest.mark.parametrize("what", ["partial", "replaced"])
def test_temporary_names_that_are_somebody_elses(target: Target, what: str) -> None:
    folder = getattr(target, what)
    folder.mkdir(parents=True)
    (folder / "notes").write_text("mine")
    assert in_the_way(target).startswith(f"{folder} is in the way, and has no {MARKER}")
    target.begin(fresh=True)
    assert (folder / "notes").read_text() == "mine"
    fill(target)
    said = "notes, which this run did not write" if what == "partial" else "no run put"
    with pytest.raises(StorageError, match=said):
        target.put_in_place(target.check())
    assert (folder / "notes").read_text() == "mine"


def test_a_target_that_changes_while_a_run_is_at_work(target: Target) -> None:
    """It appears, or something comes into it, before the check or after."""
    target.begin(fresh=True)
    target.path.mkdir()
    with pytest.raises(StorageError, match="changed while this run was at work"):
        target.check()
    target.path.rmdir()
    replaces = target.check()
    fill(target)
    target.path.mkdir()
    (target.path / "notes").write_text("mine")
    with pytest.raises(StorageError, match="cannot be put in place: Directory not empty"):
        target.put_in_place(replaces)
    assert [p.name for p in target.path.iterdir()] == ["notes"]
    shutil.rmtree(target.path)
    target.put_in_place(replaces)

    again = other(target, overwrite=True)
    again.begin(fresh=True)
    (target.path / "notes").write_text("mine")
    with pytest.raises(StorageError, match="changed while this run was at work"):
        again.check()
    (target.path / "notes").unlink()
    again.begin(fresh=False)
    replaces = again.check()
    fill(again, "new")
    (target.path / "notes").write_text("mine")
    with pytest.raises(StorageError, match="changed while this run was at work"):
        again.put_in_place(replaces)
    assert (target.path / "notes").read_text() == "mine"
    assert (target.path / FILES[0]).read_text() == "ours"
    assert not again.replaced.exists()


def test_killed_while_replacing(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two renames: the same run goes on, and removes what it had moved aside."""
    make(target)
    again = other(target, overwrite=True)
    again.begin(fresh=True)
    replaces = again.check()
    fill(again, "new")
    real = Path.rename

    def killed(path: Path, to: Path) -> Path:
        if path == again.partial:
            raise KeyboardInterrupt
        return real(path, to)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        again.put_in_place(replaces)
    monkeypatch.undo()
    assert again.replaced.exists()
    assert not target.path.exists()
    assert not in_the_way(again)
    again.begin(fresh=False)
    fill(again, "new")
    again.put_in_place(again.check())
    assert (target.path / FILES[0]).read_text() == "new"
    assert [p.name for p in target.path.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("killed", ["write_bytes", "replace"])
def test_killed_while_marking(target: Target, monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    """Whatever stands of the marker then, the folder is known as ours."""
    target.begin(fresh=True)

    def dies(path: Path, *given: Any) -> None:
        if killed == "write_bytes":
            path.open("wb").close()  # emptied, and nothing written yet
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, killed, dies)
        with pytest.raises(KeyboardInterrupt):
            target.mark()
    assert read_marker(target.partial) is not None
    assert not in_the_way(target)


@pytest.mark.parametrize("removed", [0, 1])
def test_killed_while_removing_what_was_replaced(target: Target, monkeypatch: pytest.MonkeyPatch, removed: int) -> None:
    """The new folder is in place, and the old one half gone: the same run finds its own, and tidies up."""
    make(target)
    again = other(target, overwrite=True)
    again.begin(fresh=True)
    replaces = again.check()
    fill(again, "new")
    real, count = Path.unlink, 0

    def killed(path: Path, missing_ok: bool = False) -> None:
        nonlocal count
        if path.parent == again.replaced:
            count += 1
            if count > removed:
                raise KeyboardInterrupt
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        again.put_in_place(replaces)
    monkeypatch.undo()
    assert again.replaced.exists()
    assert again.own(finished=True)
    assert not list(again.obstacles(finished=True))
    again.begin(fresh=False)
    assert (again.partial / FILES[0]).read_text() == "new"
    again.put_in_place(again.check())
    assert (target.path / FILES[0]).read_text() == "new"
    assert [p.name for p in target.path.parent.iterdir()] == ["model"]


def test_replaced_again_after_a_kill(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun afresh beside what an earlier try left half removed."""
    make(target)
    again = other(target, overwrite=True)
    again.begin(fresh=True)
    replaces = again.check()
    fill(again, "new")
    monkeypatch.setattr("pipeline.running.target.remove", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        again.put_in_place(replaces)
    monkeypatch.undo()
    again.begin(fresh=True)
    replaces = again.check()
    fill(again, "newer")
    again.put_in_place(replaces)
    assert (target.path / FILES[0]).read_text() == "newer"
    assert [p.name for p in target.path.parent.iterdir()] == ["model"]


def test_what_an_earlier_run_left(target: Target) -> None:
    """A fresh start removes partial folders of this run's folder and of its key, and no other's."""
    old = replace(target, key="1" * 32)
    namesake = replace(target, key="2" * 32, path=target.path.with_name("model.x"))
    strangers = other(target)
    for one in (target, old, namesake, strangers):
        one.begin(fresh=True)
        fill(one)
        (one.partial / MARKER).unlink()
        one.begin(fresh=False)
    assert target.nbytes_there() >= old.nbytes_there() > 0
    target.begin(fresh=True)
    left = {target.partial.name, namesake.partial.name, strangers.partial.name}
    assert {p.name for p in target.path.parent.iterdir()} == left
    assert [p.name for p in target.partial.iterdir()] == [MARKER]


def test_an_export_from_before_there_were_markers(tmp_path: Path) -> None:
    """Known by the manifest in the run's folder beside it, wherever that was moved; which the new run removes."""
    run = tmp_path / "run"
    target = Target(run / "model", "0" * 32, run, FILES, overwrite=True)
    (run / "model").mkdir(parents=True)
    (run / "model" / "config.json").write_text("{}")
    outputs = [{"path": "/was/here/model/config.json", "nbytes": 2, "xxh3_128": ""}]
    manifest = run / "manifest.json"
    manifest.write_text(json.dumps({"weightmill": 1, "run": "/was/here", "outputs": outputs}))
    assert not in_the_way(target)
    (run / "model" / "notes").write_text("mine")
    assert "(notes)" in in_the_way(target)
    with target.lock():
        assert read_marker(target.path) is None
    (run / "model" / "notes").unlink()
    with target.lock():
        manifest.unlink()
        target.begin(fresh=True)
        replaces = target.check()
        fill(target)
        target.put_in_place(replaces)
    assert (target.path / FILES[0]).read_text() == "ours"


def test_places_that_cannot_be_written(target: Target, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path, why in {
        tmp_path / "file" / "deep" / "model": "file is not a folder",
        tmp_path / "link" / "model": "link is a link that leads nowhere",
        tmp_path / ("n" * 250): "has at most 255",
        tmp_path / ("n" * 256) / "model": "256 bytes; a name in .* has at most 255",
        Path(f"{tmp_path}/{'deep/' * 900}model"): "bytes; a path has at most 4095",
        tmp_path / "zero\0byte": "no name can hold a zero byte",
        tmp_path / "lone\ud800": "cannot be a name on disk",
    }.items():
        said = in_the_way(replace(target, path=path))
        assert re.search(why, said), (path, said)
        assert "None" not in said
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]
