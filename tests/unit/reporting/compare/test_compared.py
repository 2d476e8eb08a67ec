"""Runs beside each other: in what they differ, what got worse, and what cannot be compared."""

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.commands.compare import main
from pipeline.errors import ConfigError, SourceError, StorageError
from pipeline.records import schemas
from pipeline.records.run import read
from pipeline.reporting.compare.compared import Compared, compared
from tests.cases.many_runs import make_run

Make = Callable[..., Path]
AGAIN = 35  # numbers so far apart are of runs alike but for their seed


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Runs below outputs/, with figures as given: a value, or all of a figure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(
        name: str, i: int = 0, *, points: int = 0, state: str = "complete", result: Any = None, **figures: Any
    ) -> Path:
        folder = tmp_path / "outputs" / name
        make_run(folder, i, points=points, state=state)
        if state == "complete":
            manifest = json.loads((folder / "manifest.json").read_text())
            evaluate = manifest["results"]["evaluate"]
            if figures:
                evaluate["figures"] = {n.replace("_", "-"): figure(v) for n, v in figures.items()}
            evaluate |= result or {}
            manifest["nbytes_out"] = 3_000_000
            (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return run


def figure(value: Any) -> dict[str, Any]:
    known = {"unit": "", "form": ".3f", "better": "lower"}
    return known | (value if isinstance(value, dict) else {"value": value})


def pair(*folders: Path) -> Compared:
    return compared([read(folder) for folder in folders])


def test_changes_are_better_or_worse_by_their_direction(make: Make) -> None:
    up = {"value": 10.0, "better": "higher"}
    a = make("a", KL=0.5, top_1=up, perplexity=10.0, other={"value": 1.0, "better": ""})
    b = make("b", 1, KL=0.25, top_1=up | {"value": 9.0}, perplexity=10.0, other={"value": 2.0, "better": ""})
    found = pair(a, b)
    said = {name: (c.absolute, c.relative, c.verdict) for name, c in found.changes[1].items()}
    assert said["KL"] == (-0.25, -0.5, "better")
    assert said["top-1"] == (-1.0, -0.1, "worse")
    assert said["perplexity"] == (0.0, 0.0, "same")
    assert said["other"] == (1.0, 1.0, "changed")
    assert ("quant=int8 seed=1", "top-1") in found.regressions or ("quant=int8", "top-1") in found.regressions
    assert "✗ worse" in found._repr_html_()


def test_older_figures_know_their_direction(make: Make) -> None:
    old = {"unit": "", "form": ".3f"}
    a, b = (make(n, i, result={"figures": {"perplexity": {"value": 10.0 + i, **old}}}) for i, n in enumerate("ab"))
    assert pair(a, b).changes[1]["perplexity"].verdict == "worse"


def test_settings_that_differ_are_said_and_others_counted(make: Make) -> None:
    found = pair(make("a", 0), make("b", 1)).differences
    by = {d.name: d.values for d in found.rows}
    assert by["quant"] == ("mxfp4", "int8")
    assert by["train.optimizer.rate"] == ("0.001", "0.002")
    assert by["seed"] == ("0", "1")
    assert "train.optimizer.name" not in by
    assert found.equal["setting"] > 200
    assert not any(name.startswith("paths") for name in by)


def test_code_and_libraries_differ_where_both_have_them(make: Make) -> None:
    a, b = make("a", 0), make("b", 0)
    for folder, version, module in ((a, "1.0", "1"), (b, "1.1", "2")):
        said = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(said | {"versions": {"numpy": version, folder.name: "1"}}))
        said = json.loads((folder / "run.json").read_text())
        for node in said["nodes"].values():
            node["parts"]["code"] = {"module_0": module, f"of_{folder.name}": module}
        (folder / "run.json").write_text(json.dumps(said))
    rows = {(d.kind, d.name): d.values for d in pair(a, b).differences.rows}
    assert rows["library", "numpy"] == ("1.0", "1.1")
    assert [name for kind, name in rows if kind == "code"] == ["module_0"]
    assert len(rows) == 2, "what only one of them reaches is no difference"


def test_runs_alike_but_for_their_seed_are_one_row(make: Make) -> None:
    seeds = [make(f"a{n}", n * AGAIN, perplexity=10.0 + n / 10) for n in range(3)]
    other = [make(f"b{n}", 1 + n * AGAIN, perplexity=10.05 + n / 10) for n in range(3)]
    far = make("c", 2, perplexity=99.0)
    found = pair(*seeds, *other, far)
    assert [len(row.runs) for row in found.groups] == [3, 3, 1]
    of = [changes["perplexity"] for changes in found.changes]
    assert of[0].after is not None
    assert (of[0].after.spread.number, of[0].after.spread.deviation) == (3, pytest.approx(0.1))
    assert [c.verdict for c in of] == ["baseline", "within noise", "worse"]
    assert "within noise: Welch" in str(found.shown[-1])
    assert str(of[0].after) == "10.100 ± 0.100"


