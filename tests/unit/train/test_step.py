"""An update: what it divides by, what it leaves alone, and that losses fall."""

from typing import Any

import jax
import numpy as np
import pytest

from plugins.train.objectives import CausalLM
from plugins.train.optimizers import AdamW
from plugins.train.schedules import Schedule
from plugins.train.step import make_step
from tests.cases import trained


def begun(kind: str) -> Any:
    return trained.step_of(kind).init(trained.parameters(kind))


@pytest.mark.parametrize("kind", trained.FAMILIES)
@pytest.mark.brief("llama", "gpt_oss")
def test_losses_fall_and_every_parameter_moves(kind: str) -> None:
    step, state, batches = trained.step_of(kind), begun(kind), trained.batches(2, 2, 24)
    before = {name: np.asarray(w) for name, w in state["parameters"].items()}
    losses = []
    for _ in range(8):
        state, seen = step(state, batches, trained.key())
        losses.append(float(seen["loss"]))
        assert (np.asarray(seen["gradient_norms"]) > 0).all(), sorted(before)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]
    assert int(state["step"]) == 8
    assert all((np.asarray(state["parameters"][name]) != w).any() for name, w in before.items())


@pytest.mark.parametrize("kind", trained.FAMILIES)
@pytest.mark.brief("gpt_oss", "gemma")
def test_gradients_are_what_losses_change_by(kind: str) -> None:
    """Of some parameters of every kind, along their gradients; Adam's first average holds a tenth of these."""
    step, batches, before = trained.step_of(kind), trained.batches(2, 2, 24), trained.parameters(kind)
    state, seen = step(begun(kind), batches, trained.key())
    scale = min(1.0, 1 / float(seen["gradient_norm"]))
    norms = dict(zip(sorted(before), np.asarray(seen["gradient_norms"]), strict=True))
    parts = ("embed_tokens.weight", "sinks", "q_norm.weight", "router.weight", "mlp.gate.weight", "gate_up_proj")
    some = [name for name in before if name.endswith(parts) and "layers.1" not in name]
    assert some
    for name in some:
        gradient = np.asarray(state["optimizer"][0].mu[name]) / 0.1 / scale
        np.testing.assert_allclose(np.linalg.norm(gradient), norms[name], rtol=1e-3)
        losses = []
        for far in (-1e-3, 1e-3):  # so little that no token comes to other experts, where losses jump
            moved = {**before, name: before[name] + (far / norms[name] * gradient).astype(np.float32)}
            losses.append(float(step(step.init(moved), batches, trained.key())[1]["loss"]))
        np.testing.assert_allclose((losses[1] - losses[0]) / 2e-3, norms[name], rtol=0.02, err_msg=name)


def test_micro_batches_are_one_batch() -> None:
    """Those of few and of many counted tokens alike: sums are divided once."""
    step, batches = trained.step_of("llama"), trained.batches(2, 2, 24)
    batches["weights"][0] *= np.arange(24) < 4
    together = {name: a.reshape(1, 4, 24) for name, a in batches.items()}
    (two, seen), (one, at_once) = (step(begun("llama"), b, trained.key()) for b in (batches, together))
    assert seen["weight"] == at_once["weight"] == batches["weights"].sum()
    np.testing.assert_allclose(seen["loss"], at_once["loss"], rtol=1e-5)
    np.testing.assert_allclose(seen["gradient_norms"], at_once["gradient_norms"], rtol=1e-4)
    for name, w in one["parameters"].items():
        np.testing.assert_allclose(two["parameters"][name], w, atol=2e-4, err_msg=name)


def test_what_has_a_rate_of_0_keeps_its_bits_and_clips_nothing() -> None:
    """As a parameter that asks for no gradient does in torch: the norm is of the others."""
    optimizer = AdamW(groups={"*embed_tokens*": 0.0, "*layers.0.*": 0.0}, clip=0.1)
    step = make_step(trained.model("llama"), CausalLM(), optimizer, steps=9)
    begin = trained.parameters("llama")
    begin["model.embed_tokens.weight"][:3] = -0.0
    state, seen = step(step.init(begin), trained.batches(1, 2, 24), trained.key())
    stay = [n for n in sorted(begin) if "embed_tokens" in n or ".layers.0." in n]
    for name, w in begin.items():
        assert (np.asarray(state["parameters"][name]).tobytes() == w.tobytes()) == (name in stay), name
    norms = dict(zip(sorted(begin), np.asarray(seen["gradient_norms"]), strict=True))
    others = np.sqrt(sum(float(n) ** 2 for name, n in norms.items() if name not in stay))
    np.testing.assert_allclose(seen["gradient_norm"], others, rtol=1e-5)
    assert others < 0.9 * np.linalg.norm(list(norms.values()))


def test_what_is_not_finite_changes_nothing() -> None:
    step, state = trained.step_of("llama"), begun("llama")
    broken = {**state["parameters"], "model.norm.weight": state["parameters"]["model.norm.weight"].at[0].set(np.nan)}
    state = {**state, "parameters": broken}
    before = jax.tree.map(np.asarray, state)
    state, seen = step(state, trained.batches(2, 2, 24), trained.key())
    assert np.isnan(seen["loss"])
    assert np.isnan(np.asarray(seen["gradient_norms"])).any()
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, state), before)


def test_matrices_are_computed_in_bfloat16_and_kept_in_float32() -> None:
    step = make_step(trained.model("llama", "bfloat16"), CausalLM(), AdamW(rate=1e-5, clip=None), steps=9)
    state, seen = step(begun("llama"), trained.batches(1, 2, 24), trained.key())
    _, in_float32 = trained.step_of("llama")(begun("llama"), trained.batches(1, 2, 24), trained.key())
    assert {a.dtype for a in jax.tree.leaves(state["parameters"])} == {np.dtype("float32")}
    assert seen["loss"] != in_float32["loss"]
    np.testing.assert_allclose(seen["loss"], in_float32["loss"], rtol=0.02)
    np.testing.assert_allclose(seen["gradient_norm"], in_float32["gradient_norm"], rtol=0.05)
    moved = state["parameters"]["model.norm.weight"] - trained.parameters("llama")["model.norm.weight"]
    assert 0 < np.abs(moved).max() < 2e-5  # less than bfloat16 can tell apart there


def test_rates_over_a_run() -> None:
    share = lambda s, steps: [round(float(s.share(i, steps)), 4) for i in range(steps)]  # noqa: E731
    assert share(Schedule("constant"), 3) == [1, 1, 1]
    assert share(Schedule("constant", warmup=2, cooldown=4), 8) == [0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert share(Schedule("linear", warmup=0.25, floor=0.4), 8) == [0.5, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.5]
    assert share(Schedule("cosine"), 4) == [1, 0.8536, 0.5, 0.1464]
    assert [p.where for p in Schedule("constant", warmup=5, cooldown=0.6).problems(9)] == ["warmup"]
