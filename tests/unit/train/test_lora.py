"""Adapters around every family, over plain and packed weights: what they begin as, that they learn, what comes out."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import MemoryStore
from plugins.live.trees import dequantize, quantize
from plugins.models.family import family_of
from plugins.train.lora import A, B, Lora
from plugins.train.objectives import CausalLM
from plugins.train.optimizers import AdamW
from plugins.train.step import Step, make_step
from tests.cases import model_runs, trained
from tests.unit.train.test_qat import one_layer

KINDS = {"llama": "mxfp4", "gpt_oss": None, "qwen3_moe": "int8"}
LORA = Lora(rank=4, alpha=8.0, ranks={"*q_proj*": 2}, rslora=True)


def parameters_of(kind: str, **options: Any) -> Any:
    config = {**trained.CONFIGS[kind], **options}
    return family_of(config, model_runs.engine().families).parameters(config)


@cache
def frozen(kind: str) -> dict[str, Any]:
    """The weights, matrices of layers packed where `KINDS` says how; 24 rows of experts fit no block of 32."""
    held = {n: jnp.asarray(w) for n, w in trained.parameters(kind, **one_layer(kind)).items()}
    if (quant := KINDS[kind]) is None:
        return held
    rules = (
        {"*down_proj*": "keep", "*_proj.weight": "quant"}
        if kind == "qwen3_moe"
        else {"*self_attn*proj.weight": "quant"}
    )
    found: dict[str, Any] = quantize(held, quant, rules)
    return found


def whole(kind: str) -> dict[str, Any]:
    """What the weights stand for, in memory of its own: a step uses up what it begins with."""
    return {n: jnp.array(w, copy=True) for n, w in dequantize(frozen(kind), jnp.float32).items()}


def around(kind: str, lora: Lora = LORA, **options: Any) -> Step:
    model = trained.model(kind, **options)
    model.ops = lora.ops(model.ops)
    leaves = partial(lora.leaves, parameters=parameters_of(kind, **options), specs={})
    return make_step(model, CausalLM(), AdamW(rate=3e-2, decay=0.0), steps=100, leaves=leaves)


@cache
def step_of(kind: str) -> Step:
    return around(kind, **one_layer(kind))


@cache
def plain_of(kind: str) -> Step:
    return make_step(trained.model(kind, **one_layer(kind)), CausalLM(), AdamW(), steps=100)


def after(kind: str, count: int) -> tuple[Any, list[dict[str, Any]]]:
    step = step_of(kind)
    state, seen = step.init(LORA.begin(parameters_of(kind, **one_layer(kind)), 5)), []
    for _ in range(count):
        state, figures = step(state, trained.batches(2, 2, 24), trained.key(), frozen(kind))
        seen.append(
            {**figures, "norms": dict(zip(sorted(state["parameters"]), figures["gradient_norms"], strict=True))}
        )
    return state, seen


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.brief("llama", "gpt_oss")
def test_they_begin_as_nothing_and_learn(kind: str) -> None:
    """b is zero, so that at first only b has a gradient; then all of both have one."""
    _, seen = after(kind, 6)
    plain = plain_of(kind)
    _, of_base = plain(plain.init(whole(kind)), trained.batches(2, 2, 24), trained.key())
    np.testing.assert_allclose(seen[0]["loss"], of_base["loss"], rtol=1e-5)
    assert all((norm == 0) == name.endswith(A) for name, norm in seen[0]["norms"].items())
    assert all(norm > 0 for norm in seen[1]["norms"].values())
    losses = [float(s["loss"]) for s in seen]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.brief("llama", "gpt_oss")
def test_merged_weights_compute_the_same(kind: str) -> None:
    state, _ = after(kind, 2)
    parameters, names = parameters_of(kind, **one_layer(kind)), {}
    base = whole(kind)
    for p in parameters:
        value = base[p.name]
        names |= {n: np.asarray(value[i] if p.stack else value) for i, n in enumerate(p.names)}
    specs = {n: TensorSpec(v.shape, "F32") for n, v in names.items()}
    checkpoint = Checkpoint(MemoryStore(names), config={}, files={}, inputs=(), stored={})
    arrays = {n: np.asarray(w) for n, w in state["parameters"].items()}
    store = LORA.weights(
        arrays, checkpoint, parameters, specs=specs,
        cast=Kernel("cast", ("numpy",)), unpack=Kernel("dequantize", ("numpy",)),
    )  # fmt: skip
    merged = {}
    for p in parameters:
        read = [store.read(n) for n in p.names]
        merged[p.name] = jnp.asarray(np.stack(read) if p.stack else read[0])
    changed = [n for n, w in merged.items() if not np.array_equal(w, base[n])]
    assert changed == [p.name for p in parameters if p.name.endswith(("_proj.weight", "_proj"))]
    for p in parameters:  # a box is the same part of the whole
        name, shape = p.names[-1], specs[p.names[-1]].shape
        box = tuple(slice(n // 4, n // 2 + 1) for n in shape)
        np.testing.assert_allclose(store.read(name, box), store.read(name)[box], rtol=1e-5, atol=1e-6)
    plain = plain_of(kind)
    _, of_merged = plain(plain.init(merged), trained.batches(2, 2, 24), trained.key())
    _, of_adapted = step_of(kind)(state, trained.batches(2, 2, 24), trained.key(), frozen(kind))
    np.testing.assert_allclose(of_adapted["loss"], of_merged["loss"], rtol=1e-5)


def test_they_begin_as_peft_does_and_by_their_names() -> None:
    begun = LORA.begin(parameters_of("gpt_oss"), 5)
    a = begun["model.layers.0.mlp.experts.down_proj" + A]
    assert a.shape == (4, 4, 48)
    assert 0.9 * 48**-0.5 < np.abs(a).max() <= 48**-0.5
    assert begun["model.layers.1.self_attn.q_proj" + A].shape == (2, 32)
    assert begun["model.layers.1.self_attn.q_proj" + B].shape == (32, 2)
    fewer = Lora(rank=4, targets=("*.1.mlp.experts.down_proj",)).begin(parameters_of("gpt_oss"), 5)
    assert list(fewer) == ["model.layers.1.mlp.experts.down_proj" + A, "model.layers.1.mlp.experts.down_proj" + B]
    np.testing.assert_array_equal(*(b["model.layers.1.mlp.experts.down_proj" + A] for b in (begun, fewer)))
    other = LORA.begin(parameters_of("gpt_oss"), 6)
    assert (other["model.layers.0.mlp.experts.down_proj" + A] != a).any()


@pytest.mark.repeats
def test_dropout_is_for_updates_only_and_another_each_time() -> None:
    lora = Lora(rank=4, dropout=0.5, targets=("*self_attn.v_proj.weight",))
    step = around("llama", lora, **one_layer("llama"))
    begun = lora.begin(parameters_of("llama", **one_layer("llama")), 0)
    begun = {n: w if n.endswith(A) else np.ones_like(w) for n, w in begun.items()}
    batch = {n: a[0] for n, a in trained.batches(1, 2, 24).items()}

    def loss(key: Any) -> float:
        model = step.bound.model(step.gradients.leaves(begun, frozen("llama"), key))
        return float(step.gradients.objective.sums(model, batch, key)[0])

    keys = [jax.random.key(0), jax.random.key(0), jax.random.key(1), None]
    a, b, c, without = map(loss, keys)
    assert a == b
    assert len({a, c, without}) == 3


def test_what_is_wrong_is_said_at_once() -> None:
    lora = Lora(targets=("*q_prj.weight", "*embed_tokens.weight", "*v_proj.weight"), ranks={"*x_proj*": 3})
    problems = [str(p) for p in lora.problems(parameters_of("llama"), {})]
    assert len(problems) == 3
    assert problems[0].startswith("targets: '*q_prj.weight' matches no parameter (allowed: model.layers.")
    assert problems[1].startswith("model.embed_tokens.weight: is in targets")
    assert problems[2].startswith("ranks: '*x_proj*' matches no parameter")
    [short] = map(str, Lora(targets=("q_proj",)).problems(parameters_of("llama"), {}))  # as PEFT takes it
    assert short == "targets: 'q_proj' matches no parameter; patterns are of whole names: '*.q_proj.weight' matches"
    with pytest.raises(PlanError) as caught:
        Lora(rank=0, alpha=0, dropout=1.0, targets=())
    assert len(str(caught.value).splitlines()) == 4
