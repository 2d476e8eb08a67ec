"""The checkpoints that contenders read are made once, and every form of every model is a run that plans."""

import pytest

import pipeline
import pipeline.api as api
from pipeline.tensors.scheme import MXFP4
from plugins.bench import checkpoints


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("forms")


@pytest.fixture(scope="module")
def made(place):
    return checkpoints.made("gpt-oss, embedded", place, place)


def test_forms_are_made_once(made, place):
    assert list(made) == ["bf16", "mxfp4"]
    files = {path: path.stat().st_mtime_ns for form in made.values() for path in form.rglob("*.safetensors")}
    assert len(files) == 2
    assert checkpoints.made("gpt-oss, embedded", place, place) == made
    assert files == {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize("name", checkpoints.MODELS)
@pytest.mark.brief(2)
def test_overrides_compose(name, tmp_path):
    model = checkpoints.MODELS[name]
    for form in model.forms.values():
        with api._composed(checkpoints.overrides(model, form, checkpoints.TINY), None) as (config, _):
            assert list(config.stages) == ["load", "decode", "quantize", "export"]


@pytest.mark.parametrize("name", [n for n, model in checkpoints.MODELS.items() if model.layers])
def test_experts_stay_packed_whatever_the_rest_becomes(name, made):
    model = checkpoints.MODELS[name]
    for form in model.forms.values():
        planned = pipeline.plan(checkpoints.overrides(model, form, made["mxfp4"])).plan
        exported = planned.nodes["quantize"].result.store.specs
        experts = [spec.scheme for tensor, spec in exported.items() if tensor.endswith("experts.down_proj")]
        assert experts
        assert set(experts) == {MXFP4}


def test_what_a_run_says_when_it_fails(tmp_path):
    with pytest.raises(SystemExit, match="Q4_1"):
        checkpoints.made("SmolLM2-135M", tmp_path, tmp_path / "no weights here")
