"""Optimizers: what each is for which parameter, beside what optax gives for it alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.errors import PlanError
from plugins.train.optimizers import SGD, AdamW, Lion, Muon, factors
from plugins.train.schedules import Schedule

SHAPES = {
    "model.embed_tokens.weight": (11, 6), "model.layers.0.self_attn.q_proj.weight": (8, 6),
    "model.layers.0.self_attn.q_proj.bias": (8,), "model.layers.0.mlp.experts.down_proj": (3, 6, 5),
    "model.layers.0.mlp.experts.down_proj_bias": (3, 6), "model.norm.weight": (6,), "lm_head.weight": (11, 6),
}  # fmt: skip
MATRICES = {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.experts.down_proj"}
DECAYS = {*MATRICES, "model.embed_tokens.weight", "lm_head.weight"}


def tree(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in SHAPES.items()}


def changes(optimizer: Any) -> dict[str, Any]:
    found = optimizer.build(tree(0))
    return found.update(tree(1), found.init(tree(0)), tree(0))[0]


@pytest.mark.parametrize("kind", [AdamW, Muon, SGD, Lion])
@pytest.mark.brief(1)
def test_matrices_decay_and_nothing_else(kind: Any) -> None:
    with_decay, without = changes(kind(decay=0.5)), changes(kind(decay=0.0))
    for name, w in tree(0).items():
        lost = np.asarray(without[name] - with_decay[name])
        np.testing.assert_allclose(lost, 0.5 * w if name in DECAYS else 0 * w, atol=1e-5, err_msg=name)


def test_muon_is_for_matrices_and_for_each_expert_by_itself() -> None:
    found, adam = changes(Muon(decay=0)), changes(AdamW(decay=0))
    for name, change in found.items():
        if name not in MATRICES:
            continue
        for one in change.reshape(-1, *change.shape[-2:]):
            values = np.linalg.svd(np.asarray(one), compute_uv=False) / (0.2 * max(one.shape) ** 0.5)
            assert ((values > 0.6) & (values < 1.3)).all(), (name, values)
    for name in SHAPES.keys() - MATRICES:
        np.testing.assert_allclose(np.sign(found[name]), np.sign(adam[name]))
        np.testing.assert_allclose(np.abs(found[name]), 1, atol=1e-3)
    stack = "model.layers.0.mlp.experts.down_proj"
    alone = optax.contrib.muon(1.0, consistent_rms=0.2)
    for expert in range(3):
        given = {"w": tree(1)[stack][expert].T}
        want = alone.update(given, alone.init(given), given)[0]["w"].T
        np.testing.assert_allclose(found[stack][expert], want, atol=2e-3)


@pytest.mark.parametrize("optimizer", [AdamW(), Muon(), SGD(), SGD(momentum=0.9), Lion()])
def test_what_is_kept_is_known_beforehand(optimizer: Any) -> None:
    arrays = [a for a in jax.tree.leaves(optimizer.build(tree(0)).init(tree(0))) if a.ndim]
    assert optimizer.kept(SHAPES) == sum(a.size for a in arrays if a.shape != (3,))  # Muon's coefficients


def test_sgd_and_lion_as_optax_has_them() -> None:
    np.testing.assert_allclose(changes(SGD(decay=0))["lm_head.weight"], -tree(1)["lm_head.weight"])
    np.testing.assert_allclose(changes(Lion(decay=0))["lm_head.weight"], -np.sign(tree(1)["lm_head.weight"]))


def test_groups_have_rates_of_their_own() -> None:
    found = factors(AdamW(groups={"*experts*": 0.5, "model.*": 2.0}), SHAPES)
    assert found["model.layers.0.mlp.experts.down_proj"] == 0.5
    assert found["model.norm.weight"] == 2.0
    assert found["lm_head.weight"] == 1.0
    with pytest.raises(PlanError, match=r"groups.lm_heat.weight: matches no parameter; did you mean 'lm_head.weight'"):
        factors(AdamW(groups={"lm_heat.weight": 0.1}), SHAPES)


def test_patterns_are_for_some_parameter() -> None:
    """Those that are usual need not be: not all models have biases."""
    given = Muon(undecayed=("*sinks", "*bias", "lm_heat.weight"), adam=("*bias", "lm_head.weight", "emb*"))
    with pytest.raises(PlanError) as why:
        factors(given, SHAPES)
    assert [p.where for p in why.value.problems] == ["undecayed.lm_heat.weight", "adam.emb*"]
    assert "did you mean 'lm_head.weight'" in why.value.problems[0].message
    factors(Muon(undecayed=("*bias",), adam=("lm_head.weight",)), SHAPES)


def test_numbers_that_cannot_be_are_said_at_once() -> None:
    with pytest.raises(PlanError) as why:
        AdamW(rate=-1.0, b1=1.0, clip=0.0, groups={"*": -2.0})
    assert [p.where for p in why.value.problems] == ["rate", "b1", "clip", "groups.*"]
    assert "to below 1 is needed" in str(why.value)
    with pytest.raises(PlanError, match="steps: 1000000: a number from 1 to below 100 is needed"):
        Muon(steps=1_000_000)
    with pytest.raises(PlanError) as why:
        Schedule("cosine", warmup=1.5, cooldown=3, floor=2)
    assert [p.where for p in why.value.problems] == ["warmup", "floor", "cooldown"]
    with pytest.raises(PlanError) as why:
        Schedule("constant", warmup=float("nan"), cooldown=float("inf"))
    assert [p.where for p in why.value.problems] == ["warmup", "cooldown"]
