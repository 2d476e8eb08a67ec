"""Training over meshes: losses and gradients are those of one device, and states lie where the parameters do."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from plugins.train.objectives import CausalLM, Distillation
from plugins.train.optimizers import AdamW, Muon
from plugins.train.step import Step, make_step
from tests.cases import model_runs, trained
from tests.sharding import toys

MESHES: dict[str, Any] = {
    "data": toys.mesh("data", data=4), "fsdp": toys.mesh("fsdp", fsdp=4), "tensor": toys.mesh("tensor", tensor=2),
    "expert": toys.mesh("expert", expert=4), "fsdp_tensor": toys.mesh("fsdp_tensor", fsdp=2, tensor=2),
    "multihost": toys.mesh("multihost", host=2, fsdp=2),
}  # fmt: skip
CASES = [  # every kind of mesh once, and every family
    ("gpt_oss", "expert"), ("gpt_oss", "fsdp_tensor"), ("llama", "fsdp"), ("qwen2", "multihost"), ("gemma", "tensor"),
    ("qwen3_moe", "data"),
]  # fmt: skip
CAPPED = 8 * 4 * trained.VOCAB  # logits of 8 positions at a time
ONE: dict[str, Any] = {"num_hidden_layers": 1}
LAYERS = {kind: {**ONE, "layer_types": ["sliding_attention"]} for kind in ("gpt_oss", "gemma")}


def model(kind: str, mesh: Any = None) -> Any:
    return trained.model(kind, mesh=mesh, **LAYERS.get(kind, ONE))


def parameters_of(kind: str, seed: int = 0) -> dict[str, Any]:
    return trained.parameters(kind, seed, **LAYERS.get(kind, ONE))


def made(kind: str, name: str | None = None, **options: Any) -> Step:
    mesh = None if name is None else MESHES[name]
    spread = None if mesh is None else trained.spread(mesh)
    objective = options.pop("objective", CausalLM(logits_nbytes=CAPPED))
    optimizer = options.pop("optimizer", AdamW())
    return make_step(model(kind, mesh), objective, optimizer, steps=9, spread=spread, **options)


def gradients(step: Step, kind: str, taught: Any = ()) -> Any:
    """(loss, weight, figures) and gradients, whole."""
    parameters = jax.device_put(parameters_of(kind), step.bound.shardings(parameters_of(kind)))
    batches = step.placed(trained.batches(2, 4, 16))
    with model_runs.quick_compilation():
        found = jax.jit(step.gradients)(parameters, batches, trained.key(), {}, dict(taught))
    lie = {name: w.sharding for name, w in parameters.items()}
    assert all(g.sharding.is_equivalent_to(lie[name], g.ndim) for name, g in found[1].items())
    return jax.tree.map(np.asarray, found)


@cache
def alone(kind: str) -> Any:
    return gradients(made(kind), kind)


def close(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found[0], wanted[0])
    for name, gradient in wanted[1].items():
        size = np.abs(gradient).max()
        assert size > 0, name
        np.testing.assert_allclose(found[1][name], gradient, rtol=0, atol=1e-5 * size, err_msg=name)


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.brief("gpt_oss-expert", "qwen2-multihost")  # fsdp and tensor: test_training_transforms.py
def test_gradients_are_those_of_one_device(kind: str, name: str) -> None:
    """Blocks are computed, and gathered, twice on two of the meshes."""
    close(gradients(made(kind, name, recompute=name in ("fsdp", "multihost")), kind), alone(kind))


@pytest.mark.repeats
def test_a_teacher_lies_over_the_mesh_as_its_student_does() -> None:
    objective, taught = Distillation(teaching=0.5), parameters_of("llama", 1)
    steps = []
    for name in (None, "fsdp_tensor"):
        teacher = model("llama", name and MESHES[name])
        steps.append(made("llama", name, objective=objective, teacher=teacher))
    one, several = (gradients(step, "llama", taught) for step in steps)
    close(several, one)


# Of a gradient that is next to nothing, and so all rounding, Adam makes a whole step; with this eps it does not.
@pytest.mark.parametrize("optimizer", [AdamW(rate=1e-3, eps=1e-4), Muon(rate=1e-3)])
@pytest.mark.brief(1)
def test_what_an_optimizer_keeps_lies_as_the_parameters_do(optimizer: Any) -> None:
    states = []
    for name in (None, "fsdp_tensor"):
        step = made("llama", name, optimizer=optimizer)
        with model_runs.quick_compilation():
            state = step.init(parameters_of("llama"))
            begun = jax.tree.map(lambda a: a.sharding, state)
            for seed in range(2):
                state, seen = step(state, trained.batches(1, 4, 16, seed), trained.key())
        assert jax.tree.map(lambda a: a.sharding, state) == begun
        states.append((state, seen["loss"]))
    (one, loss), (several, found) = states
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    for name, w in several["parameters"].items():
        np.testing.assert_allclose(w, one["parameters"][name], atol=2e-5, err_msg=name)
    kept = [a for a in jax.tree.leaves(several["optimizer"]) if a.ndim]
    held = sum(a.addressable_shards[0].data.nbytes for a in kept)
    assert held < 0.4 * sum(a.nbytes for a in kept)  # a fourth, and some of it a half
