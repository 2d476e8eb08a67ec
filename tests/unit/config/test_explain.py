"""Which of several overrides is explained, and what is said of it."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from pipeline.api import compose_run
from pipeline.config import explain as explaining
from pipeline.config.explain import explain, mistakes
from pipeline.config.options import CONF
from pipeline.config.resolvers import register
from pipeline.errors import PlanError

KEPT = ["model.rules=[{match: '*', to: keep}]", "stages.decode.dtype=keep"]


def explained(*overrides: str) -> str:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            compose("config", list(overrides))
        except (HydraException, OmegaConfBaseException) as why:
            error = why
    return str(explain(error, overrides, sweeps=False))


def test_fields_are_tried_where_their_groups_were_added() -> None:
    """As `chat` and `load_model` have it, whose own overrides stand before the model that is found for a source."""
    assert explained("stages=[load,decode,quantize]", *KEPT, "+model=gpt_oss", "model.rul=[]").startswith(
        "model.rul=[]: there is no 'rul' in model; did you mean 'rules'"
    )
    assert explained(*KEPT, "+model=gpt_os").startswith("model=gpt_os: there is no 'gpt_os' in model; did you mean")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[{match: 'a b', to int8}]", "a list of mappings is written 'model.rules=[{name: value}]', with a colon"),
        ("[{match: '*', to: int8}", "a list of mappings is written 'model.rules=[{name: value}]', with a colon"),
        ("{match", "a mapping is written 'model.rules={name: value}', with a colon after every name, { is not closed"),
    ],
)
def test_a_mapping_that_cannot_be_read_is_not_quoted(value: str, said: str) -> None:
    found = explained("+model=gpt_oss", f"model.rules={value}")
    assert found.startswith(f"model.rules={value}: {said}")
    assert '"' not in found


def test_patterns_are_added_in_braces() -> None:
    """A key of dots would be levels."""
    found = explained("+model=gpt_oss", "train.optimizer.groups={model.layers.0.*: 0}")
    assert found.endswith("and '+train.optimizer.groups={model.layers.0.*: …}' adds it")


def test_texts_in_a_list_are_quoted() -> None:
    found = explained("+model=gpt_oss", "generate.prompts=[it's, so]")
    assert 'generate.prompts=["it\'s", "so"]' in found


MANY = ["quant=int4", "mesh=expert", "mesh.axes.expert=4", "+model=gpt_oss", "flow=evaluate"]


@pytest.mark.parametrize(
    "wrong", ["quant.blok=3", "bits=5", "evaluate.n_ctx=9", "calibrate=gptk", "mesh.axes.exprt=2", "~bench.more"]
)
@pytest.mark.brief("quant.blok=3", "calibrate=gptk", "mesh.axes.exprt=2", "~bench.more")
def test_one_mistake_among_many_is_said_at_once(wrong: str, monkeypatch: pytest.MonkeyPatch, thorough: bool) -> None:
    """In one composition of the others; and as where each is tried on its own."""
    composed: list[list[str]] = []
    real = explaining.compose

    def counted(name: str, overrides: list[str]) -> object:
        composed.append(overrides)
        return real(name, overrides)

    monkeypatch.setattr(explaining, "compose", counted)
    said = explained(*MANY, wrong)
    assert len(composed) == 1
    assert said.startswith(wrong.partition("=")[0])
    if thorough or wrong == "quant.blok=3":
        assert [said] == mistakes([*MANY, wrong])
        assert len(composed) > len(MANY)


def test_two_mistakes_are_both_said() -> None:
    assert [line.partition(":")[0] for line in explained(*MANY, "quant.blok=3", "bits=5").splitlines()] == [
        "quant.blok=3", "bits=5",
    ]  # fmt: skip


def test_a_setting_of_a_stage_that_is_not_run_says_so() -> None:
    typed = ["+model=gpt_oss", "flow=convert", "stages.evaluate.texts=[a.txt]"]
    with pytest.raises(Exception) as caught:  # noqa: PT011  Hydra's, of a class that it does not promise
        compose_run(typed)
    said = str(explain(caught.value, typed))
    assert "'evaluate' is none of this run's stages; 'stages=[load,decode," in said
    assert "did you mean" not in said


@pytest.mark.parametrize(("given", "says"), [("muon", "by train/optimizer=muon"), ("mun", "did you mean 'muon'")])
def test_an_option_that_is_typed_as_a_value(given: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        compose_run(["+model=gpt_oss", "flow=finetune", "data.files=[a.txt]", f"train.optimizer={given}"])
