"""Sweeps: what jobs were compared with has a row, numbers are raw, and the picture says what no other beats."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.figures import Figure
from pipeline.reporting import console
from pipeline.reporting.compare.jobs import UNQUANTIZED, compared, ended
from pipeline.reporting.manifest import Report, plain
from pipeline.reporting.plots import Point, bars, undominated
from tests.unit.test_figures import REPORT

ERROR = {"count": 10, "max_abs": 0.1, "rmse": 0.01, "sq_error": 0.001, "sq_signal": 1.0, "encoding": "e2m1/32/e8m0"}


def job(perplexity: float, nbytes: int, before: float | None = 36.5, **also: Any) -> Report:
    result = {
        "figures": {"perplexity": Figure(perplexity), "KL": Figure(0.01, "nats", ".4f")},
        "before": {"perplexity": Figure(before)} if before else {},
        "texts": {"a.txt": {"scored": 1000}, "b.txt": {"scored": 24}},
    }
    tensors = [ERROR | {"name": "w"}] if before else []
    given = {"command": ["model.source=/models/small/model/model.gguf", "quant=mxfp4"], **also}
    return replace(REPORT, nbytes_out=nbytes, tensors=tensors, results={"evaluate": plain(result)}, **given)


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))


def test_the_unquantized_model_has_a_row(tmp_path: Path) -> None:
    found = compared([("quant=a", job(40.0, 1024)), ("quant=b", job(38.25, 2048))], tmp_path)
    first, *rest = rows(tmp_path)
    assert first["job"] == UNQUANTIZED
    assert (first["bits a weight"], first["size [B]"], first["perplexity"], first["KL [nats]"]) == (
        "16.0", "4096", "36.5", "",
    )  # fmt: skip
    assert [row["perplexity"] for row in rest] == ["40.0", "38.25"]
    assert [row["bits a weight"] for row in found.rows] == [16.0, 4.0, 8.0]
    assert found.rows[0]["KL [nats]"] is None
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    assert repr(found) == f"sweep of 2 jobs: {tmp_path}"
    assert "data:image/png" in found._repr_html_()


def test_a_packed_source_is_called_what_it_is(tmp_path: Path) -> None:
    """By its schemes, at its true bits a weight and bytes, in the table, the file and the picture."""
    packed = {"nbytes": 1152, "values": 2048, "encodings": {"int4/32/f16": 2000, "int8/32/f16": 48}}
    one = job(40.0, 1024)
    report = replace(one, results={"evaluate": {**one.results["evaluate"], "baseline": packed}})
    drawn: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.reporting.plots.tradeoff", lambda *given: drawn.append(given))
        compared([("q=a", report), ("q=b", replace(report, tensors=[], encodings={"int8/row/f32": 9}))], tmp_path)
    name = "as it came: int4/32/f16, int8/32/f16"
    first = rows(tmp_path)[0]
    assert (first["job"], first["bits a weight"], first["size [B]"]) == (name, "4.5", "1152")
    [(*_, points, without)] = drawn
    assert [(p.x, p.kind) for p in points] == [(4.0, "e2m1/32/e8m0"), (4.0, "as it came: int8/row/f32"), (4.5, name)]
    assert without == {UNQUANTIZED, "as it came: int8/row/f32", name}


def test_a_job_that_quantizes_nothing_is_that_row(tmp_path: Path) -> None:
    compared([("quant=a", job(40.0, 1024)), ("quant=none", job(36.5, 4096, before=None))], tmp_path)
    assert [row["job"] for row in rows(tmp_path)] == ["quant=a", "quant=none"]


def test_models_have_a_row_each(tmp_path: Path) -> None:
    compared([("m=1", job(40.0, 1024)), ("m=2", job(30.0, 1024, before=20.5))], tmp_path)
    assert [row["job"] for row in rows(tmp_path)][:2] == [f"{UNQUANTIZED}, of m=1", f"{UNQUANTIZED}, of m=2"]


def test_the_table_fits_80_columns_and_units_stand_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = compared([(f"quant={n}", job(40.0, 1024)) for n in "abc"], tmp_path)
    console.out(*found.tables)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("[nats]" in line for line in lines)
    assert not any("0.0100 nats" in line for line in lines)


def test_a_job_that_failed_is_seen_in_80_columns(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = compared([("quant=a", job(40.0, 1024)), ("quant=b", ValueError("no such device " * 9))], tmp_path)
    console.out(*found.tables)
    lines = capsys.readouterr().out.splitlines()
    assert any("quant=b" in line and "failed" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert rows(tmp_path)[-1]["result"].startswith("failed: no such device")


def test_a_job_ends_with_a_line() -> None:
    said = ended("2/4", "quant=a", replace(job(40.0, 1024), run="/runs/a b"))
    assert said.startswith("[2/4] quant=a: 4.000 bits a weight, 1.0 KiB, perplexity 40.000, KL 0.0100 nats, ")
    assert said.endswith(", took 1.2 s: /runs/a b")


def test_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("pipeline.reporting.plots.tradeoff", lambda *given: drawn.append(given))
    compared([("q=a seed=0", job(40.0, 1024)), ("q=a seed=1", job(42.0, 1024)), ("q=b", job(38.0, 2048))], tmp_path)
    [(_, about, _, _, points, without)] = drawn
    assert about == "small · a.txt, b.txt · 1,024 tokens scored"
    assert [(p.name, p.x, list(p.values), p.kind) for p in points] == [
        ("q=a", 4.0, [40.0, 42.0], "e2m1/32/e8m0"),
        ("q=b", 8.0, [38.0], "e2m1/32/e8m0"),
        (UNQUANTIZED, 16.0, [36.5], UNQUANTIZED),
    ]
    assert without == {UNQUANTIZED}


def test_pareto() -> None:
    points = [Point(n, x, [y], "k") for n, x, y in [("a", 4, 9), ("b", 5, 9.5), ("c", 8, 3), ("d", 8, 2), ("e", 16, 2)]]
    assert [p.name for p in undominated(points)] == ["a", "d"]


def test_bars_mark_what_is_worst(tmp_path: Path) -> None:
    from matplotlib.image import imread

    bars(tmp_path / "a.png", "t", "about", "x", {f"model.layers.{i}": i + 1.0 for i in range(4)}, ["model.layers.2"])
    image = (imread(tmp_path / "a.png")[..., :3] * 255).round().astype(int)
    assert (image == (0xD5, 0x5E, 0x00)).all(-1).any()
