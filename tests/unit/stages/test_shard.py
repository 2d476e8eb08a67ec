"""Shard: the same store, and how its tensors will lie."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.mesh import SINGLE, Mesh
from pipeline.planning.memory import plan_jobs, plan_run
from pipeline.planning.sweep import Job
from pipeline.planning.wiring import Plan
from pipeline.stage import Checkpoint, Context
from stages.shard import Shard
from tests.cases import model_runs

TINY = Path(model_runs.__file__).parents[2] / "plugins/models/gpt_oss/tiny"
CTX = Context(Path("/nowhere"))


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return model_runs.checkpoint(TINY)


def planned(*overrides: str) -> Plan:
    return plan_run(compose_run(["+model=gpt_oss", "quant=mxfp4", *overrides]), Path("/nowhere"))


def problems(plan: Plan) -> dict[str, str]:
    assert len(plan.problems) == len({p.where for p in plan.problems})  # each said once, whoever finds it
    return {p.where: p.message for p in plan.problems}


def test_one_device_needs_nothing_of_the_engine(tiny: Checkpoint) -> None:
    class Stranger:
        pass

    stage: Any = Shard(SINGLE, Stranger())  # type: ignore[arg-type]
    found = stage.run(CTX, tiny)
    assert found.store is tiny.store
    assert found.placement.mesh == SINGLE
    assert stage.writes == ()


def test_every_parameter_has_a_layout_and_no_byte_changes(tiny: Checkpoint) -> None:
    mesh = Mesh({"expert": 4}, {"experts": "expert"}, replicated_most=1)
    stage = Shard(mesh, model_runs.engine())
    found = stage.run(CTX, tiny)
    assert found.store is tiny.store
    assert found.placement is not None
    assert {n for p in found.placement.parameters for n in p.names} == set(tiny.store.specs)
    layout = found.placement.layouts["model.layers.0.mlp.experts.down_proj"]
    assert [box[0] for box, _ in layout.boxes(mesh)] == [slice(2 * i, 2 * i + 2) for i in range(4)]
    assert stage.writes == ("mesh.png",)


def test_an_engine_for_one_device_says_so(tiny: Checkpoint) -> None:
    class Single:
        pass

    with pytest.raises(PlanError, match=r"mesh: Single runs models on one device; mesh=single is that") as why:
        Shard(Mesh({"data": 2}, {"batch": "data"}), Single()).run(CTX, tiny)  # type: ignore[arg-type]
    assert why.value.exit_code == 3


def test_all_that_does_not_fit_is_said_at_once_and_once() -> None:
    """By the stage itself, and by those that run the model: 224 columns are 7 blocks of MXFP4, and heads are 6."""
    plan = planned("mesh=tensor", "mesh.axes.tensor=4", "+mesh.axes.spare=2")
    assert set(problems(plan)) == {"mesh.rules.mlp", "mesh.rules.heads", "mesh.rules.kv_heads", "mesh.axes.spare"}
    assert "legal: 1, 7" in problems(plan)["mesh.rules.mlp"]
    assert {w.exit_code for w in plan.failures} == {3}


def test_rows_that_do_not_divide_are_a_problem_of_whoever_scores_them() -> None:
    found = problems(planned("flow=evaluate", "mesh=data", "evaluate.windows.batch=3"))
    assert set(found) == {"evaluate.windows.batch"}
    assert "multiples of 2 do" in found["evaluate.windows.batch"]
    assert not planned("flow=generate", "mesh=data", "prompts=[a, b, c]").problems  # padded


def test_another_mesh_than_the_engines_is_a_problem() -> None:
    other = "{_target_: pipeline.mesh.Mesh, axes: {data: 4}, rules: {batch: data}, replicated_most: 1}"
    found = problems(planned("flow=generate", "mesh=data", f"engine.mesh={other}"))
    assert list(found) == ["stages.shard.mesh"]
    assert "is laid out over {'data': 2}, and the engine has {'data': 4}" in found["stages.shard.mesh"]


def test_an_export_read_back_is_placed_too() -> None:
    """What is scored is what was written, on the same mesh."""
    plan = planned("flow=full", "mesh=expert")
    assert not plan.problems
    assert plan.takes["evaluate"].reads == "reads the export; 8,192 tokens of a text"
    assert plan.takes["evaluate"].devices == 2
    assert plan.works["export"].chunks == planned("flow=convert").works["export"].chunks


def test_jobs_of_other_meshes_share_what_is_quantized_and_not_what_lies_where() -> None:
    meshes = ("mesh=single", "mesh=expert", "mesh=expert")
    jobs = [
        Job(compose_run(["+model=gpt_oss", "quant=mxfp4", "flow=generate", mesh, f"seed={i // 2}"]), Path(f"/none/{i}"))
        for i, mesh in enumerate(meshes)
    ]
    plans = plan_jobs(jobs).plans
    assert len({id(plan.nodes["decode"]) for plan in plans}) == 1
    assert plans[0].nodes["shard"] is not plans[1].nodes["shard"]
    assert [plan.nodes["shard"].result.placement.mesh.size for plan in plans] == [1, 2, 2]
    assert not any(plan.problems for plan in plans)


def test_a_stage_after_it_may_change_the_weights(tiny: Checkpoint) -> None:
    """The placement goes along: it is of names and shapes."""
    found = Shard(Mesh({"data": 2}, {"batch": "data"}, replicated_most=1), model_runs.engine()).run(CTX, tiny)
    assert replace(found, store=tiny.store).placement is found.placement
