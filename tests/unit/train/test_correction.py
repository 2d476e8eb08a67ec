"""Adapters that begin with what packing loses: the best of their rank, weighed by inputs, which are looked at."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.rules import Rule
from pipeline.stage import Checkpoint
from pipeline.tensors.qtensor import QTensor
from pipeline.testing.memory import MemoryStore
from plugins.models.family import family_of
from plugins.quant.blockwise import Blockwise
from plugins.train.correction import correction
from plugins.train.inputs import sizes
from plugins.train.lora import A, B, Lora
from plugins.train.packing import Packing
from tests.cases import model_runs, trained
from tests.cases.quantized import quant_method
from tests.unit.train.test_lora import around

INT4 = Blockwise("int4", 8, "f32", scale_rule="amax")


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (6, 40)])
@pytest.mark.parametrize("weighed", [False, True])
def test_no_other_of_its_rank_leaves_less(shape: tuple[int, int], weighed: bool) -> None:
    rng = np.random.default_rng(0)
    lost = rng.standard_normal(shape).astype(np.float32)
    by = rng.uniform(0.1, 10, shape[1]).astype(np.float32) if weighed else None
    b, a = correction(lost, by, 5, [1])
    assert (b.shape, a.shape) == ((shape[0], 5), (5, shape[1]))
    left = np.linalg.norm((lost - b @ a) * (1 if by is None else by))
    best = np.linalg.svd(lost * (1 if by is None else by), compute_uv=False)[5:]
    assert left == pytest.approx(np.linalg.norm(best), rel=2e-3)


def test_a_rank_that_nothing_is_left_for_and_inputs_that_never_come() -> None:
    lost = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    by = np.ones(16, np.float32)
    by[4] = 0
    for sizes_ in (by, np.zeros(16, np.float32), None):
        b, a = correction(lost, sizes_, 7, [1])
        assert (b.shape, a.shape) == ((3, 7), (7, 16))
        np.testing.assert_allclose(b @ a, lost, atol=1e-4)


def test_inputs_are_those_of_the_model() -> None:
    """Of the first norm of a model without attention's help: embeddings under their norm; padding does not count."""
    kind, name = "llama", "model.layers.0.self_attn.q_proj.weight"
    step, batches = around(kind), trained.batches(1, 2, 24)
    batch = {n: np.array(a[0]) for n, a in batches.items()}
    batch["segments"][1, 10:] = 0
    held = {n: jnp.asarray(w) for n, w in trained.parameters(kind).items()}
    names = [name, name.replace("q_proj", "k_proj"), "model.layers.1.mlp.down_proj.weight"]
    found = sizes(step, held, names, [batch, batch])
    assert sorted(found) == sorted(names)
    x = trained.parameters(kind)["model.embed_tokens.weight"][batch["tokens"]]
    x = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + trained.CONFIGS[kind]["rms_norm_eps"])
    x = (x * trained.parameters(kind)["model.layers.0.input_layernorm.weight"])[batch["segments"] > 0]
    expected = np.sqrt(np.mean(np.square(x), axis=0))
    np.testing.assert_allclose(found[name], expected, rtol=1e-4)
    np.testing.assert_array_equal(found[names[1]], found[name])
    assert found[names[2]].shape == (48,)


def checkpoint_of(kind: str) -> tuple[Checkpoint, Any]:
    parameters = family_of(trained.CONFIGS[kind], model_runs.engine().families).parameters(trained.CONFIGS[kind])
    held = trained.parameters(kind)
    tensors = {
        n: np.asarray(held[p.name][i] if p.stack else held[p.name]) for p in parameters for i, n in enumerate(p.names)
    }
    return Checkpoint(MemoryStore(tensors), config=trained.CONFIGS[kind], files={}, inputs=(), stored={}), parameters


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "qwen3_moe"])
def test_adapters_begin_with_what_is_lost(kind: str) -> None:
    """The weights with them are nearer to what they were than without; with all of the rank they are what they were."""
    checkpoint, parameters = checkpoint_of(kind)
    rules = (Rule(match="*_proj.weight"), *((Rule(match="*_proj"),) if kind == "gpt_oss" else ()))
    lora = Lora(rank=4, alpha=6.0, ranks={"*layers.1.*": 48}, init="error", packing=Packing(INT4, rules))
    asked: list[Any] = []

    def inputs(names: Any, count: int) -> dict[str, Any]:
        asked.append((names, count))
        shapes = {p.name: p.shape[-1] for p in parameters}
        return {n: np.linspace(0.5, 2, shapes[n], dtype=np.float32) for n in names if "down_proj" not in n}

    begun = lora.begin(parameters, 3, checkpoint, inputs)
    assert {n: w.shape for n, w in begun.items()} == dict(lora.trained(parameters))
    ((names, count),) = asked
    assert (len(names), count) == (len(begun) // 2, 8)
    packed = lora.base(checkpoint).store
    for layer in lora.layers(begun, parameters):
        for name in layer.names:
            w, q = checkpoint.store.read(name), packed.read(name)
            assert isinstance(q, QTensor)
            lost = w - INT4.decode(q, "F32")
            left = lost - layer.delta(name, tuple(slice(0, n) for n in w.shape))
            if "layers.1." in name:
                np.testing.assert_allclose(left, 0, atol=1e-4)
            else:
                assert np.linalg.norm(left) < 0.97 * np.linalg.norm(lost), name
    said = [str(problem) for problem in lora.mesh_problems(parameters, {}, {}, len)]
    assert said == ["train.transform.init: error is for one device so far; zero, or mesh=single"]
    assert list(replace(lora, init="zero").mesh_problems(parameters, {}, {}, len)) == []
    plain = replace(lora, packing=None).begin(parameters, 3)
    assert all(not w.any() for n, w in plain.items() if n.endswith(B))
    assert all(w.any() for n, w in plain.items() if n.endswith(A))


def test_a_tensor_that_is_not_packed_begins_with_nothing() -> None:
    checkpoint, parameters = checkpoint_of("llama")
    packing = Packing(quant_method("mxfp4"), (Rule(match="*q_proj.weight"),))
    begun = Lora(rank=4, init="error", packing=packing).begin(parameters, 3, checkpoint, lambda names, count: {})
    for name, w in begun.items():
        assert w.any() == (name.endswith(A) or "q_proj" in name), name
