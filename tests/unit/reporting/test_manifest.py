"""Reports: what a run made is named, and what was quantized otherwise has a row of its own."""

from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.reporting import console
from pipeline.reporting.manifest import Report
from pipeline.reporting.tables import _tables_of, tables


def test_layers_of_another_scheme_have_a_row_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    rule = "model.rules=[{match: 'model.layers.0.*experts*proj', to: int8}, {match: '*experts*proj', to: quant}]"
    report = pipeline.run(
        ["+model=gpt_oss", "quant=mxfp4", "flow=convert", rule, f"export.path={tmp_path / 'out'}",
         f"paths.outputs={tmp_path}"]
    )  # fmt: skip
    rows = [(r["name"], r["encoding"], r["tensors"]) for r in report.errors if r["name"].endswith("down_proj")]
    down = "model.layers.*.mlp.experts.down_proj"
    assert rows == [(down, "int8/row/f32", 1), (down, "e2m1/32/e8m0", 3)]
    assert sum(r["tensors"] for r in report.errors) == len(report.tensors)
    monkeypatch.setenv("COLUMNS", "80")
    console.out(*tables(report))
    said = capsys.readouterr().out
    assert "e2m1/32/e8m0 │ ×3" in said
    assert "int8/row/f32" in said
    assert report.places == [tmp_path / "out", Path(report.run)]
    assert pipeline.report.load(report.run).places == report.places
    assert Report.from_json({**vars_of(report), "exports": {}}).places == [Path(report.run)]


def vars_of(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in Report.__dataclass_fields__}


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["0.06", "55.58 ± 5%", "21*", "90.6 MiB", "–"], True), (["1,120", "2%", "1e-05"], True),
        (["right", "1"], False), (["–", ""], False), (["int8", "int4"], False), (["4.9 MiB (cpu)"], False),
    ],
)  # fmt: skip
def test_columns_of_a_stages_table_that_read_as_numbers_are_flush_right(cells: list[str], numbers: bool) -> None:
    [grid] = _tables_of({"tables": [{"title": "T", "columns": ["case", "x"], "rows": [["a", c] for c in cells]}]})
    assert grid.right == ({1} if numbers else set())
