"""Members of a population are what each of them is alone, on one device and divided over four."""

from typing import Any

import jax
import numpy as np
import pytest

from plugins.train.objectives import Classification
from plugins.train.optimizers import AdamW
from plugins.train.populations import Population
from plugins.train.schedules import Schedule
from plugins.train.step import Step, make_step
from tests.cases import trained

RATES = np.array([0.03, 0.03, 0.1, 0.1], np.float32)
SEEDS = np.array([1, 2, 1, 2])


def step() -> Step:
    return make_step(trained.perceptron(), Classification(), AdamW(schedule=Schedule("linear")), steps=9)


def parameters(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {name: p.get_value().shape for name, p in step().bound.params.items()}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def batches(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((2, 16, 3)).astype(np.float32)
    return {"inputs": inputs, "targets": (inputs[..., 0] > 0).astype(np.int32), "weights": np.ones((2, 16), np.float32)}


def over_four() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:4]), ("member",))


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.brief("True")
def test_members_are_what_each_is_alone(divided: bool) -> None:
    where = over_four() if divided else None
    population = Population(step(), RATES, where, "member")
    keys = jax.vmap(jax.random.key)(SEEDS)
    states = population.init(jax.tree.map(lambda *one: np.stack(one), *map(parameters, SEEDS.tolist())))
    own = jax.tree.map(lambda *one: np.stack(one), *map(batches, SEEDS.tolist()))
    for _ in range(5):
        states, seen = population(states, own, keys)
    for member, (seed, rate) in enumerate(zip(SEEDS.tolist(), RATES.tolist(), strict=True)):
        one = make_step(trained.perceptron(), Classification(), AdamW(rate=rate, schedule=Schedule("linear")), steps=9)
        state = one.init(parameters(seed))
        for _ in range(5):
            state, alone = one(state, batches(seed), jax.random.key(seed))
        np.testing.assert_allclose(seen["loss"][member], alone["loss"], rtol=1e-5)
        for name, w in state["parameters"].items():
            np.testing.assert_allclose(states["parameters"][name][member], w, rtol=1e-4, atol=1e-5)
    if divided:
        assert len(states["parameters"]["into.kernel"].sharding.device_set) == 4


def test_members_are_divided_equally() -> None:
    with pytest.raises(ValueError, match="3 members over 4 devices along 'member': parts have to be equal"):
        Population(step(), RATES[:3], over_four(), "member")
