"""Training over meshes: losses, gradients and states are those of one device, and lie where the parameters do."""

from typing import Any

import jax
import numpy as np
import pytest

from plugins.train.objectives import CausalLM
from plugins.train.optimizers import AdamW, Muon
from plugins.train.step import make_step
from tests.cases import model_runs, trained
from tests.sharding import toys

MESHES: dict[str, Any] = {
    "data": toys.mesh("data", data=4), "fsdp": toys.mesh("fsdp", fsdp=4), "tensor": toys.mesh("tensor", tensor=2),
    "expert": toys.mesh("expert", expert=4), "fsdp_tensor": toys.mesh("fsdp_tensor", fsdp=2, tensor=2),
    "multihost": toys.mesh("multihost", host=2, fsdp=2),
}  # fmt: skip
CASES = [
    *(("gpt_oss", name) for name in MESHES),
    ("llama", "fsdp_tensor"), ("llama", "fsdp"), ("qwen2", "fsdp_tensor"), ("qwen3_moe", "expert"), ("gemma", "fsdp_tensor"),
]  # fmt: skip


def run(step: Any, kind: str) -> Any:
    state = step.init(trained.parameters(kind))
    for seed in range(2):
        state, seen = step(state, trained.batches(2, 4, 16, seed), trained.key())
    return state, seen


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_it_is_what_one_device_gives(kind: str, name: str) -> None:
    mesh = MESHES[name]
    with model_runs.quick_compilation():
        alone, seen = run(trained.step_of(kind), kind)
        step = make_step(
            trained.model(kind, mesh=mesh), CausalLM(), AdamW(), steps=100, spread=trained.spread(mesh), recompute=True
        )
        state, found = run(step, kind)
    for figure in seen:
        np.testing.assert_allclose(found[figure], seen[figure], rtol=1e-5, atol=1e-7, err_msg=figure)
