"""The command line as functions: what they make of their arguments."""

from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import ConfigError, PlanError
from pipeline.running import loading


def test_a_model_option_may_stand_for_its_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "loaded", lambda config, override: config)
    found: Any = pipeline.load_model("gpt_oss")
    assert found.stages["load"].source.endswith("plugins/models/gpt_oss/tiny")
    with pytest.raises(PlanError, match="no such file or folder"):
        pipeline.load_model("gptoss")
    (tmp_path / "gpt_oss").mkdir()
    with pytest.raises(PlanError, match="is no checkpoint that can be read"):
        pipeline.load_model("gpt_oss")


@pytest.mark.parametrize("override", ["quant=[int4,int8]", "evaluate.texts.sub=1", "seed=${nope}", "quant=null"])
def test_mistakes_are_errors_of_ours(override: str) -> None:
    with pytest.raises((ConfigError, PlanError)):
        pipeline.plan(["+model=gpt_oss", override])


def test_a_plan_of_something_else_is_not_shown() -> None:
    found = pipeline.plan(["+model=gpt_oss", "flow=convert", "quant=int4", "quant.narrower=[]", "quant.block_elems=33"])
    assert found.problems
    assert all(str(shown).startswith("error: ") for shown in found.shown)
    small = pipeline.plan(["+model=gpt_oss", "flow=convert", "dask.memory=1MiB"])
    assert small.problems
    assert not all(str(shown).startswith("error: ") for shown in small.shown), "which is what was asked for"
