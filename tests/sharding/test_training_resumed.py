"""A training that was stopped on one mesh goes on, on another: the losses are those of one that was never stopped."""

import json
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import StageError
from pipeline.records.points import METRICS
from pipeline.running import text_stream
from pipeline.running.results import FOLDER
from plugins.train.loop import _Run
from tests.cases import model_runs, toy_table

STEPS, STOPPED = 6, 3
DATA, FSDP = ("mesh=data", "mesh.axes.data=4"), ("mesh=fsdp", "mesh.axes.fsdp=4", "mesh.replicated_most=1.0")


def losses(run: Path) -> list[float]:
    rows = map(json.loads, (run / METRICS).read_text().splitlines())
    return [r["loss"] for r in rows if r["kind"] == "train"]


def test_it_goes_on_on_another_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it has taken over, and one that begins anew that it could have."""
    data = toy_table.write(tmp_path / "table.csv")
    often = f"train.steps={STEPS}", "train.save.every=1", "train.save.seconds=null", f"data.files=[{data}]"

    def run(name: str, *overrides: str) -> str:
        said: list[str] = []
        monkeypatch.setattr(text_stream, "write", said.append)
        where = f"paths.run={tmp_path / name}", f"paths.outputs={tmp_path}"
        pipeline.run([*toy_table.TRAINED, *often, *where, *overrides])
        return "".join(said)

    real = _Run._row

    def stopped(self: _Run, before: int, figures: dict[str, Any]) -> float:
        if before == STOPPED:
            raise StageError("the power went off")
        return real(self, before, figures)

    with model_runs.quick_compilation():
        monkeypatch.setattr(_Run, "_row", stopped)
        with pytest.raises(StageError, match="the power went off"):
            run("data", *DATA)
        monkeypatch.setattr(_Run, "_row", real)
        [left] = (tmp_path / FOLDER).glob("*.unfinished")
        anew = run("anew", *FSDP)
        said = run("fsdp", *FSDP, f"train.resume={left}")
    assert f"train.resume={left} would begin with its state" in anew
    assert f"begins with the state of {left} after update {STOPPED}" in said
    assert "taken over: parameters, what the optimizer keeps, rows of metrics, the number of updates" in said
    assert "mesh" in said
    assert "on another mesh sums are added up in another order" in said
    assert len(losses(tmp_path / "fsdp")) == STEPS
    assert losses(tmp_path / "fsdp") == pytest.approx(losses(tmp_path / "anew"), rel=1e-5)
