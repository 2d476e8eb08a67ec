"""The registry: which runs there are, from their folders, and from an index that is never believed without them."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.records import tags
from pipeline.records.index import NAME, TABLES
from pipeline.records.lines import append
from pipeline.records.registry import all_runs, find
from pipeline.records.run import read
from pipeline.records.series import series
from tests.cases.many_runs import make_run, make_tree


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    make_tree(tmp_path / "outputs", 8, points=5)
    return tmp_path / "outputs"


def dumped(outputs: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(outputs / NAME)) as db:
        return {t: sorted(db.execute(f"SELECT * FROM {t}")) for t in TABLES}  # noqa: S608


def plain(outputs: Path) -> list[Any]:
    return [(run, dict(run.config)) for run in all_runs(outputs)]


def test_newest_first_and_from_the_index_as_from_the_files(outputs: Path) -> None:
    fresh, kept = plain(outputs), plain(outputs)
    assert fresh == kept
    assert [run.name for run, _ in fresh][:2] == ["gpt_oss-int4-seed=7", "gpt_oss-int8-seed=6"]
    assert [run.started for run, _ in fresh] == sorted((run.started for run, _ in fresh), reverse=True)
    for run, config in fresh:
        alone = read(run.folder)
        assert (alone.id, alone.metrics, dict(alone.config)) == (run.id, run.metrics, config)


def test_an_index_that_is_deleted_is_made_again_as_it_was(outputs: Path) -> None:
    find(outputs, ["train.setting_3=8"])
    before = dumped(outputs)
    assert len(before["records"]) == len(before["settings"]) == 8
    make_run(outputs / "later", 99)
    find(outputs, ["train.setting_3=8"])
    shutil.rmtree(outputs / "later")
    find(outputs, ["train.setting_3=8"])
    assert dumped(outputs) == before  # gone with its run, whatever it was a copy of
    (outputs / NAME).unlink()
    find(outputs, ["train.setting_3=8"])
    assert dumped(outputs) == before


@pytest.mark.parametrize("damage", ["cut", "noise", "row", "text", "empty"])
def test_a_damaged_index_is_said_and_made_anew(outputs: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = plain(outputs)
    file = outputs / NAME
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "noise":
        file.write_bytes(content[:100] + os.urandom(len(content) - 100))
    elif damage == "row":
        with closing(sqlite3.connect(file)) as db:
            db.execute("UPDATE records SET text = replace(text, 'mxfp4', 'int99')")
            db.commit()
    else:
        file.write_bytes(b"not a database, and long enough to be none" * 20 if damage == "text" else b"")
    assert plain(outputs) == expected
    if damage != "empty":  # a database that has nothing in it is one of another version
        assert "index is damaged" in capsys.readouterr().err
    assert plain(outputs) == expected
    assert capsys.readouterr().err == ""


def test_a_row_counts_while_its_files_are_what_they_were(outputs: Path) -> None:
    run = find(outputs, ["*seed=3"])[0]
    manifest = json.loads((run.folder / "manifest.json").read_text())
    manifest["results"]["evaluate"]["figures"]["KL"]["value"] = 7.0
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    assert find(outputs, ["*seed=3"])[0].metrics["KL"].value == 7.0
    (run.folder / "config.yaml").write_text("seed: 12345\n")
    assert [r.name for r in find(outputs, ["seed=12345"])] == [run.name]


def test_an_outputs_folder_that_cannot_be_written_works_without(outputs: Path, monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pipeline.records.index._write", refuse)
    assert len(all_runs(outputs)) == 8
    assert not [p for p in outputs.iterdir() if p.name.startswith(".index")]


def test_moved_and_copied_runs(outputs: Path) -> None:
    run = find(outputs, ["*seed=3"])[0]
    tags.say(run.folder, ["best"], note="kept")
    shutil.copytree(run.folder, outputs / "copy")
    run.folder.rename(outputs / "moved")
    found = find(outputs, [run.id])
    assert {one.name for one in found} == {"copy", "moved"}
    assert {(one.id, one.tags, one.notes, one.metrics == run.metrics) for one in found} == {
        (run.id, ("best",), ("kept",), True)
    }


def test_runs_below_other_folders_and_not_in_exports(outputs: Path) -> None:
    make_run(outputs / "group" / "inner" / "deep", 50)
    make_run(outputs / "gpt_oss-mxfp4-seed=0" / "model", 51)
    (outputs / "gpt_oss-mxfp4-seed=0" / "model" / ".weightmill.json").write_text("{}")
    (outputs / "link").symlink_to(outputs)  # which leads in circles
    assert [r.name for r in find(outputs, ["group/inner/deep"])] == ["group/inner/deep"]
    names = [run.name for run in all_runs(outputs)]
    assert len(names) == 9
    assert "group/inner/deep" in names


def test_copies_that_mlflow_keeps_are_no_runs(outputs: Path) -> None:
    (outputs / "mlflow.db").write_bytes(b"")
    shutil.copytree(outputs / "gpt_oss-mxfp4-seed=0", outputs / "mlflow-artifacts" / "ab" / "artifacts")
    shutil.copytree(outputs / "gpt_oss-mxfp4-seed=0", outputs / "my-artifacts" / "run")
    assert len(all_runs(outputs)) == 9
    assert [run.name for run in all_runs(outputs) if "artifacts" in run.name] == ["my-artifacts/run"]


def test_two_signs_are_one(outputs: Path) -> None:
    assert find(outputs, ["quant==mxfp4"]) == find(outputs, ["quant=mxfp4"]) != []


def test_a_folder_in_place_of_the_index_is_said_once_and_not_touched(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (outputs / NAME).mkdir()
    (outputs / NAME / "somebody's").touch()
    for _ in range(2):
        assert len(all_runs(outputs)) == 8
        find(outputs, ["train.setting_3=8"])
    said = capsys.readouterr().err
    assert said.count("is a folder, where the index of runs would be kept") == 1
    assert [p.name for p in outputs.glob(f"{NAME}*")] == [NAME]
    assert [p.name for p in (outputs / NAME).iterdir()] == ["somebody's"]


def test_tags_are_lines_that_are_added(tmp_path: Path) -> None:
    tags.say(tmp_path, ["best", "new"])
    with (tmp_path / tags.TAGS).open("ab") as file:
        file.write(b'{"add": ["torn')
    assert tags.say(tmp_path, remove=["new"]).tags == ("best",)
    append(tmp_path / tags.TAGS, {"add": ["\x1b[31m", 3, "ok"], "remove": "best", "note": 5})
    assert tags.said_of(tmp_path) == tags.Said(("best", "ok"))
    with pytest.raises(ConfigError, match="a tag has letters"):
        tags.say(tmp_path, ["<b>"])


def test_long_series_are_kept_and_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.records.series.LONG_NBYTES", 100)
    make_run(tmp_path / "run", 1, points=500)
    run = all_runs(tmp_path)[0]
    first = series(run, tmp_path)[0]["train loss"]
    assert first.count == 500
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 500, "loss": 99.0}\n{"kind": "train", "st')
    grown = series(run, tmp_path)[0]["train loss"]
    assert (grown.count, grown.max, grown.last) == (501, 99.0, 99.0)
    assert len(dumped(tmp_path)["series"]) == 1
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('ep": 501, "loss": -99.0}\n{"kind": "held_out", "step": 501, "loss": 1.5}\n')
    assert series(run, tmp_path)[0]["train loss"].min == -99.0
    gone_on = dumped(tmp_path)["series"]
    (tmp_path / NAME).unlink()
    all_runs(tmp_path)
    series(run, tmp_path)
    assert dumped(tmp_path)["series"] == gone_on, "in parts as at once"
    monkeypatch.setattr("pipeline.records.series.summarize", None)  # it is not read again
    assert series(run, tmp_path)[0]["train loss"].count == 502


def test_names_that_are_hostile(tmp_path: Path) -> None:
    for i, name in enumerate(
        ("a\nb", "\x1b[31mred", "<script>x</script>", os.fsdecode(b"\xff\xfe"), "-rf", "=1+1", "%s")
    ):
        make_run(tmp_path / name, i)
    assert len(all_runs(tmp_path)) == len(all_runs(tmp_path)) == 7
    shown = all_runs(tmp_path)
    for run in shown:
        assert "<script>" not in run._repr_html_()
        assert "\x1b" not in run._repr_html_()
