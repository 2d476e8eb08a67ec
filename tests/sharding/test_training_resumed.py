"""A training that was stopped on one mesh goes on, on another: the losses are those of one that was never stopped."""

import json
from pathlib import Path

import pytest

import pipeline
from pipeline.errors import StageError
from pipeline.running import text_stream
from pipeline.running.results import FOLDER
from plugins.train.loop import METRICS, _Run
from tests.cases import model_runs

STEPS, STOPPED = 6, 3
TRAINED = (
    "+model=gpt_oss", "stages=[load,train]", "data.length=16", f"train.steps={STEPS}", "train.batch=4",
    "train.save.every=1", "train.save.seconds=null", "train.optimizer.rate=1e-2", "engine.dtype=f32", "progress=false",
)  # fmt: skip
DATA, FSDP = ("mesh=data", "mesh.axes.data=4"), ("mesh=fsdp", "mesh.axes.fsdp=4")


def losses(run: Path) -> list[float]:
    rows = map(json.loads, (run / METRICS).read_text().splitlines())
    return [r["loss"] for r in rows if r["kind"] == "train"]


def test_it_goes_on_on_another_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("The people of the United States have elected a sailor. " * 40)

    def run(name: str, *overrides: str) -> str:
        where = f"paths.run={tmp_path / name}", f"paths.outputs={tmp_path}"
        said: list[str] = []
        with text_stream.to(said.append, lambda line: None):
            pipeline.run([*TRAINED, f"data.files=[{tmp_path}/text.txt]", *where, *overrides])
        return "".join(said)

    real = _Run._row

    def stopped(self: _Run, before: int, figures: dict[str, object]) -> float:
        if before == STOPPED:
            raise StageError("the power went off")
        return real(self, before, figures)

    with model_runs.quick_compilation():
        monkeypatch.setattr(_Run, "_row", stopped)
        with pytest.raises(StageError, match="the power went off"):
            run("data", *DATA)
        monkeypatch.setattr(_Run, "_row", real)
        [left] = (tmp_path / FOLDER).glob("*.unfinished")
        begun_anew = run("short", *FSDP, "train.steps=1")
        said = run("fsdp", *FSDP, f"train.resume={left}")
        run("whole", *DATA)
    assert f"train.resume={left} would begin with its state" in begun_anew
    assert f"begins with the state of {left} after update {STOPPED}" in said
    assert "taken over: parameters, what the optimizer keeps, rows of metrics, the number of updates" in said
    assert "mesh" in said
    assert "on another mesh sums are added up in another order" in said
    assert len(losses(tmp_path / "fsdp")) == STEPS
    assert losses(tmp_path / "fsdp") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