def test_the_same_once_more_is_no_repeat(make: Make) -> None:
    """From the same seed nothing is learned of noise."""
    found = pair(make("a", 0), make("b", AGAIN), make("c", 0))
    assert [[m.run.name for m in row.runs] for row in found.groups] == [["a", "b"], ["c"]]
    assert len({*found.names}) == 2
    with pytest.raises(ConfigError, match="nothing to hold against each other"):
        pair(make("d", 0), make("e", AGAIN)).broken(["perplexity>1%"])


@pytest.mark.parametrize(
    ("tolerance", "before", "after", "fails"),
    [
        ("perplexity>1%", 100.0, 101.0, False), ("perplexity>1%", 100.0, 101.0001, True),
        ("perplexity>1%", 1.0, 1.01, False), ("perplexity>1%", 100.0, 50.0, False),
        ("perplexity>0.3", 0.1, 0.4, False), ("perplexity>0.3", 0.1, 0.4001, True),
        ("perplexity>0", 1.0, 1.0, False), ("perplexity>0", 1.0, math.nextafter(1.0, 2), True),
        ("perplexity > 1e-3", 0.0, 0.002, True), ("perplexity>1%", 0.0, 0.0, False), ("perplexity>1%", 0.0, 1e-9, True),
        ("perplexity>1%", -100.0, -99.0, False), ("perplexity>1%", -100.0, -98.9, True),
        ("perplexity>1%", 1.0, "inf", True), ("perplexity>1%", "inf", 1.0, False), ("perplexity>1%", 1.0, "nan", True),
        ("perplexity>1%", "nan", 1.0, True),
    ],
)  # fmt: skip
def test_what_is_too_much(make: Make, tolerance: str, before: Any, after: Any, fails: bool) -> None:
    found = pair(make("a", perplexity=before), make("b", 1, perplexity=after)).broken([tolerance])
    assert bool(found) == fails, found


def test_more_is_better_of_speed(make: Make) -> None:
    speed = {"unit": "tokens/s", "better": "higher", "form": ".1f"}
    found = pair(make("a", decode={"value": 100.0} | speed), make("b", 1, decode={"value": 94.0} | speed))
    assert found.broken(["decode<-6%"]) == []
    [why] = found.broken(["decode<-5%"])
    assert "decode: 100.0 tokens/s → 94.0 tokens/s (−6, −6 %); allowed: 5 % worse" in why
    assert found.broken(["decode<-6", "decode<-5.9"])[0].endswith("allowed: 5.9 tokens/s worse")


def test_tolerances_are_in_any_unit_of_the_metric(make: Make) -> None:
    """Bytes as sizes, time as times, and what else in its own."""
    a, b = make("a", KL={"value": 0.5, "unit": "nats"}), make("b", 1, KL={"value": 1.0, "unit": "nats"})
    for folder, nbytes, took in ((a, 3 << 20, 100.0), (b, 5 << 20, 190.0)):
        said = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(said | {"nbytes_out": nbytes, "seconds": took}))
    found = pair(a, b)
    held = ["size>2MiB", "size>2.1mb", "size>70%", "seconds>90", "seconds>1.5min", "KL>0.5nats", "load seconds>0s"]
    broken = ["size>1.9MiB", "size > 2097151", "seconds>89s", "seconds>89999ms", "seconds>89%", "KL>0.49 nats"]
    assert [given for given in [*held, *broken] if found.broken([given])] == broken
    assert found.broken(["size>1MiB"])[0].endswith("(+2.0 MiB, +66.7 %); allowed: 1.0 MiB worse")
    assert found.broken(["seconds>1min"])[0].endswith("allowed: 1 min 0 s worse")


def test_times_are_no_regression_without_repeats_and_only_of_the_same_work(make: Make) -> None:
    a, b, c = make("a", 0), make("b", 1), make("c", 2)
    said = json.loads((c / "manifest.json").read_text())
    (c / "manifest.json").write_text(json.dumps(said | {"chunks": {"all": 1, "reused": 1}}))
    found = pair(a, b, c)
    assert [of["seconds"].verdict for of in found.changes] == ["baseline", "changed", "not comparable"]
    assert found.changes[2]["seconds"].why == "other work taken over from earlier runs"
    assert found.changes[2]["load seconds"].verdict == "same"


