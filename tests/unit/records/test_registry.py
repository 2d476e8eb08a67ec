"""The registry: which runs there are, from their folders, and from an index that is never believed without them."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, SourceError
from pipeline.records import tags, tries
from pipeline.records.index import NAME, TABLES
from pipeline.records.lines import append, lines
from pipeline.records.query import ordered
from pipeline.records.registry import all_runs, find, registry
from pipeline.records.run import read
from pipeline.records.series import series
from pipeline.records.sweeps import keep
from pipeline.running.journal import locked
from pipeline.running.reproduce import before
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


def test_conditions(outputs: Path) -> None:
    def names(*words: str) -> set[int]:
        return {int(run.name.rpartition("=")[2]) for run in find(outputs, words)}

    runs = all_runs(outputs)
    kl = {int(r.name.rpartition("=")[2]): r.metrics["KL"].value for r in runs}
    assert names("quant=mxfp4") == {0, 5}
    assert names("quant!=mxfp4") == set(range(8)) - {0, 5}
    assert names("quant=int*") == {1, 2, 6, 7}
    assert names("kl<0.05") == names("KL<0.05") == {i for i, v in kl.items() if v < 0.05}
    assert names("kl<0.05", "kl>=0.02") == {i for i, v in kl.items() if 0.02 <= v < 0.05}
    assert names("seed>=6") == {6, 7}
    assert names("optimizer.rate=0.002") == names("train.optimizer.rate=0.002") == {1}
    assert names("optimizer.name=adamw") == set(range(8))
    assert names("size>3MB") == names("size > 3e6") == set(range(1, 8))
    assert names("top-1<100%", "kl<inf", "seconds<.5h") == set(range(8))
    for i, said in enumerate(("true", "false")):
        with (outputs / f"gpt_oss-{('mxfp4', 'int8')[i]}-seed={i}" / "config.yaml").open("a") as file:
            file.write(f"trace: {said}\n")
    assert names("trace=True") == names("trace=TRUE") == names("trace=true") == {0}
    assert names("trace=False") == {1}
    assert names("trace!=False") == set(range(8)) - {1}
    assert names("started<2026-10") == set(range(8))
    assert names("started>2026-09-21") == names("started=2000-01-01") == set()
    assert names("age>1h") == set(range(8))
    assert names("seconds<2min") == set(range(8))
    tags.say(outputs / "gpt_oss-mxfp4-seed=0", ["best", "b:c"])
    assert names("tag=best") == names("tag=b:c") == {0}
    assert names("tag!=best") == set(range(1, 8))
    assert names("*seed=3", "quant=mxfp4") == set()
    assert names("gpt_oss-mxfp4-seed=0") == {0}  # a name, whatever signs are in it
    assert find(outputs, ["seed=5"])[0].name.endswith("seed=5")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("perplexty<3", "did you mean 'perplexity'"),
        ("quantt=int8", "did you mean 'quant'"),
        ("optimizer.rat=1", "optimizer.rat"),
        ("state=complet", "did you mean 'complete'"),
        ("kl<abc", "'abc' is no number"),
        ("quant<3", "words are = or != only"),
        ("started>soon", "is no date"),
        ("size<many", "write a number with a unit"),
        ("seconds<3x", "'x' is no unit of it (allowed: ms, s, min"),
        ("seconds<soon", "90s, 2min"),
        ("kl<nan", "nothing is less, more or equal to it"),
        ("kl<1e400", "more than a number can be"),
        ("kl<1%", "'%' is no unit of it (allowed: nats)"),
        ("setting_1=3", "is any of"),
        ("gpt_oss-mxfp4-seed=00", "there is a run 'gpt_oss-mxfp4-seed=0'"),
    ],
)
def test_conditions_that_say_nothing(outputs: Path, word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        find(outputs, [word])


def test_names_that_there_are_not(outputs: Path) -> None:
    with pytest.raises(SourceError, match="gpt_oss-mxfp4-seed=0"):
        find(outputs, ["gpt_oss/mxfp4/seed"])
    for word in ("\0", "x" * 5000, "~nobody/x", "../..", "[", "\udcff"):
        with pytest.raises((SourceError, ConfigError)):
            find(outputs, [word])


def test_the_best_come_first(outputs: Path) -> None:
    runs = all_runs(outputs)
    values = [run.metrics["perplexity"].value for run in ordered(runs, "perplexity")]
    assert values == sorted(values)
    tops = [run.metrics["top-1"].value for run in ordered(runs, "top-1")]
    assert tops == sorted(tops, reverse=True)
    assert [r.metrics["top-1"].value for r in ordered(runs, "top_1", reverse=True)] == sorted(tops)
    make_run(outputs / "without", 70, state="interrupted")
    assert (
        ordered(all_runs(outputs), "kl")[-1].name
        == ordered(all_runs(outputs), "kl", reverse=True)[-1].name
        == "without"
    )
    assert [r.name for r in ordered(runs, "name")] == sorted(r.name for r in runs)


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


def _write_runs(outputs: str, worker: int) -> None:
    for i in range(12):
        folder = Path(outputs) / f"w{worker}-{i % 3}"
        shutil.rmtree(folder, ignore_errors=True)
        make_run(folder, worker * 1000 + i, points=20)
        tags.say(folder, [f"t{i}"])


def _index(outputs: str, times: int) -> int:
    return [len(registry(Path(outputs)).runs) for _ in range(times)][-1]


def test_ten_writers_and_a_reader(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_runs, args=(str(tmp_path), w)) for w in range(10)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        for run in all_runs(tmp_path):  # in the middle of being written, or whole, and never something else
            if run.state == "complete":
                assert {"perplexity", "KL", "SQNR"} <= run.metrics.keys()
        reads += 1
    for writer in writers:
        writer.join(60)
    assert reads
    assert {writer.exitcode for writer in writers} == {0}
    for writer in writers:
        writer.close()
    found = plain(tmp_path)
    assert {run.state for run, _ in found} == {"complete"}
    (tmp_path / NAME).unlink()
    assert plain(tmp_path) == found


def test_several_make_the_index_at_once(outputs: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        for _ in range(5):
            (outputs / NAME).unlink(missing_ok=True)
            assert pool.starmap(_index, [(str(outputs), 3)] * 4) == [8] * 4
    all_runs(outputs)
    assert len(dumped(outputs)["records"]) == 8
    assert [p.name for p in outputs.iterdir() if p.name.startswith(".index")] == [NAME]


def test_writers_that_are_killed_lose_the_line_they_are_writing(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom pipeline.records.lines import append\n"
        "for i in range(10**9): append(Path(sys.argv[1]), {'i': i, 'text': 'x' * 500})"
    )
    whole = 0
    for round_ in range(4):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lines.jsonl")])
        deadline = time.monotonic() + 60
        while len(list(lines(tmp_path / "lines.jsonl"))) < whole + 50 + 17 * round_:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = list(lines(tmp_path / "lines.jsonl"))
        assert all(len(line["text"]) == 500 for line in found)
        whole = len(found)
        with (tmp_path / "lines.jsonl").open("ab") as file:
            file.write(b'{"i": 3, "te')  # what a kill in the middle of a write leaves
    assert next(line["i"] for line in lines(tmp_path / "lines.jsonl")) == 0
    append(tmp_path / "lines.jsonl", {"i": -1})
    assert [line["i"] for line in lines(tmp_path / "lines.jsonl")][-1] == -1


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
