"""Scales of inputs that were made before: of calibration, and in models, whose every product takes the right one."""

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.calibrated import calibrated, scale
from pipeline.calibration import LinearStatistics
from pipeline.coded_store import CodedStore
from pipeline.errors import ConfigError, PlanError, StageError
from pipeline.ops import Kernel
from pipeline.rules import Rule
from pipeline.stage import Context
from pipeline.tensors.inputs import InputScales, as_one
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.memory import quantized
from plugins.engine import load
from plugins.models.common.rounding import Fed, MatMul, MoE, Rounder
from stages.quantize import Quantize
from tests.cases.quantized import quant_method
from tests.sharding import models
from tests.unit.engine.test_activations import rounder
from tests.unit.stages.test_smooth import MATRICES, Seen

int8, fp8, nvfp4 = (partial(quant_method, name) for name in ("int8", "fp8_e4m3", "nvfp4"))


class Known:
    """Statistics of two experts' inputs, of which the second saw nothing; and of what a plan knows."""

    x = np.arange(-200, 200, dtype=np.float32).reshape(50, 8)

    def __contains__(self, name: object) -> bool:
        return name in ("experts", "plan", "unkept")

    def of(self, name: str) -> LinearStatistics | None:
        if name == "plan":
            return None
        most = np.stack([np.abs(self.x).max(0), np.zeros(8, np.float32)])
        samples = None if name == "unkept" else lambda e: (self.x, np.zeros_like(self.x))[e]
        return LinearStatistics(np.array([50, 0]), most**2, most, None, samples)


def test_scales_are_those_that_the_method_makes_of_the_largest_value() -> None:
    names = ("experts", "plan", "other")
    found = calibrated(Known(), names, int8())
    assert [*found.values] == ["experts", "plan"]
    assert found.values["experts"] == np.float32(200) / np.float32(127)
    assert np.isnan(found.values["plan"])
    assert found.scheme == Scheme("int8", 0, "f32", block_rows=0)
    with pytest.raises(KeyError):
        found.values["other"]
    assert calibrated(Known(), names, fp8()).values["experts"] == np.float32(200) / np.float32(448)
    direct = quant_method("nvfp4", "quant.second=f32")
    assert calibrated(Known(), names, direct).values["experts"] == np.float32(200) / np.float32(448 * 6)
    inverse = calibrated(Known(), names, quant_method("nvfp4", "quant.second=inverse_f32"))
    assert inverse.values["experts"] == np.float32(448 * 6) / np.float32(200)
    assert scale(int8(), 0.0) == np.float32(1) / np.float32(127), "of nothing but zeros"


def test_a_quantile_is_of_values_that_experts_saw() -> None:
    found = calibrated(Known(), ("experts", "unkept"), int8(), 0.9)
    wanted = np.float32(np.quantile(np.abs(Known.x), 0.9))
    assert found.values["experts"] == wanted / np.float32(127)
    with pytest.raises(StageError, match=r"unkept: .*calibrate\.samples=256"):
        found.values["unkept"]


def test_what_shares_inputs_takes_the_scale_that_saturates_nothing() -> None:
    values = {"a": 0.5, "b": 2.0}
    assert InputScales(as_one(int8().scheme), values).of(("a", "b")) == 2.0  # type: ignore[arg-type]
    inverse = Scheme("e2m1", 16, "e4m3", second="inverse_f32")
    assert InputScales(inverse, values).of(("a", "b")) == 0.5
    assert InputScales(inverse, values).fits(nvfp4().scheme)  # type: ignore[arg-type]
    assert not InputScales(inverse, values).fits(int8().scheme)  # type: ignore[arg-type]
    for name in ("mxfp4", "mxfp8_e4m3", "int4"):
        with pytest.raises(ConfigError, match="activations_scales=dynamic"):
            as_one(quant_method(name).scheme)  # type: ignore[arg-type]


def under(s: float) -> Rounder:
    return replace(rounder("int8"), fed=True, scale=s)


def fed(shape: tuple[int, ...], s: float, seed: int = 0) -> Fed:
    return Fed.of(quantized(MXFP4, shape, seed=seed), s)


