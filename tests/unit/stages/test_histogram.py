"""Histograms: every value is counted before and after, and the picture is drawn of those that were named."""

import re
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.errors import WeightmillError
from pipeline.reporting import plots
from pipeline.reporting.manifest import Report

ROOT = Path(pipeline.__file__).parents[1]
ONE = "model.layers.2.mlp.experts.down_proj"


def run(folder: Path, tensors: str) -> Report:
    return pipeline.run(
        ["+model=gpt_oss", "quant=mxfp4", "flow=histogram", f"histogram.tensors={tensors}", f"paths.outputs={folder}"]
    )


def test_every_value_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[plots.Spread] = []
    monkeypatch.setattr("stages.histogram.distributions", lambda path, title, given: drawn.extend(given))
    monkeypatch.setattr("stages.histogram.STEP_NBYTES", 4 * 160 * 224 * 3)  # three experts at a time
    report = run(tmp_path, f'["{ONE}","model.norm.weight"]')
    found = report.results["histogram"]["tensors"]
    assert list(found) == [ONE, "model.norm.weight"]
    for spread, row in zip(drawn, found.values(), strict=True):
        for counts in (spread.before, spread.after, spread.error):
            assert counts.sum() == row["values"]
        assert (spread.encoding, spread.name) == (row["encoding"], spread.name)
        bins = row["bins"]
        assert (bins["before"], bins["after"], bins["error"]) == tuple(
            [int(n) for n in counts] for counts in (spread.before, spread.after, spread.error)
        )
        assert (bins["edges"], bins["near"]) == tuple([float(e[0]), float(e[-1])] for e in (spread.edges, spread.near))
    packed, kept = found.values()
    assert sum(packed["bins"]["codes"].values()) == packed["values"]
    assert {int(code) for code in packed["bins"]["codes"]} <= {*range(16)}
    assert sum(packed["bins"]["scales"].values()) == packed["values"] // 32
    assert max(map(int, packed["bins"]["scales"])) <= 0
    assert "codes" not in kept["bins"]
    assert packed["sqnr_db"] == pytest.approx(18.8, abs=0.2)
    assert packed["largest_after"] in (0.25, 0.375, 0.5, 0.75)
    assert kept["largest_before"] == kept["largest_after"]
    assert np.count_nonzero(drawn[0].after) < np.count_nonzero(drawn[0].before)


@pytest.mark.parametrize("where", ["README.md", "conf/flow/histogram.yaml"])
@pytest.mark.brief("README.md")
def test_the_documented_pattern(where: str, tmp_path: Path) -> None:
    """Of what it matches, what was quantized; of what was not, where nothing was."""
    said = re.search(r"'histogram\.tensors=(\[.*?\])'", (ROOT / where).read_text())
    assert said is not None
    found = run(tmp_path, said[1]).results["histogram"]["tensors"]
    assert found
    assert {row["encoding"] for row in found.values()} == {"e2m1/32/e8m0"}
    plain = run(tmp_path, '["model.layers.0.*norm*"]').results["histogram"]["tensors"]
    assert {row["encoding"] for row in plain.values()} == {"BF16"}


def test_the_picture_is_in_the_folder(tmp_path: Path) -> None:
    report = run(tmp_path, f'["{ONE}"]')
    assert (Path(report.run) / "histogram.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ('["model.layers.2.mlp.experts.down_prj"]', f"did you mean '{ONE}'"),
        ('["*norm*","*self_attn*"]', "8 at most can be seen in a picture, as of 'model.layers.0.input_layernorm.*'"),
    ],
)
def test_names(tmp_path: Path, tensors: str, said: str) -> None:
    with pytest.raises(WeightmillError, match=r"histogram\.tensors") as caught:
        run(tmp_path, tensors)
    assert said in str(caught.value)
    assert not list(tmp_path.glob("*/manifest.json"))
