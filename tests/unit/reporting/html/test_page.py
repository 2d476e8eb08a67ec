"""A page is well-formed, says what the records say, reaches nowhere, and nothing that it shows can act."""

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

import pytest

from pipeline import redact
from pipeline.errors import StorageError
from pipeline.records.points import Writer, file_of
from pipeline.records.registry import find
from pipeline.records.run import Run, read
from pipeline.records.sweeps import keep
from pipeline.records.system import TYPES
from pipeline.reporting.html import page
from pipeline.reporting.html.plots import plots
from pipeline.reporting.html.scales import label
from pipeline.running.journal import locked
from tests.cases import written_runs
from tests.cases.written_runs import HOSTILE
from tests.unit.reporting.html.reading import Node, attention, cells, gist, parsed, tables

REMOTE = re.compile(r"(?:src|href|action|xlink:href)\s*=\s*[\"']?+(?!#|data:,)|url\(|@import|https?://(?!www\.w3\.org)")


def everything(folder: Path) -> Run:
    """A run of all there may be."""
    bins = {"edges": [-1, 1], "before": [1, 4, 1], "after": [0, 6, 0], "near": [-1, 1], "error": [2, 2, 2]}
    row = {"encoding": "e2m1", "values": 6, "bins": {**bins, "codes": {"0": 5, "7": 1}, "scales": {"-3": 2}}}
    results = {
        "evaluate": written_runs.scored(61.5, 0.0123),
        "histogram": {"tensors": {"model.a": row}, "figures": {}},
        "generate": {"prompts": ["Once"], "texts": ["upon a time"], "figures": {}},
        "other": {"answer": 42},
    }
    return written_runs.write(
        folder, tensors=written_runs.layers(4), results=results, training=written_runs.updates(500)
    )


def test_a_page_is_well_formed_and_every_chart_has_its_table(tmp_path: Path) -> None:
    root = parsed(page.html([everything(tmp_path / "a")]))
    ids = [
        n.attributes["id"]
        for tag in ("section", "h2", "main", "details", "div", "button")
        for n in root.all(tag)
        if "id" in n.attributes
    ]
    assert len(ids) == len({*ids})
    assert {a.attributes["href"] for a in root.all("a")} <= {f"#{i}" for i in ids}
    for section in root.all("section"):
        assert section.attributes["aria-labelledby"] in ids
    titles = [s.all("h2")[0].text for s in root.all("section")]
    assert titles == [
        "Summary",
        "Stages",
        "Quantization error",
        "Gains of calibration",
        "Histograms",
        "Results",
        "Training",
        "Text",
        "Configuration",
        "Environment",
        "Files",
    ]
    figures = root.all("figure")
    assert len(figures) >= 9
    for figure in figures:
        assert figure.all("figcaption")[0].all("h3")[0].text
        drawings = [svg for svg in figure.all("svg") if "aria-label" in svg.attributes]
        assert len(drawings) == 2  # wide and narrow
        (table,) = figure.all("table")
        assert table.all("caption")[0].text
        assert len(table.all("tbody")[0].all("tr")) > 0
    assert all(t.all("caption") for t in root.all("table"))


