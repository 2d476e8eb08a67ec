"""A run that trains adapters beside packed weights: what it leaves, and that another run makes the same of it."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.events import Events
from pipeline.planning.memory import plan_run
from pipeline.reporting.manifest import Report
from pipeline.running.results import FOLDER
from pipeline.running.runner import execute
from plugins.formats.safetensors.container import SafeTensors
from tests.cases import two_layers
from tests.cases.model_runs import quick_compilation

QLORA = (
    "train=qlora", "train.steps=2", "train.batch=2", "train.transform.rank=3", "train.optimizer.rate=0.1",
    "data.files=[text.txt]", "data.length=16", "engine.dtype=f32",
)  # fmt: skip


def run(outputs: Path, name: str, *overrides: str) -> Report:
    given = ["+model=gpt_oss", f"model.source={two_layers.folder()}", "quant=mxfp4", "export=plain", *overrides]
    given += [f"paths.outputs={outputs}"]
    return execute(compose_run([*given, f"paths.run={outputs / name}"]), outputs / name, [], Events())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The people of the United States have elected a sailor. " * 40)


def test_what_is_left_beside_the_weights_makes_the_same_weights(tmp_path: Path) -> None:
    outputs = tmp_path / "out"
    with quick_compilation():
        run(outputs, "trained", "stages=[load,train,export]", *QLORA)
    (adapter,) = (outputs / FOLDER).glob("*/adapter")
    assert sorted(p.name for p in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    run(outputs, "merged", "stages=[load,quantize,adapt,export]", f"stages.adapt.source={adapter}")
    run(outputs, "base", "stages=[load,quantize,export]", "quant=none")
    trained, merged, base = (SafeTensors().open(outputs / name / "model") for name in ("trained", "merged", "base"))
    adapted = [n for n in trained.specs if n.endswith(("_proj.weight", "experts.gate_up_proj", "experts.down_proj"))]
    assert len(adapted) > 10
    for name in adapted:
        after = trained.read(name)
        np.testing.assert_array_equal(after, merged.read(name), name)
        assert (after != base.read(name)).any(), name
    np.testing.assert_array_equal(trained.read("model.norm.weight"), base.read("model.norm.weight"))


def test_a_plan_counts_packed_weights_and_says_what_is_wrong(tmp_path: Path) -> None:
    def planned(*overrides: str) -> int:
        made = compose_run(["+model=gpt_oss", "stages=[load,train]", *QLORA, *overrides, f"paths.run={tmp_path}"])
        plan = plan_run(made, tmp_path)
        if plan.problems:
            raise PlanError(plan.problems)
        return plan.nodes["train"].takes.device_nbytes

    packed, plain = planned("quant=mxfp4"), planned("quant=mxfp4", "train.transform.packing=null")
    full = planned("quant=mxfp4", "train.transform=null")
    assert packed < 0.5 * plain < 0.25 * full
    with pytest.raises(PlanError) as caught:
        planned("quant=none", "train.transform.targets=[nowhere]")
    assert "matches no parameter" in str(caught.value)
