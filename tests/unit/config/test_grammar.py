"""Mistakes of grammar are said in words of ours, whatever key they are made of."""

import re

import pytest

from pipeline.config.explain import mistakes
from pipeline.config.grammar import misread
from pipeline.config.overrides import parsed_override
from pipeline.config.resolvers import register

RAW = re.compile(r"mismatched input|no viable|LexerNo|extraneous|Error parsing|Config group override|concatenate", re.I)
KEYS = ("quant", "train/optimizer", "export.path", "seed", "evaluate.texts", "model.rules", "mesh.axes", "nokey", "zip")
WRONG = (
    "{}", "{}={{a", "{}=[a", "{}='a", '{}="a', "{}=${{", "{}=int(x)", "{}=foo(1)", "{}=é", "{}=!!x", "{}[0]=1", "{}==1",
    "{}=a=b", "{}={{a: [b}}", "{}=a#b", "{}=a;b", "{} =a", "{}:a", "{}.=a", ".{}=a", "{}..x=1", "{}=a,", "{}=,a",
    "{}=[a,]", "{}=[,]", "{}=(a)", "{}=)", "{}=]", "~{}=1",
)  # fmt: skip
OF_GROUPS = (
    "+{}=1", "{}=null", "{}=[a]", "{}=[a,[b]]", "{}=[a,b]", "{}={{a: 1}}", "{}=${{x}}", "{}=true", "{}=???", "{}=1e9",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


@pytest.mark.parametrize("form", WRONG)
def test_what_is_written_wrong_is_said(form: str) -> None:
    for key in KEYS:
        said = misread(form.format(key)) or ""
        assert said.startswith((form.format(key), repr(form.format(key)))), said
        assert len(said) > len(form.format(key)) + 10
        assert not RAW.search(said)


def test_where_hydra_would_put_a_run_is_ours_to_say() -> None:
    for override in ("hydra.run.dir=there", "hydra.run.dir=here,there"):
        value = override.partition("=")[2]
        assert misread(override) == f"{override}: a run's folder is set by paths.run={value}"
        assert mistakes(["seed=1", override]) == [misread(override)]
    assert misread("hydra.sweep.dir=there") is None


@pytest.mark.parametrize("form", OF_GROUPS)
@pytest.mark.parametrize("key", ["quant", "train/optimizer", "kernels", "model"])
def test_an_option_is_chosen_by_one_name(form: str, key: str) -> None:
    assert (misread(form.format(key)) or "").startswith(f"{form.format(key)}: ")
    assert misread(f"{key}=int4") is None, "whether there is one is seen later"


def test_several_options_of_a_group_are_one_too_many() -> None:
    assert misread("quant=[int4,q4_0]") == (
        "quant=[int4,q4_0]: one quant is chosen, and these are 2: quant=int4, or all of them in turn, to compare them, "
        "with -m quant=int4,q4_0"
    )
    for taken in ("stages=[load,decode]", "experiment=[a,b]", "stages=[]", "quant=int4,q4_0", "quant=choice([a,b],c)"):
        assert misread(taken) is None, taken


@pytest.mark.parametrize(
    "right",
    [
        "quant=int4", "+model=gpt_oss", "~sampling", "~a.b", "seed=1", "export.path='a b'", "evaluate.texts=[a, b]",
        "model.rules=[{match: '*', to: keep}]", "export@stages.export.options.x=hf", "train/optimizer=sgd",
        "++x.y_z-1=2", "hydra.searchpath=['file:///a b']", "model.source=hf://a/b@main", "prompt='x'", "a=${b.c}",
        "seed=1,2", "quant=glob(*)",
    ],
)  # fmt: skip
def test_what_is_written_right_is_left_alone(right: str) -> None:
    assert misread(right) is None


@pytest.mark.parametrize("form", ["{}='a", "{}=(a)", "{}=)", "{}=a#b", "{}=int(x)", "{}=[a;b]"])
def test_what_is_to_be_typed_can_be_read(form: str) -> None:
    said = misread(form.format("export.path")) or ""
    found = re.search(r"'(export\.path=.*)'$|: (export\.path=\S+)$", said.removesuffix(", [ is not closed"))
    assert found, said
    assert parsed_override(found[1] or found[2]) is not None