def test_numbers_are_those_of_the_manifest(tmp_path: Path) -> None:
    run = everything(tmp_path / "a")
    root = parsed(page.html([run]))
    manifest = json.loads((run.folder / "manifest.json").read_text())
    tables = {t.all("caption")[0].text: t for t in root.all("table")}

    def numbers(caption: str) -> list[list[float | None]]:
        cells = [row.all("td") for row in tables[caption].all("tbody")[0].all("tr")]
        return [[float(c.attributes["data-v"]) if "data-v" in c.attributes else None for c in row] for row in cells]

    def heads(caption: str) -> list[str]:
        return [row.all("th")[0].text for row in tables[caption].all("tbody")[0].all("tr")]

    by_name = dict(zip(heads("Quantization error by tensor"), numbers("Quantization error by tensor"), strict=True))
    for row in manifest["tensors"]:
        assert by_name[row["name"]][1:4] == [row["count"], row["max_abs"], row["rmse"]]
        assert by_name[row["name"]][4] == (pytest.approx(row["sqnr_db"], rel=1e-12) if row["sqnr_db"] else None)
    gained = dict(zip(heads("Lost of outputs by tensor"), numbers("Lost of outputs by tensor"), strict=True))
    assert next(iter(gained)) == manifest["gains"][-1]["name"], "what loses most, first"
    for row in manifest["gains"]:
        shares = [100 * row["lost"][step] / row["signal"] for step in ("nearest", "gptq")]
        assert gained[row["name"]][1:] == [pytest.approx(v) for v in (*shares, -50)]
    for stage, row in zip(manifest["stages"], numbers("Stages"), strict=True):
        assert row[1:] == [stage["tensors"], stage["nbytes_in"], stage["nbytes_out"], stage["seconds"]]
    memory, time = numbers("Planned and measured")
    assert memory == [2000, 1500, -25]
    assert time == [None, 3.25, None]
    (matrix,) = [c for c in tables if c.startswith("Quantization error over layers")]
    exact = tables[matrix].all("tr")[-1].all("td")[-1]
    assert exact.text == "exact"
    assert "data-v" not in exact.attributes
    cards = {c.all("dt")[0].text: c.all("dd")[0] for c in root.all("div") if c.attributes.get("class") == "card"}
    assert float(cards["perplexity"].attributes["data-v"]) == 61.5
    assert float(cards["bits a weight"].attributes["data-v"]) == 4.0
    assert float(cards["KL"].attributes["data-v"]) == 0.0123


def test_several_runs(tmp_path: Path) -> None:
    runs = written_runs.sweep(tmp_path)
    root = parsed(page.html(runs))
    tables = {t.all("caption")[0].text: t for t in root.all("table")}
    labels = [row.all("th")[0].text for row in tables["Runs"].all("tbody")[0].all("tr")]
    assert labels == [f"quant={q} seed={s}" for s in range(3) for q in ("mxfp4", "int8")]
    assert [h.text for h in tables["What differs"].all("thead")[0].all("th")][2:] == labels
    assert [row.all("th")[0].text for row in tables["What differs"].all("tbody")[0].all("tr")] == [
        "quant",
        "seed",
    ]
    front = [row.all("td")[-1].text for row in tables["perplexity over bits a weight"].all("tbody")[0].all("tr")]
    assert front == ["no other beats it"] + ["–"] * 5  # the first is smallest and best
    lines = [g for g in root.all("g") if g.attributes.get("class") == "line" and "data-key" in g.attributes]
    assert {g.attributes["data-key"] for g in lines} == {*labels}
    assert {d.attributes.get("id") for d in root.all("details")} >= {f"run-{n}" for n in range(6)}