def test_how_long_jobs_of_a_sweep_took_since_it_began_is_not_compared(make: Make) -> None:
    """It says in what order they were done; what stages took is theirs."""
    a, b, alone = make("a", 0), make("b", 1), make("alone", 2)
    memory, time = ({"what": w, "unit": "s", "planned": 1, "measured": 1} for w in ("memory", "time"))
    for folder, rows in ((a, [memory]), (b, [memory]), (alone, [memory, time])):
        said = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(said | {"predicted": rows}))
    assert "seconds" not in pair(a, b).changes[1]
    assert pair(a, b).changes[1]["load seconds"].verdict == "same"
    assert pair(alone, a).changes[1]["seconds"].verdict == "missing"
    assert "seconds" in pair(alone, make("other", 3)).changes[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("perplexty>1%", "did you mean 'perplexity'"), ("perplexity<1%", "write --fail-if 'perplexity>1%'"),
        ("perplexity>-1%", "write --fail-if 'perplexity>1%'"), ("perplexity", "the change that is too much"),
        ("perplexity>=1", "the change that is too much"), ("perplexity=1", "the change that is too much"),
        ("perplexity>1.2.3", "is no number"), ("perplexity>", "the change"), (">1", "the change"), ("", "the change"),
        ("other>1", "nobody says"), ("top-1<5%", "write --fail-if 'top-1<-5%'"), ("top-1>5", "'top-1<-5'"),
        ("perplexity>1kg", r"'kg' is no unit of it \(allowed: none\)"), ("perplexity>nan", "nothing is less, more"),
        ("perplexity>infinity", "is no number"), ("perplexity>1e400", "more than a number can be"),
        ("perplexity>1e400%", "more than a number can be"), ("size>1s", "allowed: KB"), ("size>1MiB%", "no unit"),
        ("seconds>1KB", "allowed: ms, s"), ("seconds<1min", "write --fail-if 'seconds>1min'"),
        ("size<-1KiB", "write --fail-if 'size>1KiB'"), ("evaluat_seconds>1", "did you mean"),
    ],
)  # fmt: skip
def test_mistakes_in_a_tolerance_are_said(make: Make, given: str, said: str) -> None:
    figures = {"perplexity": 1.0, "other": {"value": 1.0, "better": ""}, "top_1": {"value": 1.0, "better": "higher"}}
    with pytest.raises(ConfigError, match=said):
        pair(make("a", **figures), make("b", 1, **figures)).broken([given])


def test_what_one_of_them_lacks_is_no_success(make: Make) -> None:
    a, b, c = make("a", perplexity=1.0, KL=1.0), make("b", 1, perplexity=1.0), make("c", 2, state="interrupted")
    found = pair(a, b, c)
    assert [why.partition(": ")[2] for why in found.broken(["KL>1%"])] == 2 * ["KL: missing: it has none (KL>1%)"]
    [why] = found.broken(["perplexity>1%"])
    assert "missing: it has none" in why
    assert "interrupted" in found.groups[2].about
    assert "the baseline has none" in pair(b, a).broken(["KL>1%"])[0]


def of_texts(text: str = "a.txt", scored: int = 10, window: int = 256) -> dict[str, Any]:
    return {"texts": {text: {"tokens": scored, "scored": scored}}, "windows": {"window": window, "batch": scored}}


@pytest.mark.parametrize(
    ("other", "why"),
    [(of_texts("b.txt"), "texts"), (of_texts(scored=11), "tokens scored"), (of_texts(window=128), "windows")],
)  # fmt: skip
def test_other_texts_are_not_comparable(make: Make, other: dict[str, Any], why: str) -> None:
    found = pair(make("a", result=of_texts(), perplexity=1.0), make("b", 1, result=other, perplexity=1.0))
    change = found.changes[1]["perplexity"]
    assert (change.verdict, change.absolute) == ("not comparable", None)
    assert why in change.why
    assert "not comparable" in found.broken(["perplexity>100%"])[0]
    assert found.pareto("perplexity", "size").left_out == ((found.names[1], "its perplexity is of something else"),)


def test_errors_over_other_tensors_are_not_comparable(make: Make) -> None:
    a, b = make("a"), make("b", 1)
    manifest = json.loads((b / "manifest.json").read_text())
    manifest["tensors"] = manifest["tensors"][1:]
    (b / "manifest.json").write_text(json.dumps(manifest))
    assert pair(a, b).changes[1]["RMSE"].why == "other quantized tensors"


