"""`flow=bench_scale`: what grows too fast is red, what was measured is not measured again, what stops it is said."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pipeline
from pipeline.bench import against, process, turns
from pipeline.bench.growing import age_s
from pipeline.bench.growth_picture import NAME
from pipeline.bench.growth_tables import tables
from pipeline.bench.growths import GROWTH
from pipeline.errors import WeightmillError
from pipeline.records import schemas
from stages.bench_scale_work import SIZES
from tests.cases.fake_scales import MODULE, written
from tests.cases.guests import guest


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = written(tmp_path_factory.mktemp("guest"))
    with guest(folder, {"plugins.scales.fake": MODULE}):
        yield folder


def scale(fakes: Path, outputs: Path, *overrides: str) -> Any:
    typed = ["flow=bench_scale", "bench.rounds=1", "bench.threads=1", f"paths.outputs={outputs}"]
    return pipeline.run([*typed, *overrides], config_dir=fakes, progress=False)


def record(report: Any) -> dict[str, Any]:
    return schemas.read("benchmark", Path(report.run) / against.NAME)


def growth(report: Any, name: str) -> dict[str, Any]:
    [row] = [r for r in record(report)["rows"] if (r["engine"], r["quant"]) == (name, GROWTH)]
    return dict(row)


@pytest.fixture(scope="module")
def first(fakes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    outputs = tmp_path_factory.mktemp("scale") / "outputs"
    return outputs, scale(fakes, outputs, "scales=[linear,pairs]")


def test_what_looks_at_all_pairs_is_red(first: tuple[Path, Any]) -> None:
    report = first[1]
    assert report.exit_code == 0
    linear, pairs = (growth(report, name) for name in ("linear", "pairs"))
    assert linear["fits"]["cost"]["exponent"] == pytest.approx(1, abs=0.2)
    assert not linear["wrong"]
    assert pairs["fits"]["cost"]["exponent"] == pytest.approx(2, abs=0.3)
    assert pairs["wrong"].startswith("cost: grows as size^")
    assert pairs["wrong"].endswith("^1 is expected")
    result = report.results["bench_scale"]
    assert result["summary"].endswith("✗ wrong: pairs growth")
    [table] = [t for t in result["tables"] if t["title"].startswith("Growth")]
    assert [row[0] for row in table["rows"]] == ["linear", "✗ pairs"]
    assert {"exponent, linear cost", "exponent, pairs cost"} <= result["figures"].keys()


def test_every_size_is_a_row_and_gone_from_the_disk(first: tuple[Path, Any]) -> None:
    report = first[1]
    sizes = [r for r in record(report)["rows"] if r["engine"] == "linear" and r["quant"] != GROWTH]
    assert [r["size"] for r in sizes] == [200, 400, 800, 1600]
    assert [r["quant"] for r in sizes][3] == "1,600"
    for row in sizes:
        assert row["metrics"]["seconds"]["value"] > row["metrics"]["cost"]["value"]
        assert row["metrics"]["peak"]["value"] > 10 << 20
    assert not (Path(report.run) / SIZES).exists()
    assert (Path(report.run) / NAME).read_bytes().startswith(b"\x89PNG")


def test_an_exponent_that_grew_is_worse(first: tuple[Path, Any], fakes: Path) -> None:
    outputs, before = first
    report = scale(
        fakes, outputs, "scales=[linear]", "scales.linear.pairs=true", f"bench.against='{Path(before.run).name}'"
    )
    assert report.exit_code == against.CODE
    said = record(report)["regressions"]
    assert any(text.startswith("linear growth: cost × for ten times the things") for text in said), said
    assert any(text.startswith("linear growth: was right, and is wrong now: cost: grows") for text in said), said


@pytest.mark.repeats
def test_what_was_measured_is_not_measured_again(fakes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while a size lies on the disk, which is gone when the next one is done."""
    real = process.done
    called: list[str] = []

    def until_killed(job: Any, threads: int, log: Path) -> Any:
        if len(called) == 5:
            left = SimpleNamespace(rmtree=lambda *_, **__: None, disk_usage=shutil.disk_usage)
            monkeypatch.setattr("stages.bench_scale_work.shutil", left)  # what lies there stays, as kill -9 leaves it
            raise RuntimeError("killed")
        called.append(log.stem)
        return real(job, threads, log)

    monkeypatch.setattr(turns, "done", until_killed)
    with pytest.raises(WeightmillError, match="killed"):
        scale(fakes, tmp_path / "outputs", "scales=[linear]")
    [notes] = (tmp_path / "outputs").rglob(turns.NOTES)
    assert [p.name for p in (notes.parent / SIZES).iterdir()] == ["linear-800"]
    notes.write_text(notes.read_text() + '{"key": "torn')
    assert called == [f"{p}linear-{n}" for n in ("200", "400") for p in ("preparing-", "")] + ["preparing-linear-800"]
    called.clear()
    monkeypatch.undo()

    def counted(job: Any, threads: int, log: Path) -> Any:
        called.append(log.stem)
        return real(job, threads, log)

    monkeypatch.setattr(turns, "done", counted)
    report = scale(fakes, tmp_path / "outputs", "scales=[linear]")
    assert called == [f"{p}linear-{n}" for n in ("800", "1,600") for p in ("preparing-", "")]
    assert Path(report.run) == notes.parent
    assert not (notes.parent / SIZES).exists()
    assert growth(report, "linear")["fits"]["cost"]["exponent"] == pytest.approx(1, abs=0.2)


