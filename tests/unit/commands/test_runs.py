"""`runs`: listed, shown, tagged, removed, exported."""

import csv
import json
from pathlib import Path

import jsonschema
import pytest

import pipeline
from pipeline.commands.compare import main as compare
from pipeline.commands.report import main as report
from pipeline.commands.reproduce import main as reproduce
from pipeline.commands.runs import main
from pipeline.errors import ConfigError, SourceError, StorageError
from pipeline.records import schemas
from pipeline.records.run import read
from pipeline.records.sweeps import keep
from pipeline.reporting.runs import files_of
from pipeline.running.journal import locked
from tests.cases.many_runs import make_run, make_tree


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    make_tree(tmp_path / "outputs", 6, points=5)
    return tmp_path / "outputs"


def test_a_list_fits_and_says_what_it_leaves_out(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(outputs / "broken\x1b[31m", 9, state="failed")
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "gpt_oss-int4-seed=2" in shown
    assert "broken\\x1b[31m: failed: no room" in shown
    assert "\x1b" not in shown
    main(["--limit", "2", "--sort", "top-1", "state=complete"])
    shown = capsys.readouterr().out
    assert "2 of 6 runs" in shown
    assert "top-1" in shown.partition("┡")[0].partition("━")[2]  # what was asked for has its column
    main(["kl<0"])
    assert capsys.readouterr().out == "no run is so\n"


def test_trainings_that_are_not_complete_show_how_far_they_are(
    outputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    make_run(outputs / "cut", 50, points=5, state="interrupted")
    make_run(outputs / "at-work", 60, points=5, state="interrupted")
    with (outputs / "at-work" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "held_out", "step": 4, "loss": 9.25, "accuracy": 0.5, "weight": 7}\n')
        file.write(
            '{"kind": "train", "step": 5, "loss": 0.125}\n{"kind": "train", "step": 6, "member": 1, "loss": 7}\n'
        )
        file.write('{"kind": "train", "step": -7, "loss": 8}\n{"kind": "train", "step": 7, "loss": 0.5}')
    with locked(outputs / "at-work" / ".lock", "busy"):
        main(["loss>0", "--sort", "loss"])
        shown = capsys.readouterr().out
        main(["--format", "json", "loss>0", "--sort", "loss"])
        cut, working = json.loads(capsys.readouterr().out)["runs"]
    assert "held-out loss" in shown
    assert "training loss" in shown
    assert "0.1250…" in shown
    assert "… the last value so far: the run is not complete" in shown
    assert (cut["state"], working["state"]) == ("interrupted", "running")
    assert {n: m["value"] for n, m in working["metrics"].items()} == {
        "training loss": 0.125, "held-out loss": 9.25, "held-out accuracy": 0.5,
    }  # fmt: skip
    last = (outputs / "cut" / "metrics.jsonl").read_text().splitlines()[-1]
    assert cut["metrics"]["training loss"]["value"] == json.loads(last)["loss"]
    main(["loss<9", "state=interrupted", "accuracy!=1"])
    assert "cut" in capsys.readouterr().out
    with (outputs / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 5, "loss": 99.5}\n')
    main(["loss>9", "state=interrupted", "--sort", "loss", "--reverse"])
    assert "99.5000…" in capsys.readouterr().out
    main(["show", "cut"])
    assert "Metrics so far" in capsys.readouterr().out
    main([])
    assert "KL" in (shown := capsys.readouterr().out)
    assert "nats…" not in shown


def test_formats_say_the_same(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--format", "json"])
    found = json.loads(capsys.readouterr().out)["runs"]
    main(["--format", "csv"])
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [r["name"] for r in rows] == [r["name"] for r in found]
    assert [float(r["KL [nats]"]) for r in rows] == [r["metrics"]["KL"]["value"] for r in found]
    main(["export", "--out", "all.parquet", "--format", "parquet", "--sort", "kl"])
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table("all.parquet").to_pylist()
    assert [r["KL [nats]"] for r in table] == sorted(r["metrics"]["KL"]["value"] for r in found)
    assert table[0]["config.train.optimizer.name"] == "adamw"


def test_all_of_one(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tag", "*seed=3", "+best", "+old", "--note", "<b>look</b>"])
    main(["tag", "*seed=3", "-old"])
    capsys.readouterr()
    main(["show", "*seed=3"])
    shown = capsys.readouterr().out
    for text in ("nvfp4", "best", "<b>look</b>", "train loss", "nats", "manifest.json", "complete"):
        assert text in shown, text
    assert "old" not in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80


def test_behind_two_hyphens_all_are_names(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(outputs / "-odd", 9)
    make_run(outputs / "+even", 10)
    main(["tag", "+best", "--", "-odd", "+even"])
    assert capsys.readouterr().out == "-odd: best\n+even: best\n"
    main(["--format", "csv", "--", "-odd"])
    assert capsys.readouterr().out.splitlines()[1].startswith("-odd,")
    main(["show", "--", "-odd"])
    report(["--out", "odd.html", "--", "-odd"])
    assert Path("odd.html").exists()


def test_what_no_run_put_there_stays(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = outputs / "gpt_oss-mxfp4-seed=0"
    (folder / "notes.txt").write_text("mine")
    (folder / "data").mkdir()
    (folder / "link.png").symlink_to(outputs)
    with pytest.raises(ConfigError, match="--yes"):
        main(["rm", "*seed=0"])
    assert (folder / "manifest.json").exists()
    main(["rm", "*seed=0", "*seed=1", "--yes"])
    assert sorted(p.name for p in folder.iterdir()) == ["data", "link.png", "notes.txt"]
    assert not (outputs / "gpt_oss-int8-seed=1").exists()
    assert "notes.txt" in capsys.readouterr().out


def test_runs_at_work_stay(outputs: Path) -> None:
    make_run(outputs / "busy", 20, state="interrupted")
    with locked(outputs / "busy" / ".lock", "busy"), pytest.raises(StorageError, match="is at work"):
        main(["rm", "busy", "--yes"])
    lock = outputs / "gpt_oss-mxfp4-seed=0" / ".lock"
    with locked(lock, "busy"), pytest.raises(StorageError, match="is at work"):
        main(["rm", "*seed=0", "--yes"])
    assert (outputs / "busy" / "run.json").exists()
    assert (outputs / "gpt_oss-mxfp4-seed=0" / "manifest.json").exists()


def test_a_name_as_a_table_shows_it_is_a_name(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "gpt…seed=2"]) == 0
    assert "gpt_oss-int4-seed=2" in capsys.readouterr().out


def test_where_no_run_is_so_it_says_what_there_is(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["quant=int5"])
    said = capsys.readouterr().out
    assert said.startswith("no run is so\nquant=int5: of no run; did you mean 'int")
    main(["quant=int4,int5", "kl<0"])
    assert capsys.readouterr().out == "no run is so\n"


def test_a_verb_that_is_nearly_one(outputs: Path) -> None:
    with pytest.raises(SourceError, match="did you mean `runs show`"):
        main(["shw", "gpt_oss-int4-seed=2"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--frmat", "csv"], "did you mean '--format'"),
        (["--format", "cvs"], "did you mean 'csv'"),
        (["--limit", "0"], "a number of runs"),
        (["--limit", "x"], "a number of runs"),
        (["--sort", "perplexty"], "did you mean 'perplexity'"),
        (["kl<0", "--sort", "perplexty"], "did you mean 'perplexity'"),
        (["export", "kl<0", "--sort", "perplexty"], "did you mean 'perplexity'"),
        (["tag", "*seed=0"], "say which"),
        (["tag", "*seed=0", "+b<"], "a tag has"),
        (["export", "--format", "parquet"], "--out FILE"),
        (["export", "--out", "outputs"], "is a folder"),
        (["show", "kl<0"], "no run is so"),
        (["show"], "required"),
        (["paths.outputs=nowhere"], "there is no such folder"),
    ],
)
def test_mistakes(outputs: Path, words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("<", "<")):
        main(words)


def test_a_table_in_python(outputs: Path) -> None:
    runs = pipeline.runs(outputs, where=["kl>=0"], sort="kl")
    values = [run.metrics["KL"].value for run in runs]
    assert values == sorted(values)
    assert len(runs) == 6
    assert runs[0] in list(runs[:2])
    assert "6 runs (6 complete)" in repr(runs)
    make_run(outputs / "<i>x</i>", 30)
    shown = pipeline.runs(outputs)._repr_html_()
    assert "<i>x" not in shown
    assert "&lt;i&gt;x" in shown
    frame = pytest.importorskip("pandas") and runs.to_pandas()
    assert list(frame["KL [nats]"]) == values
    with pytest.raises(ConfigError, match="a list is expected"):
        pipeline.runs(outputs, where="kl<1")
    with pytest.raises(SourceError, match="no run"):
        pipeline.runs(outputs, where=["nothing"])


def test_an_export_is_what_its_name_says_and_replaces_no_record(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", "--out", "all.json"])
    found = json.loads(Path("all.json").read_text())
    jsonschema.validate(found, schemas.schema("runs"))
    assert len(found["runs"]) == 6
    with pytest.raises(ConfigError, match="name says json"):
        main(["export", "--out", "all.json", "--format", "csv"])
    main(["export", "--out", "all.txt", "--format", "json"])
    assert json.loads(Path("all.txt").read_text())
    for name in ("manifest.json", "config.yaml"):
        record = outputs / "gpt_oss-mxfp4-seed=0" / name
        before = record.read_bytes() if record.exists() else None
        for verb in (main, report, compare):
            words = {main: ["export"], report: [], compare: ["gpt_oss-mxfp4-seed=0", "*"]}[verb]
            with pytest.raises(StorageError, match="record of a run"):
                verb([*words, "--out", str(record)])
        assert (record.read_bytes() if record.exists() else None) == before


def test_what_cannot_be_counted_is_listed_too(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A try that said how many chunks there are, and then a record that is not whole."""
    folder = outputs / "cut"
    make_run(folder, 9, state="interrupted")
    (folder / "tries.jsonl").write_text('{"event": "began", "at": 1.0, "host": "vm", "pid": 1, "total": 3}\n')
    (folder / "manifest.json").write_text('{"na')
    main([])
    assert "unreadable" in capsys.readouterr().out
    main(["show", "cut"])
    capsys.readouterr()
    main(["export", "--format", "json"])
    jsonschema.validate(json.loads(capsys.readouterr().out), schemas.schema("runs"))


def test_conditions_where_there_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none").mkdir()
    main([f"paths.outputs={tmp_path / 'none'}", "kl<0.01", "size<5GiB"])
    assert capsys.readouterr().out == "no run is so\n"


def test_a_file_of_metrics_that_is_none_is_named_beside_the_rest(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (outputs / "gpt_oss-mxfp4-seed=0" / "metrics.jsonl").open("ab") as file:
        file.truncate(1 << 25)
    main(["show", "gpt_oss-mxfp4-seed=0"])
    shown = capsys.readouterr().out
    assert "manifest.json" in shown
    assert "without a line break" in shown
    with pytest.raises(ConfigError, match="required: RUN"):
        main(["show"])


def test_traces_and_profiles_are_listed_wherever_they_lie(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, sweep = outputs / "gpt_oss-mxfp4-seed=0", outputs / "sweep"
    for place in (folder, sweep):
        (place / "trace.jax/evaluate-1-1/plugins").mkdir(parents=True)
        (place / "trace.json").write_text("{}")
    (folder / "trace.parts").mkdir()
    (folder / "trace.parts/1-a.jsonl").touch()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["traces"] = {
        "trace.json": "../sweep/trace.json",
        "trace.jax/evaluate-1-1": "../sweep/trace.jax/evaluate-1-1",
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    kinds = {name: what for name, what, _ in files_of(read(folder))}
    assert kinds["trace.json"] == "trace"
    assert kinds["trace.jax/"] == "profiles by jax.profiler"
    assert kinds["trace.parts/"] == "pieces of a trace"
    assert kinds[str(sweep / "trace.json")] == "trace"
    assert kinds[str(sweep / "trace.jax/evaluate-1-1")] == "profile by jax.profiler"
    (sweep / "trace.json").unlink()
    main(["show", "gpt_oss-mxfp4-seed=0"])
    assert "trace, gone" in capsys.readouterr().out
    main(["rm", "gpt_oss-mxfp4-seed=0", "--yes"])
    assert not folder.exists()
    assert (sweep / "trace.jax/evaluate-1-1").exists()


def test_what_a_run_lacks_to_be_made_again_is_said(outputs: Path) -> None:
    with pytest.raises(ConfigError, match=r"one run at a time is made again, and 6 are called so: gpt_oss"):
        reproduce(["gpt_oss*"])
    folder = outputs / "gpt_oss-mxfp4-seed=0"
    (folder / "config.yaml").unlink()
    with pytest.raises(SourceError, match=r"config\.yaml: is gone; it says with which settings"):
        reproduce([folder.name])
    (folder / "run.json").unlink()
    with pytest.raises(SourceError, match=r"run\.json: is gone, or cannot be read"):
        reproduce([folder.name])


def test_a_tag_that_is_not_there_is_not_taken_away(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tag", "*seed=0", "+best"])
    before = (outputs / "gpt_oss-mxfp4-seed=0" / "tags.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"runs tag -bets: gpt_oss-mxfp4-seed=0 has no such tag; did you mean 'best'"):
        main(["tag", "*seed=0", "+new", "-bets"])
    assert (outputs / "gpt_oss-mxfp4-seed=0" / "tags.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match="none of the 2 runs has such a tag"):
        main(["tag", "*seed=1", "*seed=2", "-best"])
    main(["tag", "*seed=0", "*seed=1", "-best"])  # one has it
    assert "no tags" in capsys.readouterr().out


def test_jobs_that_are_gone_are_named_by_every_verb(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [read(outputs / f"gpt_oss-{quant}-seed={i}") for i, quant in enumerate(("mxfp4", "int8", "int4"))]
    (outputs / "swept").mkdir()
    keep(outputs / "swept", [(f"seed={i}", run.folder, run.id) for i, run in enumerate(runs)])
    main(["rm", "*seed=2", "--yes"])
    capsys.readouterr()
    said = "! seed=2, of swept: gone: gpt_oss-int4-seed=2 is not there any more\n"
    for verb, words in ((main, ["--format", "json"]), (compare, []), (report, [])):
        assert verb(["swept", *words]) == 0
        assert capsys.readouterr().err == said
    text = (outputs / "swept" / "report.html").read_text()
    assert "<h1>swept: 2 runs</h1>" in text
    assert "seed=2: gone: gpt_oss-int4-seed=2 is not there any more." in text
    main(["rm", "*seed=1", "--yes"])
    report(["swept"])
    assert "gone: gpt_oss-int8-seed=1" in (outputs / "gpt_oss-mxfp4-seed=0" / "report.html").read_text()
    with pytest.raises(ConfigError, match="names gpt_oss-mxfp4-seed=0 alone"):
        compare(["swept"])


def test_a_page_goes_beside_what_it_is_about_and_replaces_nobodys(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [read(outputs / f"gpt_oss-{quant}-seed={i}") for i, quant in enumerate(("mxfp4", "int8"))]
    (outputs / "swept").mkdir()
    keep(outputs / "swept", [(run.name, run.folder, run.id) for run in runs])
    for words, folder in (
        (["swept"], outputs / "swept"),
        ([str(outputs / "swept")], outputs / "swept"),
        (["*"], outputs),
    ):
        for _ in range(2):  # the second takes the place of the first, which is ours
            compare([*words, "--format", "html"])
            assert capsys.readouterr().out.strip() == str(folder / "comparison.html")
    assert not Path("comparison.html").exists()
    for name, verb in (("comparison.html", compare), ("report.html", report)):
        (outputs / name).write_text("<p>mine</p>")
        with pytest.raises(StorageError, match=f"{name}: is there, and no page of ours; --out FILE.html"):
            verb(["*", *(["--format", "html"] if verb is compare else [])])
        assert (outputs / name).read_text() == "<p>mine</p>"
