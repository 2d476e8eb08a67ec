"""In a notebook: plans, sweeps and reports are short cards and HTML with rows for pandas, errors have no frames."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import pipeline
from pipeline.errors import ConfigError, PlanError, Problem, SourceError
from pipeline.reporting.manifest import plain
from tests.unit.test_figures import REPORT, evaluated

MODEL = "+model=gpt_oss"


def at(folder: Path) -> list[str]:
    return [MODEL, "flow=convert", f"paths.outputs={folder}", "export=plain"]


def test_a_plan_is_a_card(tmp_path: Path) -> None:
    found = pipeline.plan([*at(tmp_path), "quant=mxfp4", "dask.workers=1"])
    assert repr(found).startswith("plan: 4 stages, writes ")
    assert "\n" not in repr(found)
    assert found.problems == ()
    assert [row["stage"] for row in found.stages] == ["load", "decode", "quantize", "export"]
    html = found._repr_html_()
    assert "model.layers.*.mlp.experts.gate_up_proj" in html
    assert list(tmp_path.iterdir()) == []


def test_a_plan_has_its_problems_and_raises_none_of_them(tmp_path: Path) -> None:
    found = pipeline.plan([*at(tmp_path), "quant=int8", "export=gguf"])
    assert "1 problem" in repr(found)
    assert "cannot hold this" in found._repr_html_()


def test_runs_reports_and_sweeps(tmp_path: Path) -> None:
    report = pipeline.run([*at(tmp_path), "quant=mxfp4"])
    assert pipeline.report.load(report.run) == report
    assert repr(report).startswith("report: ")
    assert repr(report).endswith(f": {report.run}")
    assert "<td" in report._repr_html_()
    found = pipeline.sweep([*at(tmp_path), "quant=mxfp4,int8"])
    assert [row["job"] for row in found.rows] == ["quant=mxfp4", "quant=int8"]
    assert found.rows[0]["size [B]"] == report.nbytes_out
    assert (found.folder / "sweep.csv").exists()
    assert [type(r).__name__ for _, r in found.reports] == ["Report", "Report"]


def test_a_sweep_gives_what_ended_its_jobs(tmp_path: Path) -> None:
    found = pipeline.sweep([MODEL, "flow=convert", f"paths.outputs={tmp_path}", "quant=int8,q8_0", "export=gguf"])
    assert "1 of them failed" in repr(found)
    assert isinstance(found.reports[0][1], PlanError)
    with pytest.raises(ConfigError, match="a list of them is expected"):
        pipeline.sweep("quant=int8,q8_0")


def test_figures_are_rows() -> None:
    report = replace(REPORT, results={"evaluate": plain(evaluated(70.5))})
    assert report.figures[0] == {"stage": "evaluate", "name": "perplexity", "value": 70.5, "unit": "", "better": ""}
    assert "perplexity 70.500" in repr(report)


def test_where_no_run_ended(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/manifest.json").write_text("{")
    with pytest.raises(SourceError, match=r"has no manifest\.json; runs in it: here"):
        pipeline.report.load(tmp_path)
    with pytest.raises(SourceError, match="is no manifest of ours, or not whole"):
        pipeline.report.load(tmp_path / "here")


def test_errors_are_a_paragraph_without_frames() -> None:
    """IPython asks an exception for this instead of its traceback."""
    assert ConfigError("no such thing")._render_traceback_() == ["error: no such thing"]
    said = PlanError([Problem("a", "no"), Problem("b", "neither")])._render_traceback_()
    assert said == ["error: 2 problems", "  - a: no", "  - b: neither"]


def test_texts_are_taken_as_they_are(tmp_path: Path) -> None:
    """Commas and quotes of a prompt are no list, in a sweep neither."""
    text = "It's one, two"
    found = pipeline.sweep([MODEL, f"paths.outputs={tmp_path}", "stages=[load]", f"prompt={text}", "seed=1,2"])
    for _, report in found.reports:
        assert yaml.safe_load((Path(report.run) / "config.yaml").read_text())["prompt"] == text


def test_a_model_that_is_loaded_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("pipeline.reporting.progress._Lines.show", lambda self, text: said.append(text))
    monkeypatch.setattr("pipeline.running.progress.EVERY_S", -1)
    folder = Path(pipeline.__file__).parents[1] / "plugins/models/gpt_oss/tiny"
    pipeline.load_model(folder, progress=False)
    assert said == []
    pipeline.load_model(folder, progress=True)
    assert any(line.startswith("loading weights: ") for line in said)