def test_a_training_is_where_it_ended_its_best_and_its_mean(make: Make) -> None:
    found = pair(make("a", points=50), make("b", 1, points=50))
    rows = [json.loads(line) for line in (Path("outputs") / "b" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    values = {name: f.value for name, f in found.groups[1].runs[0].metrics.items() if "loss" in name}
    assert values == {"train loss last": losses[-1], "train loss min": min(losses),
                      "train loss mean": pytest.approx(sum(losses) / 50)}  # fmt: skip


def test_files_have_all_of_it(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", perplexity="nan", KL=1.0)
    make("b", 1, perplexity=1.0, KL=0.5)
    for name, value in (("a", "null"), ("b", "3")):
        with Path("outputs", name, "config.yaml").open("a") as file:
            file.write(f"also: {value}\n{name}_alone: 1\n")
    assert main(["a", "b", "--format", "json", "--pareto", "KL,size"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert schemas.fault("comparison", said) is None
    assert said["rows"][1]["metrics"]["KL"]["change"] == -0.5
    assert said["rows"][0]["metrics"]["perplexity"]["mean"] == "nan"
    assert said["pareto"]["beaten"] == {said["rows"][0]["name"]: [said["rows"][1]["name"]]}
    assert main(["a", "b", "--format=csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["KL"], r["KL change"], r["KL verdict"]) for r in rows] == [
        ("1.0", "", "baseline"),
        ("0.5", "-0.5", "better"),
    ]
    assert rows[1]["quant"] == "int8"
    assert not {"–", "null"} & {cell for row in rows for cell in row.values()}
    assert [r["also"] for r in rows] == ["", "3"]
    assert [(r["a_alone"], r["b_alone"]) for r in rows] == [("1", ""), ("", "1")]
    assert main(["a", "b", "--out", "new", "--pareto", "KL,size"]) == 0
    assert sorted(p.name for p in Path("new").iterdir()) == ["comparison.csv", "comparison.json", "pareto.png"]
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert main(["a", "--out", "v1.2/", "--", "b"]) == 0
    assert sorted(p.name for p in Path("v1.2").iterdir()) == ["comparison.csv", "comparison.json"]
    assert main(["a", "b", "--out", "new/x.html"]) == 0
    assert "<html" in Path("new/x.html").read_text()


def test_the_exit_code_says_that_it_got_worse(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", KL=1.0)
    make("b", 1, KL=1.5)
    assert main(["a", "b", "--fail-if", "KL>50%"]) == 0
    assert main(["a", "b", "--fail-if", "KL>60%", "--fail-if", "KL>0.4"]) == 9
    assert "KL: 1.000 → 1.500 (+0.5, +50 %); allowed: 0.4 worse" in capsys.readouterr().err
    assert main(["a", "b", "--baseline", "b", "--fail-if", "KL>0"]) == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "which runs"), (["a"], "compare a names a alone; two at least are expected"), (["a", "nope"], "nope"),
        (["a", "b", "--format", "jsn"], "json"),
        (["a", "b", "--fail"], "no such option; did you mean '--fail-if'"), (["a", "b", "--baseline", "nope"], "nope"),
        (["a", "b", "--pareto", "KL"], "2 or 3 metrics"), (["a", "b", "--pareto", "KL,KL"], "stands there twice"),
        (["a", "b", "--pareto", "KL,siz"], "'size'"), (["a", "b", "--pareto", "KL,other"], "nobody says"),
        (["a", "b", "--out", "x.png"], "--pareto"), (["a", "b", "--out", "x.csv", "--format", "json"], "says csv"),
        (["a", "b", "--out", "x.docx"], "nothing is written as .docx .allowed: csv, json, html, png."),
        (["a", "b", "--out", "x.htm"], "did you mean 'html'"), (["a", "--", "--out"], "--out: no run and no sweep"),
        (["a", "b", "--out", "x.png", "--pareto", "KL,size", "--format", "csv"], "says png"),
        (["a", "b", "--out", ""], "a folder or a file"), (["a", "b", "--out", "a-file/x.csv"], "a-file"),
        (["a", "b", "--baseline", "quant!=none"], "2 runs are meant"), (["a", "a"], "a alone"),
    ],
)  # fmt: skip
def test_mistakes_in_words_are_said(make: Make, words: list[str], error: str) -> None:
    make("a", KL=1.0, other={"value": 1.0, "better": ""})
    make("b", 1, KL=1.5, other={"value": 1.0, "better": ""})
    Path("a-file").touch()
    with pytest.raises((ConfigError, SourceError, StorageError), match=error):
        main(words)


def test_a_notebook_has_the_same(make: Make) -> None:
    pandas = pytest.importorskip("pandas")
    a, b = make("a", KL=1.0), make("b", 1, KL=1.5)
    for found in (pipeline.compare("a", "b"), pipeline.compare(a, read(b)), pipeline.compare(read(a), b)):
        frame = pandas.DataFrame(found.rows)
        assert list(frame["KL"]) == [1.0, 1.5]
        assert list(frame["KL change [%]"])[1] == 50
    assert pipeline.compare(a, b, baseline="b").changes[1]["KL"].absolute == -0.5
    assert pipeline.compare(a, b).pareto("KL", "size").front
    with pytest.raises(ConfigError, match="a run is expected"):
        pipeline.compare(a, 3)  # type: ignore[arg-type]


def test_names_neither_steer_nor_act(make: Make) -> None:
    a, b = make("a"), make("b", 1)
    for folder in (a, b):
        manifest = json.loads((folder / "manifest.json").read_text())
        evil = "\x1b[2J<script>alert(1)</script>"
        manifest["errors"][0]["name"] = evil
        manifest["results"]["evaluate"]["figures"][evil] = figure(1.0)
        (folder / "manifest.json").write_text(json.dumps(manifest))
    shown = pair(a, b)._repr_html_()
    assert "<script>" not in shown
    assert "\x1b" not in shown


def test_broken_records_are_named(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", KL=1.0)
    (make("b", 1) / "manifest.json").write_text('{"weightmill": 1, "run"')
    (make("c", 2) / "run.json").write_text("[1]")
    assert main(["a", "b", "c", "--fail-if", "KL>1%"]) == 9
    said = capsys.readouterr()
    assert "unreadable" in said.out
    assert said.err.count("missing") == 2


def test_short_names_are_those_of_conditions(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    losses = {"held-out loss": figure(2.0), "training loss": figure(1.0)}
    make("a", result={"figures": losses})
    make("b", 1, result={"figures": {**losses, "held-out loss": figure(2.1)}})
    assert main(["a", "b", "--fail-if", "loss>1%"]) == 9
    assert "held-out loss: 2.000 → 2.100" in capsys.readouterr().err
    assert main(["a", "b", "--fail-if", "training_loss>1%"]) == 0
    assert main(["a", "b", "--fail-if", "loss>10%"]) == 0


def test_other_bytes_of_one_size_are_seen(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    for i, (name, digest) in enumerate((("a", "1"), ("b", "2"), ("c", "1"))):
        file = make(name, i) / "manifest.json"
        manifest = json.loads(file.read_text())
        places = {"model.safetensors": digest * 32, "config.json": "0" * 32}
        manifest["outputs"] = [
            {"path": f"{manifest['run']}/model/{n}", "nbytes": 5, "xxh3_128": d} for n, d in places.items()
        ]
        manifest["exports"] = {"export": f"{manifest['run']}/model"}
        file.write_text(json.dumps(manifest))
    main(["a", "b", "c"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "bytes of model.safetensors" in shown
    assert "1 files written (their bytes)" in shown
    values = next(d.values for d in pipeline.compare("a", "b", "c").differences.rows if d.kind == "output")
    assert values[0] == values[2] != values[1]
    make("again", AGAIN)  # it wrote nothing, and is a repeat all the same
    assert len(pair(Path("outputs") / "a", Path("outputs") / "again").groups) == 1


def test_where_a_loss_ended_stands_there_once(make: Make) -> None:
    folder = make("a", points=3, result={"figures": {"held-out loss": figure(7.0)}})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "held_out", "step": 1, "loss": 8.0}\n{"kind": "held_out", "step": 2, "loss": 7.0}\n')
    found = pair(folder, make("b", 1))
    assert {n for n in found.metrics if "held" in n} == {"held-out loss", "held_out loss min", "held_out loss mean"}


def test_values_so_far_are_marked(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("done", 0, points=3, result={"figures": {"training loss": figure(3.0)}})
    make("cut", 1, points=3, state="interrupted")
    main(["done", "cut", "--out", "found.html"])
    text = Path("found.html").read_text()
    main(["done", "cut"])
    shown = capsys.readouterr().out
    last = json.loads((Path("outputs") / "cut" / "metrics.jsonl").read_text().splitlines()[-1])["loss"]
    assert f"{last:.4f}…" in shown
    assert "3.000 " in shown
    assert "… the last value so far: the run is not complete" in shown
    assert f"{last:.4f}…" in text
    assert "… the last value so far" in text
