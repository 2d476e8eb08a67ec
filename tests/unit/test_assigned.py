"""Which tensor takes which method: rules of one's own, those of the model, those of the method, and shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from pipeline.api import compose_run
from pipeline.assigned import assigned, keeping
from pipeline.config.overrides import parsed_override
from pipeline.errors import PlanError
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.spec import TensorSpec
from plugins.quant.blockwise import Blockwise
from stages.quantize import Quantize
from tests.cases.memory_store import MemoryStore

ROLES = {
    "mlp": ("layers.*.up", "layers.*.down"), "attention": ("layers.*.q",), "embedding": ("embed",), "head": ("head",),
}  # fmt: skip
MLP = Rule(role="mlp")
INT4 = Blockwise("int4", 128, "bf16", narrower=(64, 32))
INT8 = Blockwise("int8", 32, "f16", like="ggml")
GGML = Blockwise(
    "int4", 32, "f16", like="ggml", rules=(Rule("int8", role="head"), Rule(role="embedding"), Rule(role="attention"))
)


def specs(**more: tuple[int, ...]) -> dict[str, TensorSpec]:
    shapes = {
        "embed": (9, 576), "layers.0.q": (4, 576), "layers.0.up": (8, 576), "layers.1.up": (8, 576),
        "layers.0.down": (4, 1536), "norm": (576,), **more,
    }  # fmt: skip
    return {name: TensorSpec(shape, "BF16") for name, shape in shapes.items()}


def encodings(method: Any, *rules: Rule, given: Any = None, **more: Any) -> dict[str, str]:
    given = given or specs()
    found, problems = assigned(rules or (MLP,), ROLES, {"quant": method, "int8": INT8}, given, again=False, **more)
    assert not problems
    return {name: TensorSpec((), "BF16", m.scheme).encoding for name, m in found.items()}


def test_blocks_are_as_wide_as_rows_allow() -> None:
    """SmolLM2 is 576 wide, 4.5 times 128; gpt-oss 2880, 45 times 64."""
    assert encodings(INT4) == {
        "layers.0.up": "int4/64/bf16", "layers.1.up": "int4/64/bf16", "layers.0.down": "int4/128/bf16",
    }  # fmt: skip
    assert INT4.fitted((4, 2880)).block_elems == 64
    assert INT4.fitted((4, 160)).block_elems == 32
    assert INT4.fitted((4, 144)) is INT4  # nothing of it fits, which is then said
    with pytest.raises(Exception, match=r"narrower: \[0\]: blocks of 1 column or more"):
        Blockwise("int4", 128, "bf16", narrower=(0,))


def test_rules_of_a_method_are_for_what_other_rules_leave_out() -> None:
    rows = {"layers.0.up": "int4/32/f16", "layers.1.up": "int4/32/f16", "layers.0.down": "int4/32/f16"}
    tied = {**rows, "embed": "int8/32/f16", "layers.0.q": "int4/32/f16"}
    assert encodings(GGML) == tied  # an embedding that is the head
    with_head = specs(head=(9, 576))
    assert encodings(GGML, given=with_head) == {**tied, "embed": "int4/32/f16", "head": "int8/32/f16"}
    assert encodings(GGML, given=with_head, tied=True)["embed"] == "int8/32/f16"
    assert "embed" not in encodings(GGML, Rule("keep", role="embedding"), MLP)
    assert "layers.0.q" not in encodings(GGML, MLP, given=specs(**{"layers.0.q": (4, 40)}))  # no block fits: left
    assert encodings(INT4).keys() == rows.keys()  # it has none


def test_what_does_not_fit_is_said_with_the_setting_that_keeps_it() -> None:
    """One setting for all that is wrong, which the command line takes as it stands."""
    given = specs(**{"layers.0.down": (4, 40), "layers.1.down": (4, 40), "layers.0.q": (4, 40)})
    rules = (MLP, Rule(role="attention"))
    _, problems = assigned(rules, ROLES, {"quant": INT4}, given, again=False)
    assert {p.where for p in problems} == {"layers.0.down", "layers.1.down", "layers.0.q"}
    [said] = {p.message for p in problems}
    reason, _, fix = said.partition("; ")
    assert reason == "last dimension 40 is not a multiple of the block of 128"
    setting = 'model.extra_rules=[{role: attention, to: keep}, {match: "layers.*.down", to: keep}]'
    assert fix == f"'{setting}' keeps them"
    extra = tuple(Rule(**r) for r in OmegaConf.to_container(OmegaConf.create(parsed_override(setting).value())))
    assert assigned((*extra, *rules), ROLES, {"quant": INT4}, given, again=False)[1] == []


def test_what_keeps_a_tensor_keeps_rules_that_were_typed() -> None:
    """One `model.extra_rules=` replaces another, so that whoever adds a rule types all of them."""
    extra = (Rule("int8", match="layers.0.up"),)
    _, problems = assigned((MLP,), ROLES, {"quant": INT4, "int8": INT8}, specs(bad=(4, 40)), again=False, extra=extra)
    assert problems == []
    given = specs(**{"layers.0.down": (4, 40)})
    [problem] = assigned((MLP,), ROLES, {"quant": INT4, "int8": INT8}, given, again=False, extra=extra)[1]
    setting = '[{match: "layers.*.down", to: keep}, {match: "layers.0.up", to: int8}]'
    assert problem.message.endswith(f"'model.extra_rules={setting}' keeps it")


def test_a_role_is_kept_of_which_nothing_else_is_quantized() -> None:
    names = ["layers.0.q", "layers.0.up"]
    taken = ["layers.0.q", "layers.0.up", "layers.1.up"]
    said = keeping(names, ROLES, taken)
    assert said == "'model.extra_rules=[{role: attention, to: keep}, {match: \"layers.*.up\", to: keep}]' keeps them"


@pytest.mark.parametrize("transform", ["stage", "qat", "qlora"])
def test_extra_rules_come_first_wherever_rules_are(transform: str) -> None:
    extra = "model.extra_rules=[{match: model.layers.0.*, to: keep}, {role: attention, to: int8}]"
    how = ["flow=convert"] if transform == "stage" else ["flow=finetune", f"train={transform}"]
    run = compose_run(["+model=gpt_oss", "quant=mxfp4", *how, extra])
    stage: Any = run.stages["quantize"] if transform == "stage" else run.stages["train"].trainer.transform.packing
    assert [r.to for r in (*stage.extra_rules, *stage.rules)] == ["keep", "int8", "quant"]
    assert {*stage.methods} == {"int8"}


def test_an_extra_rule_that_is_wrong_is_named_as_it_was_typed() -> None:
    with pytest.raises(PlanError, match=r"^model\.extra_rules\[0\]\.rol: "):
        compose_run(["+model=gpt_oss", "quant=mxfp4", "flow=convert", "model.extra_rules=[{rol: attention}]"])


def test_usual_schemes_are_what_people_expect() -> None:
    def of(name: str) -> Quantize:
        stage: Any = compose_run(["+model=gpt_oss", "flow=convert", f"quant={name}"]).stages["quantize"]
        return stage

    int4: Any = of("int4").method
    assert (int4.block_elems, int4.scale, int4.narrower) == (128, "bf16", (128, 64, 32, 16))
    heads = {name: next((r.role, r.to) for r in of(name).method.rules) for name in ("q4_0", "q4_1", "q8_0")}
    assert heads == {"q4_0": ("head", "q8_0"), "q4_1": ("head", "q8_0"), "q8_0": ("head", "quant")}
    assert {*of("q4_0").methods} == {"q8_0"}


def test_bytes_are_those_of_the_fitted_scheme() -> None:
    x = np.random.default_rng(0).standard_normal((8, 576)).astype(np.float32)
    store = MemoryStore({"layers.0.up": x, "layers.0.down": x})
    found = Quantize(INT4, (MLP,), ROLES).run(Context(Path()), Checkpoint(store)).store
    packed = found.read("layers.0.up")
    assert packed.scheme.block_elems == 64
    assert packed.scales.shape == (8, 9)
    np.testing.assert_allclose(INT4.decode(packed, "F32"), x, atol=0.4)