def test_products_are_of_inputs_under_the_scale_that_came_with_a_weight() -> None:
    by, kernel = replace(rounder("int8"), fed=True), Kernel("matmul", ("xla",))
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    a, b, plain = fed((8, 64), 0.01), fed((4, 64), 0.03, seed=1), np.ones((2, 64), np.float32)
    matmul = MatMul(kernel, by)
    found = jax.jit(lambda x: [matmul(x, a), *matmul.together((x, a), (x, b), (x, plain))])(x)
    told = ((0.01, a.bare), (0.03, a.bare), (0.03, b.bare), (None, plain))
    wanted = jax.jit(lambda x: [kernel(x if s is None else under(s)(x), w) for s, w in told])(x)
    for y, z in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(y, z)
    with pytest.raises(AttributeError):
        matmul(x, a.bare)
    again = jax.jit(lambda w: w)(a)
    assert (type(again), again.inputs) == (Fed, 0.01)


def test_experts_round_both_sides_under_theirs() -> None:
    by, kernel = replace(rounder("int8"), fed=True), Kernel("moe", ("xla",))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    chosen, weights = np.array([[0, 2], [1, 0], [2, 1]], np.int32), rng.random((3, 2)).astype(np.float32)
    w_in, w_out = fed((3, 32, 64), 0.02, seed=2), fed((3, 64, 32), 0.5, seed=3)
    rest = (chosen, weights, (w_in,), (None,), w_out, None)
    found = np.asarray(jax.jit(lambda x: MoE(kernel, by)(x, *rest, activation=jax.numpy.abs))(x))
    bare = (chosen, weights, (w_in.bare,), (None,), w_out.bare, None)

    def as_told(x: Any) -> Any:
        return kernel(under(0.02)(x), *bare, activation=lambda h: under(0.5)(jax.numpy.abs(h)))

    wanted = jax.jit(as_told)(x)
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-6, atol=1e-6 * np.abs(found).max())


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "gpt_oss"])
@pytest.mark.brief("gpt_oss")
def test_every_packed_parameter_has_its_own(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names of what lies in it; and each is what rounds before it."""
    plain = models.checkpoint(kind)
    names = {n for n in plain.store.specs if any(fnmatchcase(n, p) for p in MATRICES)}
    plain = replace(plain, statistics=Seen({n: plain.store.specs[n] for n in names}))
    rules = tuple(Rule("quant", p) for p in (MATRICES if kind == "gpt_oss" else MATRICES[:1]))
    checkpoint = Quantize(int8(), rules, inputs=int8()).run(Context(tmp_path), plain)
    scales = checkpoint.input_scales
    assert scales is not None
    engine = replace(models.engine(), activations=int8(), activations_scales="calibrated")
    engine.plan(checkpoint, text=False)
    used: set[float] = set()
    call = Rounder.__call__
    monkeypatch.setattr(Rounder, "__call__", lambda self, x: (used.add(self.scale), call(self, x))[1])
    model = engine.load(checkpoint)
    model.runtime.forward(models.IDS, models.POSITIONS)
    packed = [p for p in load.parameters(model.runtime._model(model.runtime._leaves)) if p.spec.scheme is not None]
    wanted = {p.names: max(scales.values[n] for n in p.names) for p in packed}
    assert {p.names: p.get_value().inputs for p in packed} == wanted
    assert used == {*wanted.values()}
    assert len(used) > 1


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    plain = models.checkpoint("smollm2")
    packed = replace(
        plain, store=CodedStore(plain.store, {n: int8() for n in plain.store.specs if "_proj" in n}, False)
    )
    engine = replace(models.engine(), activations=int8(), activations_scales="calibrated")
    engine.plan(plain, text=False)  # nothing is packed: nothing is rounded
    with pytest.raises(PlanError, match="the source has no scales of inputs, and no stage has looked"):
        engine.plan(packed, text=False)
    few = InputScales(as_one(int8().scheme), {n: 1.0 for n in plain.store.specs if "_proj" in n and ".1." in n})  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"nothing is known of the inputs of model\.layers\.0"):
        engine.plan(replace(packed, input_scales=few), text=False)
    other = InputScales(as_one(fp8().scheme), few.values)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="has scales of inputs for e4m3"):
        engine.plan(replace(packed, input_scales=other), text=False)
    with pytest.raises(ConfigError, match="activations_scales=dynamic"):
        replace(models.engine(), activations=quant_method("mxfp4"), activations_scales="calibrated")
    stats = replace(plain, statistics=Seen(plain.store.specs))
    with pytest.raises(PlanError, match=r"1\.5 is no share between 0 and 1"):
        Quantize(int8(), (Rule("quant", "*_proj.weight"),), inputs=int8(), quantile=1.5).run(Context(tmp_path), stats)