def test_what_stops_it_is_said(fakes: Path, tmp_path: Path) -> None:
    """One fails at its last size, one takes more disk than there is, one more time than is allowed."""
    report = scale(
        fakes, tmp_path / "outputs", "scales=[dies,large,more,linear]", "bench.seconds=1.5", "scales.dies.dies=200",
        "scales.linear.slow_s=1",
    )  # fmt: skip
    found = {(r["engine"], r["quant"]): r for r in record(report)["rows"]}
    assert report.exit_code == 6
    assert found["dies", "200"]["state"] == "failed"
    assert found["dies", "200"]["why"] == "MemoryError: no more"
    assert found["dies", "400"]["why"] == "200 failed"
    assert found["large", "200"]["state"] == "left out"
    assert "of the disk, of which" in found["large", "200"]["why"]
    assert "['cost', 'heat'] was found, and ['cost']" in found["more", "200"]["why"]
    assert found["linear", "200"]["state"] == "measured"
    assert "bench.seconds=1.5 are allowed" in found["linear", "400"]["why"]
    assert found["linear", GROWTH]["state"] == "left out"
    assert found["linear", GROWTH]["why"] == "1 sizes were measured; 4 are needed"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("scales=[]", "scales=[]: at least one is needed"),
        ("scales.convert.sizes=[1MB,2MB,4MB]", "sizes=[1MB,2MB,4MB]: 4 or more are needed to fit"),
        ("scales.convert.sizes=[1MB,4MB,2MB,8MB]", "above the one before, and 2MB is not"),
        ("scales.convert.sizes=[1,2,3,4]", "write the unit"),
        ("scales.convert.shard=huge", "shard='huge' is not a size"),
        ("scales.convert.overrides=['model.source=x']", "the benchmark sets model.source itself"),
        ("scales.plan.sizes=[0,10,100,1000]", "above 0 and above the one before, and 0 is not"),
        ("+scales.plan.expected.secons=1", "scales.plan.expected.secons: is not measured; did you mean 'seconds'?"),
        ("scales.plan.expected.peak=-1", "scales.plan.expected.peak=-1.0: 0 or more is allowed"),
        ("scales.batch.heads=3", "heads=3: hidden=512"),
        ("scales.batch.over=widths", "over"),
        ("scales.layers.repeats=0", "repeats=0: 1 or more"),
        ("+scales.prompt.engine.export=gguf", "engine: it reads gguf"),
        ("bench.seconds=0", "bench.seconds=0.0: more than 0 is allowed, 86,400 at most, or null"),
        ("bench.exponent=-1", "bench.exponent=-1.0: 0 or more"),
        ("bench.rounds=0", "bench.rounds=0: 1 or more"),
        ("bench.tolerance=lots", "bench.tolerance=lots: a percentage"),
    ],
)
def test_options_that_are_wrong(tmp_path: Path, typed: str, said: str) -> None:
    with pytest.raises(WeightmillError) as why:
        pipeline.plan(["flow=bench_scale", f"paths.outputs={tmp_path}", typed])
    assert said in str(why.value)


def test_the_age_of_a_process_is_counted_from_its_beginning() -> None:
    import psutil  # type: ignore[import-untyped]

    began = psutil.Process().create_time()  # which counts from the start of the system, known to a second
    assert age_s() == pytest.approx(time.time() - began, abs=2)


def test_what_only_has_a_start_is_said_so() -> None:
    """Of a fit that says nothing."""
    fit = {"exponent": 3.1, "error": 8.9, "end": 0.0, "end_error": None, "expected": 1.0, "start": 0.7, "factor": 1e-30,
           "unit": "s", "size": 1000, "wrong": ""}  # fmt: skip
    row = {"engine": "it", "quant": GROWTH, "state": "measured", "label": "things", "fits": {"cost": fit}}
    [table] = tables([row], ["it got worse"], "yesterday")[:1]
    assert table.rows == (("it", "cost", "not seen to grow", "–", "^1", "700 ms", ""),)
    linear = fit | {"exponent": 1.02, "error": 0.02, "end": 1.1, "end_error": 0.1, "factor": 2e-9, "size": 10**9}
    [table] = tables([row | {"label": "GB", "fits": {"seconds": linear}}], (), None)
    assert table.rows == (("it", "seconds", "size^1.02 ± 0.02", "^1.10 ± 0.10", "^1", "700 ms", "3.09 s a GB"),)


def test_notes_say_what_was_found(first: tuple[Path, Any]) -> None:
    lines = map(json.loads, (Path(first[1].run) / turns.NOTES).read_text().splitlines())
    found = [n["found"].keys() for n in lines if not n["what"].startswith("preparing")]
    assert len(found) == 8
    assert all(keys == {"cost", "seconds", "cpu", "peak"} for keys in found)
