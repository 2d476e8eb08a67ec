"""A training over a mesh: saved where its parts lie, and gone on from on that mesh, on another, or on one device."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.training import Splits
from plugins.train.loop import Found, Loop, Plan, Programs
from plugins.train.objectives import CausalLM
from plugins.train.optimizers import AdamW
from plugins.train.options import Looking, Saving
from plugins.train.step import Step, make_step
from tests.cases import model_runs, trained
from tests.cases.toy_rows import Rows
from tests.sharding import toys

KIND = "llama"
FSDP, TENSOR = toys.mesh("fsdp", fsdp=4), toys.mesh("tensor", tensor=2)


def on(mesh: Any) -> Step:
    if mesh is None:
        return trained.step_of(KIND)
    model = trained.model(KIND, mesh=mesh)
    return make_step(model, CausalLM(), AdamW(), steps=100, spread=trained.spread(mesh))


def run(step: Step, data: Rows, folder: Path | None = None, resume: Path | None = None) -> Found:
    plan = Plan(6, 4, 4, 0, Saving(every=2, seconds=None), Looking())
    shapes = step.described(trained.parameters(KIND), jax.devices()[0])
    loop = Loop(plan, Programs(step), Splits(data, Rows(8, seed=5)))
    return loop.run(lambda: step.init(trained.parameters(KIND)), shapes, folder, resume=resume)


def losses(found: Found) -> list[float]:
    return [float(r["loss"]) for r in found.rows]


@pytest.mark.repeats
def test_it_goes_on_wherever_it_is_to(tmp_path: Path) -> None:
    with model_runs.quick_compilation():
        whole = run(on(None), Rows())
        with pytest.raises(RuntimeError, match="killed"):
            run(on(FSDP), Rows(dies_after=4), tmp_path / "fsdp")
        elsewhere = {
            name: run(on(mesh), Rows(), tmp_path / name, tmp_path / "fsdp")
            for name, mesh in (("tensor", TENSOR), ("one", None))
        }
        same = run(on(FSDP), Rows(), tmp_path / "fsdp")
    for name, found in {**elsewhere, "fsdp": same}.items():
        assert found.began in (2, 4)
        np.testing.assert_allclose(losses(found), losses(whole), rtol=1e-5, err_msg=name)
        assert len(losses(found)) == 8  # updates, and what is held out before and after
    assert {len(a.sharding.device_set) for a in same.parameters.values()} == {4}
