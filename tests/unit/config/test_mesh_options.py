"""conf/mesh: every option, and what the command line makes of it."""

from typing import Any

import pytest
from hydra.errors import HydraException

from pipeline.api import compose_run
from pipeline.config.explain import explain
from pipeline.config.options import options
from pipeline.errors import PlanError
from pipeline.mesh import SINGLE, Mesh


def mesh(*overrides: str) -> Mesh:
    engine = compose_run(["+model=gpt_oss", "flow=evaluate", *overrides]).stages["evaluate"].engine
    assert isinstance(engine.mesh, Mesh)
    return engine.mesh


def problems(*overrides: str) -> dict[str, str]:
    with pytest.raises(PlanError) as why:
        mesh(*overrides)
    assert len(why.value.problems) == len({p.where for p in why.value.problems})
    return {p.where: p.message for p in why.value.problems}


@pytest.mark.parametrize("name", options("mesh"))
def test_every_option_divides_something_over_each_of_its_axes(name: str) -> None:
    found = mesh(f"mesh={name}")
    used = {axis for logical in found.rules for axis in found.over(logical)} | {*found.stored}
    assert used == {*found.axes}
    assert (found.size > 1) == (name != "single")


def test_one_device_is_the_default() -> None:
    assert mesh() == SINGLE


def test_sizes_are_overridden_one_by_one() -> None:
    """Hydra merges mappings: an axis that is not named stays, in its place, and so does its rule."""
    assert mesh("mesh=fsdp_tensor", "mesh.axes={tensor: 4}").axes == {"fsdp": 2, "tensor": 4}
    found = mesh("mesh=fsdp_tensor", "mesh.axes={tensor: 4, fsdp: 8}")
    assert list(found.axes.items()) == [("fsdp", 8), ("tensor", 4)]
    assert mesh("mesh=expert", "mesh.axes.expert=4").size == 4


def test_one_takes_an_axis_away_and_null_a_rule() -> None:
    found = mesh("mesh=fsdp_tensor", "mesh.axes.fsdp=1", "mesh.rules.vocab=null")
    assert (found.size, found.over("batch"), found.over("vocab"), found.over("mlp")) == (2, (), (), ("tensor",))


def test_axes_and_rules_are_added_with_a_plus() -> None:
    found = mesh("mesh=tensor", "+mesh.axes.data=2", "+mesh.rules.batch=data", "mesh.rules.mlp=[tensor]")
    assert found.axes == {"tensor": 2, "data": 2}
    assert (found.over("batch"), found.over("mlp")) == (("data",), ("tensor",))


def test_what_is_unknown_is_refused_with_the_nearest_name() -> None:
    rules = [
        "mesh.rules.heads=tensr",
        "mesh.rules.kv_heads=tensr",
        "+mesh.rules.hedas=tensor",
        "+mesh.rules.embed=fsdp",
    ]
    said = problems("mesh=fsdp_tensor", *rules, "mesh.stored.fsdp=[mlpp]", "mesh.axes.tensor=0")
    assert set(said) == {
        "mesh.axes.tensor",
        "mesh.rules.heads",
        "mesh.rules.kv_heads",
        "mesh.rules.hedas",
        "mesh.rules.embed",
        "mesh.stored.fsdp",
    }
    assert "did you mean 'tensor'?" in said["mesh.rules.heads"]
    assert "did you mean 'heads'" in said["mesh.rules.hedas"]
    assert "mesh.stored can divide it" in said["mesh.rules.embed"]


def test_heads_and_kv_heads_lie_alike() -> None:
    said = problems("mesh=tensor", "mesh.rules.kv_heads=null")
    assert list(said) == ["mesh.rules.kv_heads"]
    assert said["mesh.rules.kv_heads"].startswith("divided over nothing, and heads over tensor")


def test_what_devices_have_different_rows_cannot_share() -> None:
    said = problems("mesh=fsdp", "+mesh.rules.mlp=fsdp")
    assert list(said) == ["mesh.rules.mlp"]
    assert "devices along fsdp have different rows" in said["mesh.rules.mlp"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mesh.axes.tensor=true": "a whole number is expected", "mesh.axes.fsdp=2.5": "a whole number is expected",
         "mesh.stored.fsdp=mlp": "a list is expected", "mesh.replicated_most=some": "a number is expected"},
        {"mesh.rules.mlp={a: b}": "is expected, got {"},
        {"mesh.replicated_most=2": "a share is needed"},
    ],
)  # fmt: skip
def test_wrong_types_are_refused_where_they_are(wrong: dict[str, str]) -> None:
    found = problems("mesh=fsdp_tensor", *wrong)
    assert {*found} == {override.partition("=")[0] for override in wrong}
    for override, said in wrong.items():
        assert said in found[override.partition("=")[0]]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("mesh=fsd", "did you mean 'fsdp'?"),
        ("mesh.axes.expert=4", "there is no 'expert' in mesh.axes (allowed: fsdp, tensor); mesh=expert has it"),
        ("mesh.axis.tensor=2", "did you mean 'axes'?"),
        ("mesh.axes.tenor=2", "did you mean 'tensor'?"),
        ("mesh.axes={fsdp: 4, tenor: 2}", "no 'tenor' in mesh.axes; did you mean 'tensor'? (allowed: fsdp, tensor)"),
        ("mesh.axes=[4]", "a mapping is expected"),
        ("mesh.stored.fsdp={mlp: 2}", "a list is expected"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest(override: str, said: str) -> None:
    overrides = ["+model=gpt_oss", "mesh=fsdp_tensor"] if "." in override else ["+model=gpt_oss"]
    with pytest.raises(HydraException) as caught:
        compose_run([*overrides, override])
    explained: Any = explain(caught.value, [*overrides, override])
    assert said in str(explained)


def test_a_second_choice_that_lacks_what_is_set_is_said() -> None:
    overrides = ["+model=gpt_oss", "mesh=expert", "mesh.axes.expert=4", "mesh=multihost"]
    with pytest.raises(HydraException) as caught:
        compose_run(overrides)
    said = str(explain(caught.value, overrides))
    assert said == "mesh=multihost: mesh.axes.expert is set too, and is not in that mesh"


def test_only_the_class_that_is_a_mesh_is_reached() -> None:
    said = problems("mesh=single", "mesh._target_=pipeline.errors.Problem")
    assert "is outside the packages a config may name" in said["mesh._target_"]
