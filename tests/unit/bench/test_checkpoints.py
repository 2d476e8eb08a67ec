"""The checkpoints that contenders read are made once, and every form of every model is a run that plans."""

import pytest

import pipeline.api as api
from plugins.bench import checkpoints


def test_forms_are_made_once(tmp_path):
    made = checkpoints.made("gpt-oss, embedded", tmp_path, tmp_path)
    assert list(made) == ["bf16", "mxfp4"]
    files = {path: path.stat().st_mtime_ns for form in made.values() for path in form.rglob("*.safetensors")}
    assert len(files) == 2
    assert checkpoints.made("gpt-oss, embedded", tmp_path, tmp_path) == made
    assert files == {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize("name", checkpoints.MODELS)
def test_overrides_compose(name, tmp_path):
    model = checkpoints.MODELS[name]
    for form in model.forms.values():
        with api._composed(checkpoints.overrides(model, form, checkpoints.TINY), None) as (config, _):
            assert list(config.stages) == ["load", "decode", "quantize", "export"]


def test_what_a_run_says_when_it_fails(tmp_path):
    with pytest.raises(SystemExit, match="Q4_1"):
        checkpoints.made("SmolLM2-135M", tmp_path, tmp_path / "no weights here")
