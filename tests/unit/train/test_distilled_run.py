"""A run in which what is quantized learns of itself as it was."""

import json
from pathlib import Path

import pytest

from pipeline.api import compose_run
from pipeline.events import Events
from pipeline.running.runner import execute
from tests.cases import two_layers
from tests.cases.model_runs import quick_compilation
from tests.cli.run import ROOT

MOBY = ROOT / "plugins/texts/moby_eval.txt"


def test_rounding_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(MOBY.read_text(encoding="utf-8")[:24_000], encoding="utf-8")
    given = ["+model=gpt_oss", f"model.source={two_layers.folder()}", "stages=[load,train,quantize,export]"]
    given += ["quant=mxfp4", "train=qat"]
    given += ["train.steps=6", "train.batch=4", "train.save.every=2", "train.save.seconds=null"]
    given += ["data.files=[text.txt]", "data.separator=", "data.length=64", "data.held_out=0.2"]
    given += [f"paths.outputs={tmp_path / 'out'}", f"paths.run={tmp_path / 'run'}"]
    with quick_compilation():
        report = execute(compose_run(given), tmp_path / "run", [], Events())
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    first, last = (row for row in lines if row["kind"] == "held_out")
    assert 0 < last["divergence"] < first["divergence"] < 1  # in nats, at first of rounding alone
    assert first["agreement"] > 0.7
    rows = {row["what"]: row for row in report.predicted}
    assert rows["device"]["planned"] == pytest.approx(rows["device"]["measured"], abs=64)  # two models
    disk = rows["disk"]  # two states, which Orbax compresses: many moments are 0 still
    assert 0.65 * disk["planned"] < disk["measured"] <= disk["planned"]
