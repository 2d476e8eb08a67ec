"""The plots of a page are functions too: what a notebook draws, and rows of numbers for pandas."""

from pathlib import Path

import pytest

import pipeline
from pipeline.errors import ConfigError
from tests.cases import written_runs
from tests.unit.reporting.html.reading import parsed


def test_plots_of_a_sweep(tmp_path: Path) -> None:
    found = pipeline.report.plots(written_runs.sweep(tmp_path))
    plot = found["Perplexity over bits a weight"]
    assert plot.rows[0] == {
        "run": "quant=mxfp4 seed=0", "as": "e2m1/32/e8m0", "bits a weight": 4.0, "perplexity": 60.0,
        "front": "no other beats it",
    }  # fmt: skip
    assert repr(plot) == "plot: Perplexity over bits a weight: 6 rows of numbers"
    (frame,) = parsed(plot._repr_html_()).all("iframe")
    inside = parsed(frame.attributes["srcdoc"])
    assert len(inside.all("figure")) == 1
    assert frame.attributes["sandbox"] == "allow-scripts"
    drawn = [
        float(svg.attributes["viewbox"].split()[-1]) for svg in inside.all("svg") if "aria-label" in svg.attributes
    ]
    assert max(drawn) + 100 < int(frame.attributes["height"]) < max(drawn) + 300  # it is seen whole
    assert "max-width:860px" in frame.attributes["style"]
    assert "Settings against results" in found


def test_plots_and_page_of_one(tmp_path: Path) -> None:
    run = written_runs.write(tmp_path / "a", tensors=written_runs.layers(3))
    assert [*pipeline.report.plots(run)] == [
        "Graph of stages",
        "Plan and fact",
        "Quantization error over layers",
        "Lost of outputs",
    ]
    place = pipeline.report.html(run, tmp_path / "page.html")
    assert place.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("given", [[], ["a"], 3])
def test_no_runs(given: object) -> None:
    with pytest.raises((ConfigError, TypeError)):
        pipeline.report.plots(given)  # type: ignore[arg-type]