def test_nothing_is_remote_and_only_our_script_runs(tmp_path: Path) -> None:
    text = page.html([everything(tmp_path / "a"), everything(tmp_path / "b")])
    assert not REMOTE.findall(text)
    root = parsed(text)
    (policy,) = [m.attributes["content"] for m in root.all("meta") if "http-equiv" in m.attributes]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (one,) = root.all(tag)
        digest = b64encode(sha256(one.text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    styled = [n for n in [root] if n.all("style")]
    assert styled
    assert " style=" not in text.partition("<body>")[2]


def test_hostile_names_are_text(tmp_path: Path) -> None:
    """Wherever somebody may write: nothing becomes an element, an attribute, or a direction of text."""
    names = [written_runs.tensor(f"{HOSTILE}.{n}.w") for n in range(2)]
    table = {"title": HOSTILE, "columns": [HOSTILE, HOSTILE], "rows": [[HOSTILE, HOSTILE]], "streamed": False}
    results = {
        HOSTILE: {"tables": [table], "figures": {HOSTILE: 1.5}, "facts": {HOSTILE: HOSTILE}},
        "generate": {"prompts": [HOSTILE], "texts": [HOSTILE]},
    }
    rows = [{"kind": HOSTILE, "step": n, HOSTILE: n / 2, "loss": n} for n in range(1, 4)]
    rows += [{"kind": "sample", "step": 1, "prompt": HOSTILE, "text": HOSTILE}]  # type: ignore[dict-item]
    runs = [
        written_runs.write(
            tmp_path / f"{n}<b>&'\"", command=(f"x={n}{HOSTILE}",), tensors=names, results=results, training=rows,
            config={HOSTILE: {HOSTILE: f"{n}{HOSTILE}"}}, versions={HOSTILE: HOSTILE}, encodings={HOSTILE: 1},
        )
        for n in range(2)
    ]  # fmt: skip
    plain = parsed(page.html([everything(tmp_path / "plain")]))
    for given in (runs[:1], runs):
        text = page.html(given, title=HOSTILE)
        root = parsed(text)
        assert len(root.all("script")) == len(plain.all("script")) == 1
        assert root.all("img") == root.all("b") == []
        assert not [n for n in _all(root) for a in n.attributes if a.startswith("on")]
        assert "\u202e" not in text
        assert "\x1b" not in text
        assert "{{7*7}}" in text  # and not 49
        assert "owned" in root.all("title")[0].text


def _all(node: Node) -> list[Node]:
    return [node, *(found for c in node.children for found in _all(c))]


def test_secrets_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_values", {})
    redact.learn({"MY_KEY": "s3cr3t-value"})
    run = written_runs.write(
        tmp_path / "a", command=("model.source=https://me:pw12345@host/x?token=abcdef",),
        results={"generate": {"prompts": ["s3cr3t-value"], "texts": ["s3cr3t-value"]}},
        training=[{"kind": "sample", "step": 1, "prompt": "s3cr3t-value", "text": "s3cr3t-value"}],
        config={"key": "s3cr3t-value", "list": ["s3cr3t-value"]}, inputs=[{"path": "s3cr3t-value", "nbytes": 1}],
    )  # fmt: skip
    text = page.html([run])
    for secret in ("s3cr3t", "pw12345", "abcdef"):
        assert secret not in text
    assert "${oc.env:MY_KEY}" in text


def test_runs_that_did_not_end_or_cannot_be_read(tmp_path: Path) -> None:
    going = written_runs.write(tmp_path / "going", complete=False, training=written_runs.updates(50))
    torn = written_runs.write(tmp_path / "torn")
    (torn.folder / "manifest.json").write_text('{"run": ')
    foreign = written_runs.write(tmp_path / "foreign")
    (foreign.folder / "manifest.json").write_text('{"hello": 1}')
    text = page.html([going])
    assert attention(parsed(text)) == ["The run is interrupted."]
    assert [s.attributes["id"] for s in parsed(text).all("section")] == ["summary", "training", "config", "files"]
    for folder in (torn.folder, foreign.folder):
        assert " of ours" in page.html([read(folder)])
    assert len(parsed(page.html([going, read(torn.folder), read(foreign.folder)])).all("section")) >= 2


def test_jobs_that_failed_or_never_began_are_shown_as_what_they_are(tmp_path: Path) -> None:
    runs = written_runs.sweep(tmp_path / "outputs", jobs=2)
    failed = written_runs.write(tmp_path / "outputs/bad", command=("quant=int3",), complete=False)
    began, why = {"event": "began", "host": "h", "pid": 1, "total": 4}, {"event": "failed", "why": "no room\nat all"}
    (failed.folder / "tries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (began, why)))
    jobs = [("quant=int3", failed.folder, "bad"), ("quant=int5", tmp_path / "outputs/none", "")]
    (tmp_path / "outputs/formats").mkdir()
    keep(tmp_path / "outputs/formats", [*((r.name, r.folder, r.id) for r in runs), *jobs])
    (tmp_path / "outputs/formats/sweep.csv").write_text(
        'job,result\nquant=int8,done\nquant=int5,"failed: no such thing"\n'
    )
    with locked(runs[1].folder / ".lock", ""):
        (runs[1].folder / "manifest.json").unlink()
        root = parsed(page.html(find(tmp_path / "outputs", ["formats"])))
    states = {row[0]: row[1] for row in cells(tables(root)["Runs"])}
    assert [*states.values()] == ["complete", "running", "failed: no room at all", "failed: no such thing"]
    assert gist(root).startswith("3 runs of gpt_oss: 1 complete, 1 running, 1 failed.")
    assert attention(root)[0] == "quant=int5: failed: no such thing."
    (tmp_path / "outputs/formats/sweep.csv").unlink()
    root = parsed(page.html(find(tmp_path / "outputs", ["formats"])))
    assert attention(root)[0] == "quant=int5: did not begin."
    assert [line for line in attention(root) if line.startswith("quant=int3: The run has failed: no room")]


def test_repeats_are_one_setting_with_mean_and_spread(tmp_path: Path) -> None:
    runs = written_runs.sweep(tmp_path)
    for n, run in enumerate(runs):
        (run.folder / "config.yaml").write_text(f"quant: {('mxfp4', 'int8')[n % 2]}\nseed: {n // 2}\n")
    rows = cells(tables(parsed(page.html([read(run.folder) for run in runs])))["Mean over repeats"])
    found = {row[0]: row[1:4] for row in rows}
    assert found["quant=mxfp4"] == ["3", "3", "60.667 ± 0.667"]
    assert found["quant=int8"] == ["3", "3", "61.000 ± 0.667"]
    assert "Mean over repeats" not in tables(parsed(page.html(runs[:2])))


def test_what_a_run_left_is_linked_where_links_hold(tmp_path: Path) -> None:
    run = everything(tmp_path / "outputs/a b")
    (run.folder / "trace.json").write_text("{}")
    (run.folder / "trace.jax/evaluate").mkdir(parents=True)
    (run.folder / "model").mkdir()
    (run.folder / "model/.weightmill.json").write_text("{}")

    def links(where: Path) -> dict[str, str]:
        root = parsed(page.html([run], path=where))
        (table,) = [t for name, t in tables(root).items() if name == "What the run left"]
        return {a.text: a.attributes["href"] for a in table.all("a")}

    here = links(run.folder / "report.html")
    assert here["trace.json"] == "trace.json"
    assert here["trace.jax/"] == "trace.jax/"
    assert here["model/"] == "model/"
    above = links(tmp_path / "outputs/report.html")
    assert above["model/"] == "a%20b/model/"
    assert all((tmp_path / "outputs" / unquote(href)).exists() for href in above.values())
    assert links(tmp_path / "elsewhere/report.html") == {}  # there, paths are named
    text = page.html([run], path=tmp_path / "elsewhere/report.html")
    assert str(run.folder / "trace.json") in re.sub("<wbr>", "", text)


def test_the_gist_and_what_needs_attention(tmp_path: Path) -> None:
    before = {"perplexity": {"value": 60.0, "unit": "", "form": ".3f"}}
    results = {
        "evaluate": {**written_runs.scored(66.0, 0.0123), "before": before},
        "train": {"first": 5.0, "last": 4.0, "step": 20, "best": 3.5, "best_step": 10},
    }
    over = [{"what": "memory", "unit": "bytes", "planned": 1 << 20, "measured": 1 << 21}]
    run = written_runs.write(
        tmp_path / "a", results=results, predicted=over, chosen={"export": "hf, chosen; x rounded"}
    )
    root = parsed(page.html([run]))
    said = gist(root)
    assert said.startswith(
        "gpt_oss was quantized, exported (hf), evaluated and trained. Its weights take 1.0 KiB, 4.000"
    )
    assert "Perplexity 66.000 (60.000 before, +10.00 %), KL 0.0123 nats." in said
    assert "Its held-out loss went from 5.0000 to 4.0000 in 20 updates." in said
    assert "It took 3.2 s; the slowest stage is train (4.5 s, 36 % of all); memory 2.0 MiB at the most." in said
    lines = attention(root)
    assert f"{len(lines)} things need attention" in said
    assert lines[:2] == [
        "memory: 2.0 MiB, 100 % more than the 1.0 MiB that were planned.",
        "Gone since it was written: model.safetensors.",
    ]
    for line in ("export: x rounded.", "train: the held-out loss was least after update 10 of 20."):
        assert line in lines
    assert [line for line in lines if line.startswith("quantize: xla declined (no such block), native ran instead, 3")]


def test_what_an_override_says_is_marked_where_it_resolved(tmp_path: Path) -> None:
    config = {"model": {"source": "/x", "roles": {"a": 1}}, "stages": {"load": {"source": "/x", "carry": ["b"]}}}
    command = ("+model=gpt_oss", "model.source=/x", "stages=[load]")
    root = parsed(page.html([written_runs.write(tmp_path / "a", command=command, config=config)]))
    marked = {row[0]: row[2] for row in cells(tables(root)["Settings"]) if row[2] != "–"}
    assert marked == {"model.source": command[1], "model.roles.a": command[0], "stages.load.source": command[1]}
    (row,) = [row for row in cells(tables(root)["Overridden"]) if row[3] == command[1]]
    assert row[:3] == ["model.source", "/x", "stages.load.source"]


def test_more_runs_than_a_page_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_RUNS", 2)
    root = parsed(page.html(written_runs.sweep(tmp_path, jobs=3)))
    assert root.all("h1")[0].text.startswith("2 runs in ")
    assert root.all("h1")[0].text.endswith(", of 3")
    (note,) = [p.text for p in root.all("p") if "problem" in p.attributes.get("class", "")]
    assert note.startswith("2 of 3 runs are on this page")
    assert "runs export" in note


def test_a_section_whose_records_are_not_as_expected_says_so(tmp_path: Path) -> None:
    """What stages give is theirs: no schema holds it."""
    results = {"histogram": {"tensors": {"a": {"encoding": "x", "bins": {}}}}, "other": {"tables": [{"title": "x"}]}}
    root = parsed(page.html([written_runs.write(tmp_path / "a", results=results)]))
    notes = [p.text for p in root.all("p") if "problem" in p.attributes.get("class", "")]
    assert [note for note in notes if "missing: 'edges'" in note]
    assert [note for note in notes if "missing: 'rows'" in note]
    before = {"perplexity": {"value": "x", "unit": "", "form": "q"}}
    odd = {"evaluate": {**written_runs.scored(60, 0.1), "before": before, "first": "x", "last": 1, "step": "y"}}
    runs = [written_runs.write(tmp_path / n, command=(f"quant={n}",), results=odd) for n in ("b", "c")]
    assert parsed(page.html(runs)).all("section")
    assert parsed(page.html(runs[:1])).all("section")


def test_torn_and_foreign_rows_of_metrics_are_none(tmp_path: Path) -> None:
    run = written_runs.write(tmp_path / "a", complete=False, training=written_runs.updates(40))
    with (run.folder / "metrics.jsonl").open("ab") as file:
        file.write(
            b'[1, 2]\n"text"\n{"kind": "train", "step": "x", "loss": 1}\n\xff\xfe\n{"kind": "train", "step": 41, "lo'
        )
    (run.folder / "metrics.1.jsonl").write_text(
        '{"kind": "train", "step": 1, "loss": "nan"}\n{"kind": "train", "step": 2, "loss": 3}\n'
    )
    root = parsed(page.html([run]))
    loss = next(t for t in root.all("table") if t.all("caption")[0].text == "Loss")
    found = [(r.all("th")[0].text, float(r.all("td")[0].attributes["data-v"])) for r in loss.all("tbody")[0].all("tr")]
    assert max(x for name, x in found if name == "each update") == 40
    assert len([line for line in attention(root) if "metrics.jsonl:" in line]) >= 3
    assert not [x for name, x in found if "process 1" in name]  # one point is no line


def test_a_page_stays_small_whatever_the_runs_are(tmp_path: Path, thorough: bool) -> None:
    """A sweep of many jobs with five hundred tensors each, and a training as long; and it says what it left out."""
    count = 40 if thorough else 24
    kinds = [f"mlp.experts.kind_{n}" for n in range(12)]
    runs = [
        written_runs.write(
            tmp_path / f"job{n}", command=(f"quant=q{n}", f"seed={n}"), tensors=written_runs.layers(40, kinds),
            results={"evaluate": written_runs.scored(60 + n, 0.1 / (n + 1))},
            training=written_runs.updates(3000 if n < 3 else 300), nbytes_out=900 + n,
        )
        for n in range(count)
    ]  # fmt: skip
    nbytes = page.write(runs, tmp_path / "out/page.html")
    assert nbytes == (tmp_path / "out/page.html").stat().st_size < 3_000_000
    root = parsed((tmp_path / "out/page.html").read_text())
    notes = [p.text for p in root.all("p") if "note" in p.attributes.get("class", "")]
    assert any("stand on the pages of single runs only" in note for note in notes)
    table = next(t for t in root.all("table") if t.all("caption")[0].text == "Runs")
    assert len(table.all("tbody")[0].all("tr")) == count
    one = page.html(runs[:1])
    assert len(one.encode()) < 1_500_000
    assert "errors.csv of the run has the other 80" in one
    assert "Each point is the mean of 16 of 3,000" in one


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    run = written_runs.write(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        page.write([run], tmp_path / "file/page.html")


def test_what_the_machine_did_is_no_training_and_has_its_unit(tmp_path: Path) -> None:
    """Of two tries and a member: seconds count from the first, and bytes are read as such."""
    run = written_runs.write(tmp_path / "a")
    started = run.started or 0.0
    for process, who in (("system", {}), ("system.1", {"member": 1})):
        writer = Writer(file_of(run.folder, process), TYPES)
        for s in (-20, 0, 12):
            row = {"rss": (100 + s) << 20, "cpu": 50.0 + s, "disk_free": 7}
            writer.row("system", {"time": started + s, **who, **row})
        writer.close()
    root = parsed(page.html([run]))
    assert "Training" not in [s.all("h2")[0].text for s in root.all("section")]
    (machine,) = [s for s in root.all("section") if s.attributes["id"] == "machine"]
    assert [f.all("h3")[0].text for f in machine.all("figure")] == ["Memory", "Processor, 100 % a core"]  # what changes
    assert cells(tables(machine)["Memory"]) == [
        [who, at, size]
        for who in ("all processes", "member 1")
        for at, size in (("0.0", "80.0 MiB"), ("20.0", "100.0 MiB"), ("32.0", "112.0 MiB"))
    ]
    assert "memory [MiB]" in machine.all("figure")[0].text
    assert not [line for line in attention(root) if "metrics.system" in line]


def test_a_training_that_held_nothing_out_has_no_best_update(tmp_path: Path) -> None:
    result = {"train": {"first": None, "last": None, "best": None, "step": 20, "best_step": 0}}
    run = written_runs.write(tmp_path / "a", results=result)
    assert not [line for line in attention(parsed(page.html([run]))) if "held-out" in line]


def test_what_is_not_finite_has_no_place_and_is_not_the_best(tmp_path: Path) -> None:
    given = (math.nan, math.inf, 61.0, 62.0)
    runs = [
        written_runs.write(
            tmp_path / f"r{n}", command=(f"seed={n}",), results={"evaluate": written_runs.scored(value, 0.1 * n)},
            nbytes_out=1000 + n,
        )
        for n, value in enumerate(given)
    ]  # fmt: skip
    root = parsed(page.html(runs))
    places = [
        v for n in ("path", "line", "circle", "text", "rect") for one in root.all(n) for v in one.attributes.items()
    ]
    wrong = [
        v
        for k, v in places
        if k in ("d", "x", "y", "cx", "cy", "r", "x1", "x2", "y1", "y2") and re.search("nan|inf", v)
    ]
    assert wrong == []
    assert "Best perplexity: seed=2 (61.000)." in root.text
    drawn = plots(runs)["Settings against results"].rows
    assert [str(row["perplexity"]) for row in drawn] == ["nan", "inf", "61.0", "62.0"]
    assert len(cells(tables(root)["perplexity over bits a weight"])) == 2


def test_perplexities_of_different_texts_are_not_ranked(tmp_path: Path) -> None:
    texts = ("a.txt", "b.txt", "c.txt")
    runs = [
        written_runs.write(
            tmp_path / f"r{n}", command=(f"evaluate.texts={text}",), nbytes_out=1000 + n,
            results={"evaluate": {**written_runs.scored(60 - n, 0.1), "texts": {text: {"tokens": 9, "scored": 8}}}},
        )
        for n, text in enumerate(texts)
    ]  # fmt: skip
    root = parsed(page.html(runs))
    assert "Best bits a weight: evaluate.texts=a.txt" in root.text
    assert "No best perplexity and KL is named: texts and tokens scored differ between runs." in root.text
    assert "Best perplexity" not in root.text
    assert root.text.count("best perplexity") == 1  # no card has it
    assert "no other beats evaluate" not in root.text
    assert "perplexity over bits a weight" not in tables(root)


def test_runs_that_are_alike_share_the_best_and_work_taken_over_makes_none_the_quickest(tmp_path: Path) -> None:
    def text(found: Mapping[str, str]) -> str:
        folder = tmp_path / f"{len(found)}"
        given = [(9.0, {}, 1000), (2.0, found, 1000), (5.0, {}, 2000)]
        runs = [
            written_runs.write(folder / f"r{n}", command=(f"seed={n}",), seconds=s, found=f, nbytes_out=b)
            for n, (s, f, b) in enumerate(given)
        ]
        return parsed(page.html(runs)).text

    shared = text({"evaluate": "outputs/.results/0"})
    assert "Best bits a weight: seed=0, seed=1 (" in shared
    assert "best bits a weight" in shared
    assert "best time" not in shared
    assert "best time" in text({})


def test_ticks_are_told_apart_and_facts_have_units(tmp_path: Path) -> None:
    fine = [0.00099, 0.000995, 0.001]
    assert [label(v, fine) for v in fine] == ["0.00099", "0.000995", "0.001"]
    close = [1.0001e-5, 1.0002e-5, 1.0003e-5]
    assert len({label(v, close) for v in close}) == 3
    assert [label(v, [1e-5, 1e-3, 0.1]) for v in (1e-5, 1e-3, 0.1)] == ["1e-5", "0.001", "0.1"]
    assert [label(v, [1e6, 1.25e6]) for v in (1e6, 1.25e6)] == ["1e6", "1.25e6"]
    facts = {"device": "cpu", "device_nbytes": 1 << 20, "load_s": 0.04450219899445074, "threads": 2}
    root = parsed(page.html([written_runs.write(tmp_path / "a", results={"evaluate": {"facts": facts}})]))
    assert [row[1:] for row in cells(tables(root)["Devices and dtypes"])] == [
        ["device", "cpu"], ["device_nbytes", "1.0 MiB"], ["load_s", "0.0445 s"], ["threads", "2"],
    ]  # fmt: skip


def test_a_training_on_its_way_says_how_far_it_is(tmp_path: Path) -> None:
    config = {"stages": {"train": {"trainer": {"steps": 1200}}}}
    for complete in (False, True):
        run = written_runs.write(
            tmp_path / f"{complete}", config=config, training=written_runs.updates(50), complete=complete
        )
        said = [line for line in attention(parsed(page.html([run]))) if "updates" in line]
        assert said == ([] if complete else ["Its training has done 50 of 1,200 updates."])
