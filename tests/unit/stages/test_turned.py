"""Inputs rotated in blocks, and the weights with them: models are what they were, and what is rounded is rotated."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PlanError, StageError
from pipeline.mesh import Mesh
from pipeline.ops import Kernel
from pipeline.rotated import TurnedStatistics
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.rotation import Turned, blocks
from pipeline.testing.memory import MemoryStore, quantized
from plugins.engine.load import fill
from plugins.models.common.rounding import Fed, MatMul, MoE, Turn, Turner
from plugins.quant.gptq import Gptq
from plugins.quant.hadamard import Hadamard
from stages.quantize import Quantize
from tests.cases.quantized import quant_method
from tests.sharding import models
from tests.unit.engine.test_activations import rounder
from tests.unit.stages.test_smooth import MATRICES, Seen, seen

INT8, INT4 = quant_method("int8"), replace(quant_method("int4"), block_elems=32)
BY = Hadamard(16, seed=3)
DOWN = "model.layers.0.mlp.down_proj.weight"


def matrix(width: int) -> Any:
    """What rows of `width` are multiplied by."""
    return BY.apply(np.eye(width, dtype=np.float32))


def coded(plain: Checkpoint, method: Any = INT8, **more: Any) -> Checkpoint:
    kind = plain.config["model_type"]
    rules = [Rule("quant", p) for p in (MATRICES if kind == "gpt_oss" else MATRICES[:1])]
    return Quantize(method, tuple(rules), turn=BY, **more).run(Context(Path()), plain)


@pytest.mark.parametrize("kind", ["llama", "smollm2", "gemma3", "qwen3_moe", "gpt_oss"])
def test_a_model_stays_what_it_was(kind: str) -> None:
    """Beside one with the same values rotated back, whose inputs are as they are: fp32 logits to 1e-4 of the largest.
    Without the operation in the model nothing is left of it."""
    found = coded(models.checkpoint(kind))
    assert found.turned is not None
    packed = {n for n, s in found.store.specs.items() if s.scheme is not None}
    assert found.turned.names == packed
    assert len(packed) >= 4
    tensors = {n: found.store.read(n) for n in found.store.specs}
    for name in packed:
        values = INT8.decode(tensors[name], "F32")
        tensors[name] = values @ matrix(values.shape[-1]).T
    back = replace(found, store=MemoryStore(tensors), turned=None)
    without = replace(found, turned=None)
    logits = [models.model(kind, of=of).runtime.forward(models.IDS, models.POSITIONS) for of in (found, back, without)]
    assert models.apart(logits[0], logits[1]) < 1e-4
    assert models.apart(logits[2], logits[1]) > 0.1


def test_codes_are_of_rotated_weights_by_rotated_inputs(tmp_path: Path) -> None:
    plain = seen("llama")
    w, width = plain.store.read(DOWN).astype(np.float32), 256
    found = coded(plain, INT4).store.read(DOWN)
    np.testing.assert_array_equal(found.codes, INT4.encode(w @ matrix(width)).codes)
    x = plain.statistics.x(width) @ matrix(width)  # type: ignore[union-attr]
    gptq = coded(plain, INT4, calibrate=Gptq()).store.read(DOWN)
    assert not np.array_equal(gptq.codes, found.codes)
    lost = [float(np.sum(((INT4.decode(q, "F32") - w @ matrix(width)) @ x.T) ** 2)) for q in (found, gptq)]
    assert lost[1] < 0.7 * lost[0]


def test_statistics_are_of_rotated_inputs() -> None:
    before = Seen({"a": np.zeros((3, 5, 64)), "b": np.zeros((5, 64))})
    after = TurnedStatistics(before, Turned(BY, frozenset("a")))
    assert "a" in after
    assert "c" not in after
    assert after.of("b").hessian().tolist() == before.of("b").hessian().tolist()  # type: ignore[union-attr, misc]
    was, found = before.of("a"), after.of("a")
    assert was is not None
    assert found is not None
    for e in range(3):
        x = before.x(64, e) @ matrix(64)
        np.testing.assert_allclose(found.sample(e), x, atol=1e-4)  # type: ignore[misc]
        h = found.hessian(e)  # type: ignore[misc]
        np.testing.assert_allclose(h, x.T @ x / len(x), atol=1e-4 * np.abs(h).max())
        np.testing.assert_allclose(
            found.mean_square[e].reshape(4, 16).sum(1), np.diag(h).reshape(4, 16).sum(1), rtol=1e-3
        )
        assert not np.allclose(h, was.hessian(e), atol=0.1 * np.abs(h).max())  # type: ignore[misc]
    assert np.isnan(found.absmax).all()


def fed(shape: tuple[int, ...], seed: int = 0, by: Any = BY) -> Fed:
    return Fed.of(quantized(INT8.scheme, shape, seed=seed), None, Turn(by))  # type: ignore[arg-type]


def test_inputs_are_rotated_and_then_rounded_each_by_what_came_with_its_weight() -> None:
    kernel, by = Kernel("matmul", ("xla",)), rounder("mxfp4")
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    x[:, 5] *= 40
    a, b, other = fed((8, 64)), fed((4, 64), 1), fed((2, 64), 2, Hadamard(32))
    bare = quantized(INT8.scheme, (2, 64), seed=4)  # type: ignore[arg-type]
    np.testing.assert_allclose(
        np.concatenate([*blocks(BY, 64)[1]]).reshape(16, 16), matrix(64)[16:32, 16:32], atol=1e-6
    )
    turned = x @ matrix(64)
    np.testing.assert_allclose(Turner().before(a)(x), turned, atol=1e-5)
    matmul = MatMul(kernel, by)
    np.testing.assert_allclose(matmul(x, a), kernel(by(turned), a.bare), rtol=1e-5, atol=1e-4)
    found = matmul.together((x, a), (x, b), (x, other), (x, bare))
    wanted = [by(turned), by(turned), by(Hadamard(32).apply(x)), by(x)]
    for y, xs, w in zip(found, wanted, (a.bare, b.bare, other.bare, bare), strict=True):
        np.testing.assert_allclose(y, kernel(xs, w), rtol=1e-5, atol=1e-4)


def test_gate_and_up_are_rotated_both_or_neither() -> None:
    x, none = np.ones((2, 64), np.float32), (None, None)
    rest = (np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32))
    w_in = (fed((3, 32, 64)), quantized(INT8.scheme, (3, 32, 64), seed=1))  # type: ignore[arg-type]
    with pytest.raises(StageError, match="one of them alone is rotated"):
        MoE(Kernel("moe", ("xla",)), Turner())(x, *rest, w_in, none, fed((3, 64, 32)), None, activation=np.multiply)


def test_what_cannot_be_is_said() -> None:
    plain = models.checkpoint("llama")
    found = coded(plain)
    with pytest.raises(PlanError, match=r"down_proj\.weight: blocks of 512 do not divide 256 channels"):
        Quantize(INT8, (Rule("quant", "*down_proj.weight"),), turn=Hadamard(512)).run(Context(Path()), plain)
    replace(models.engine(), mesh=Mesh({"data": 2}, {"batch": "data"}, {}, 1.0)).plan(found, text=False)
    with pytest.raises(
        PlanError, match=r"down_proj\.weight: .* over tensor, 8 on each device, and blocks of 16 are rotated"
    ):
        replace(models.engine(), mesh=Mesh({"tensor": 32}, {"mlp": "tensor"}, {}, 1.0)).plan(found, text=False)
    model = models.model("llama", of=found)
    own = model.runtime._model(model.runtime._leaves)
    kernels = {"cast": models.engine().cast, "unpack": models.engine().unpack}
    with pytest.raises(StageError, match="is rotated, and so are inputs in models that evaluate and generate"):
        fill(own, found, model.runtime.where, **kernels)
