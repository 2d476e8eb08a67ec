"""Rules that name other quant options: mixed precision from the command line."""

from pathlib import Path

import pytest

from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.planning.memory import plan_run
from pipeline.tensors.spec import TensorSpec

RULES = "model.rules=[{role: experts, to: quant}, {role: attention, to: NAME}, {role: head, to: int8}]"


def planned(name: str, tmp_path: Path) -> dict[str, TensorSpec]:
    run = compose_run(["+model=gpt_oss", "quant=mxfp4", "export=numpy", RULES.replace("NAME", name)])
    plan = plan_run(run, tmp_path)
    assert not plan.problems
    return dict(plan.nodes["quantize"].result.store.specs)


@pytest.mark.parametrize("name", ["int8", "mxfp8_e4m3", "fp8_e4m3", "q8_0", "mxint8"])
@pytest.mark.brief(2)
def test_each_role_gets_what_its_rule_names(name: str, tmp_path: Path) -> None:
    specs = planned(name, tmp_path)
    alone = compose_run(["+model=gpt_oss", f"quant={name}"]).stages["quantize"].method.scheme
    assert specs["model.layers.1.self_attn.q_proj.weight"].scheme == alone
    assert specs["lm_head.weight"].scheme.element == "int8"
    assert specs["model.layers.1.mlp.experts.down_proj"].encoding == "e2m1/32/e8m0"
    assert specs["model.layers.1.self_attn.q_proj.bias"].scheme is None
    assert specs["model.embed_tokens.weight"].scheme is None


def test_an_unknown_name_is_a_problem_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="'mxfp44' is neither quant, keep nor a quant option; did you mean 'mxfp4'"):
        planned("mxfp44", tmp_path)
