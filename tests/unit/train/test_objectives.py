"""Objectives beside their formulas, block by block, and how much memory they keep."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import PlanError
from plugins.train import losses
from plugins.train.bound import Bound
from plugins.train.objectives import CausalLM, Classification, Distillation, Regression
from plugins.train.optimizers import AdamW
from plugins.train.step import make_step
from tests.cases import trained


def in_full(model: Any, batch: Any, z_loss: float) -> Any:
    logits = model.logits(model(batch["tokens"], batch["positions"], segments=batch["segments"])[0])
    total = jax.nn.logsumexp(logits, axis=-1)
    own = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    return (batch["weights"] * (total - own + z_loss * total**2)).sum()


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.brief("gemma")
def test_blocks_give_the_loss_and_gradients_of_all_logits(kind: str) -> None:
    """A tied head, whose gradient comes from both of its uses; and a capped one. 48 positions in blocks of 7."""
    bound, batch = Bound(trained.model(kind)), jax.tree.map(lambda a: a[0], trained.batches(1, 2, 24))
    objective = CausalLM(z_loss=0.01, logits_nbytes=7 * 4 * trained.VOCAB)
    want = jax.jit(jax.value_and_grad(lambda p: in_full(bound.model(p), batch, 0.01)))(trained.parameters(kind))
    found = jax.jit(jax.value_and_grad(lambda p: objective.sums(bound.model(p), batch, None)[0]))(
        trained.parameters(kind)
    )
    np.testing.assert_allclose(found[0], want[0], rtol=1e-5)
    for name, gradient in want[1].items():
        size = np.abs(gradient).max()
        np.testing.assert_allclose(found[1][name], gradient, atol=1e-5 * size, rtol=0, err_msg=name)


def test_no_more_logits_than_a_block_has() -> None:
    """4,096 positions and 8,192 words have 128 MiB of logits; a block has 2 MiB."""

    def block(head: Any, h: Any, fixed: Any, target: Any) -> Any:
        scores = losses.Logits.of(h @ head.T, ())
        return (scores.total - scores.at(target)).sum(), scores.top.sum()

    def loss(head: Any, h: Any, target: Any) -> Any:
        return losses.by_blocks(block, 64, head, None, h, target)[0]

    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in (((8192, 16), "f4"), ((4096, 16), "f4"), ((4096,), "i4"))]
    program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*shapes).compile()
    assert program.memory_analysis().temp_size_in_bytes < 16 << 20


def test_what_is_frozen_of_a_head_costs_no_gradient() -> None:
    """A head of two parts, one of them integers, as adapters and packed weights have it."""
    rng = np.random.default_rng(0)
    codes, wide = rng.integers(-4, 4, (5, 3)).astype(np.int8), rng.standard_normal((5, 3)).astype(np.float32)
    h, target = rng.standard_normal((7, 3)).astype(np.float32), rng.integers(0, 5, 7).astype(np.int32)

    def block(head: Any, h: Any, fixed: Any, target: Any) -> Any:
        scores = losses.Logits.of(h @ (head["codes"].astype(jnp.float32) + head["wide"]).T, ())
        return (scores.total - scores.at(target)).sum(), scores.top.sum()

    def loss(most: int, wide: Any, h: Any) -> Any:
        return losses.by_blocks(block, most, {"codes": codes, "wide": wide}, None, h, target)[0]

    want, found = (jax.grad(lambda w, m=m: loss(m, w, h))(wide) for m in (7, 2))
    scores = jax.nn.softmax(h @ (codes + wide).T) - np.eye(5)[target]
    np.testing.assert_allclose(want, scores.T @ h, atol=1e-5)
    np.testing.assert_allclose(found, want, atol=1e-5)


def test_a_student_that_is_its_teacher_has_nothing_to_learn() -> None:
    model, batch = trained.model("llama"), trained.batches(1, 2, 24)
    step = make_step(model, Distillation(temperature=2.0), AdamW(), steps=9, teacher=trained.model("llama"))
    taught = trained.parameters("llama", seed=1)
    _, seen = step(step.init(taught), batch, trained.key(), None, taught)
    assert abs(seen["loss"]) < 1e-5
    assert seen["agreement"] == 1
    assert seen["gradient_norm"] < 1e-4
    _, seen = step(step.init(trained.parameters("llama")), batch, trained.key(), None, taught)
    assert seen["loss"] > 0.1
    assert seen["agreement"] < 0.5


def test_a_divergence_by_its_formula() -> None:
    bound, batch = Bound(trained.model("llama")), jax.tree.map(lambda a: a[0], trained.batches(1, 2, 12))
    objective = Distillation(teaching=0.25, temperature=2.0, logits_nbytes=4 * 8 * trained.VOCAB)

    @jax.jit
    def both(*weights: Any) -> Any:
        ours, theirs = map(bound.model, weights)
        p, q = (
            jax.nn.log_softmax(m.logits(m(batch["tokens"], batch["positions"], segments=batch["segments"])[0]) / 2.0)
            for m in (theirs, ours)
        )
        kl = 4 * (batch["weights"] * (jnp.exp(p) * (p - q)).sum(-1)).sum()
        return objective.sums(ours, batch, None, theirs), kl, in_full(ours, batch, 0.0)

    (loss, weight, seen), kl, own = both(*(trained.parameters("llama", seed) for seed in (0, 1)))
    np.testing.assert_allclose(seen["divergence"][0], kl, rtol=1e-4)
    np.testing.assert_allclose(loss, 0.25 * kl + 0.75 * own, rtol=1e-4)
    assert weight == batch["weights"].sum()


def test_classes_and_numbers() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.standard_normal((5, 3)).astype(np.float32)
    classes, weights = np.array([0, 2, 1, 1, 0], np.int32), np.array([1, 1, 0, 2, 1], np.float32)
    scores = np.log(np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True))
    batch = {"inputs": outputs, "targets": classes, "weights": weights}
    loss, weight, seen = Classification(smoothing=0.1).sums(lambda x: x, batch, None)
    want = -0.9 * scores[np.arange(5), classes] - 0.1 * scores.mean(-1)
    np.testing.assert_allclose(loss, (weights * want).sum(), rtol=1e-5)
    assert weight == 5
    assert seen["accuracy"][0] == (weights * (outputs.argmax(-1) == classes)).sum()
    batch = {"inputs": outputs[:, :1], "targets": outputs[:, 1], "weights": weights}
    loss, weight, seen = Regression().sums(lambda x: x, batch, None)
    error = outputs[:, 0] - outputs[:, 1]
    np.testing.assert_allclose(loss, (weights * error**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(seen["absolute_error"][0], (weights * np.abs(error)).sum(), rtol=1e-5)


def test_options_that_cannot_be() -> None:
    for make, said in (
        (lambda: CausalLM(z_loss=-1), "z_loss: -1: a factor from 0 is needed"),
        (lambda: Distillation(teaching=0, temperature=0), "teaching: 0: .*\n.*temperature: 0: a number above 0"),
        (lambda: Classification(smoothing=1), "smoothing: 1: a share is needed, from 0 to below 1"),
    ):
        with pytest.raises(PlanError, match=said):
            make()
