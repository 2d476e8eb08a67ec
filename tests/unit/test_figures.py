"""Figures are numbers with units: shown as text in one place, and never read from it."""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.figures import Figure, cell, figures_of
from pipeline.reporting import console, writing
from pipeline.reporting.compare import jobs
from pipeline.reporting.manifest import Report, plain
from pipeline.running.results import keepable, packed, unpacked
from pipeline.stage import Table

REPORT = Report(
    run="run", command=[], started=0.0, seconds=1.25, inputs=[], outputs=[], stages=[], errors=[], tensors=[],
    nbytes_bf16=4096, nbytes_in=0, nbytes_out=1024, chunks={"all": 0, "reused": 0}, backends=[], versions={},
)  # fmt: skip


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (Figure(70.8601), "70.860"),
        (Figure(0.00691, "nats", ".4f"), "0.0069 nats"),
        (Figure(93.357, "%", ".2f"), "93.36 %"),
        (Figure(-0.001, "%", "+z.2f"), "+0.00 %"),
        (Figure(1536, "B"), "1.5 KiB"),
        (Figure(1.979, "×", ".2f"), "1.98×"),
        (Figure(8160, form=",d"), "8,160"),
        (Figure(float("inf"), "dB", ".2f"), "inf dB"),
    ],
)
def test_a_figure_is_shown_with_its_unit_and_survives_a_manifest(figure: Figure, shown: str) -> None:
    assert str(figure) == shown
    back = cell(json.loads(json.dumps(plain(figure))))
    assert back == figure
    assert str(back) == shown


def test_what_is_no_figure() -> None:
    assert cell("model.layers.3") == "model.layers.3"
    assert cell("12.5") == "12.5"  # text stays text
    assert cell(12.5) == Figure(12.5, form="")
    assert cell(True) == "True"
    with pytest.raises(ValueError, match="format"):
        Figure(1.5, form=",d")


def evaluated(perplexity: float) -> Any:
    figures = {"perplexity": Figure(perplexity), "top-1": Figure(93.25, "%", ".1f"), "worst": "model.layers.0"}
    return plain({"figures": figures})


def test_jobs_are_compared_as_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is drawn and kept has every digit; only the console rounds."""
    drawn: list[Any] = []
    monkeypatch.setattr("pipeline.reporting.plots.tradeoff", lambda *given: drawn.append(given[4]))
    one, other = (replace(REPORT, results={"evaluate": evaluated(p)}) for p in (70.123456789, 71.5))
    found = jobs.compared([("a", one), ("b", other), ("c", ValueError("no such device"))], tmp_path)
    head, *rows = csv.reader((tmp_path / "sweep.csv").read_text().splitlines())
    table = [dict(zip(head, row, strict=True)) for row in rows]
    assert [float(row["perplexity"]) for row in table[:2]] == [70.123456789, 71.5]
    assert (table[0]["top-1 [%]"], table[0]["size [B]"], table[0]["took [s]"]) == ("93.25", "1024", "1.25")
    assert table[0]["worst"] == "model.layers.0"
    assert table[2]["result"] == "failed: no such device"
    assert table[2]["perplexity"] == ""
    [points] = drawn
    assert [(label, y) for label, y in ((p.name, p.y) for p in points)] == [("a", 70.123456789), ("b", 71.5)]
    console.out(*found.tables)
    said = capsys.readouterr().out
    assert "70.123 " in said
    assert "top-1 [%]" in said
    assert "93.2 " in said
    assert "1.0 KiB" in said


def test_metrics_have_a_line_for_every_figure(tmp_path: Path) -> None:
    report = replace(REPORT, results={"evaluate": evaluated(70.5), "other": {"figures": "none"}, "list": [1]})
    writing.write_records(tmp_path, report)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["kind"] == "figure"]
    said = {"kind": "figure", "stage": "evaluate", "better": "", "time": REPORT.started + REPORT.seconds}
    assert found == [
        said | {"name": "perplexity", "value": 70.5, "unit": ""},
        said | {"name": "top-1", "value": 93.25, "unit": "%"},
        said | {"name": "worst", "value": "model.layers.0", "unit": ""},
    ]
    assert figures_of(report.results["other"]) == {}
    assert asdict(Figure(1.0)).keys() == {"value", "unit", "form", "better"}


def test_tables_of_a_kept_result_come_back() -> None:
    """A whole number stays one: its form may be for whole numbers only."""
    table = Table("t", ("a", "b"), ((Figure(8160, form=",d"), "text"), (Figure(0.5, "%"), "")))
    assert keepable(table, Table)
    assert unpacked(json.loads(json.dumps(packed(table))), Table).rows[0][0].value == 8160
