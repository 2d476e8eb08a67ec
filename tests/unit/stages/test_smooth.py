"""Scaling channels before they are quantized: less is lost, nothing changes before, and what cannot be is said."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.calibration import LinearStatistics, Multiplied
from pipeline.coded_store import CodedStore
from pipeline.errors import ConfigError, PlanError
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.topology import Channels
from plugins.quant.awq import Awq
from plugins.quant.gptq import Gptq
from plugins.quant.smoothquant import SmoothQuant
from stages.alone import apart
from stages.calibrate import likely
from stages.quantize import Quantize
from stages.smooth import Smooth
from tests.cases.quantized import quant_method
from tests.sharding import models
from tests.unit.quant.test_calibrated import inputs

INT8 = quant_method("int8")
INT4 = replace(quant_method("int4"), block_elems=32)
MATRICES = ("*_proj.weight", "*.experts.*_proj")


@dataclass(frozen=True)
class Seen:
    """Statistics of inputs whose columns differ much, the same of everything that is multiplied by the same."""

    names: Any
    hessian: bool = True

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def x(self, n: int, *expert: int) -> Any:
        return inputs(n, tokens=100, seed=n + sum(expert))

    def of(self, name: str) -> LinearStatistics | None:
        shape = self.names[name].shape
        xs = [self.x(shape[-1], *e) for e in np.ndindex(*shape[:-2])]
        lead = shape[:-2]

        def hessian(*expert: int) -> Any:
            x = self.x(shape[-1], *expert)
            return x.T @ x / len(x)

        return LinearStatistics(
            np.full(lead, 100), np.stack([np.square(x).mean(0) for x in xs]).reshape(*lead, -1),
            np.stack([np.abs(x).max(0) for x in xs]).reshape(*lead, -1), hessian if self.hessian else None,
            lambda *expert: self.x(shape[-1], *expert),
        )  # fmt: skip


def seen(kind: str, **more: Any) -> Checkpoint:
    plain = models.checkpoint(kind)
    return replace(plain, statistics=Seen({n: plain.store.specs[n] for n in likely(plain)}, **more))


def smooth(*rules: Rule, method: Any = INT4, smoother: Any = None) -> Smooth:
    chosen = rules or tuple(Rule("quant", pattern) for pattern in MATRICES[:1])
    found = Awq(grid=4) if smoother is None else smoother
    return Smooth(found, Quantize(method, chosen, smooth=found), models.engine().families)


def made(stage: Smooth, checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    for place in ("folder", "unfinished"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    return stage.run(Context(folder, folder=folder / "folder", unfinished=folder / "unfinished"), checkpoint)


def lost(checkpoint: Checkpoint, before: Checkpoint, name: str) -> float:
    """E‖(Ŵ - W)x‖² of a matrix that is to take int4, in what its channels are now."""
    stats = checkpoint.statistics.of(name)  # type: ignore[union-attr]
    w = checkpoint.store.read(name).astype(np.float32)
    off = INT4.decode(INT4.encode(w), "F32") - w
    return float(np.sum((off @ stats.hessian()) * off))  # type: ignore[union-attr, misc]


@pytest.mark.parametrize("hessian", [True, False])
def test_rounding_loses_less_and_the_model_is_what_it_was(tmp_path: Path, hessian: bool) -> None:
    plain = seen("llama", hessian=hessian)
    found = made(smooth(), plain, tmp_path)
    assert {*found.report["channels"]} == {c for c in found.report["channels"] if c in plain.store.specs}
    assert len(found.report["channels"]) == 8
    assert all(of["loss"] < 0.9 for of in found.report["channels"].values())
    if hessian:
        for name in ("q_proj", "k_proj", "v_proj"):
            name = f"model.layers.0.self_attn.{name}.weight"
            assert lost(found, plain, name) < lost(plain, plain, name)
    logits = [models.model("llama", of=of).runtime.forward(models.IDS, models.POSITIONS) for of in (plain, found)]
    assert models.apart(logits[1], logits[0]) < 1e-4


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
@pytest.mark.brief(1)
def test_experts_share_what_their_norm_and_router_take(tmp_path: Path, kind: str) -> None:
    plain = seen(kind)
    found = made(
        smooth(*(Rule("quant", p) for p in (MATRICES if kind == "gpt_oss" else MATRICES[:1]))), plain, tmp_path
    )
    router = f"model.layers.0.mlp.{'router' if kind == 'gpt_oss' else 'gate'}.weight"
    assert router in found.folded["smooth"].names
    assert not np.array_equal(found.store.read(router), plain.store.read(router))
    logits = [models.model(kind, of=of).runtime.forward(models.IDS, models.POSITIONS) for of in (plain, found)]
    assert models.apart(logits[1], logits[0]) < 1e-4


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "qwen3_moe", "gemma3", "gpt_oss"])
@pytest.mark.brief("qwen2", "qwen3_moe", "gemma3", "gpt_oss")
def test_smoothquant_leaves_the_model_what_it_was(tmp_path: Path, kind: str) -> None:
    """Of every family, whatever is between a norm and who reads it; and every input has fewer large channels."""
    plain = seen(kind)
    rules = [Rule("quant", p) for p in (MATRICES if kind == "gpt_oss" else MATRICES[:1])]
    found = made(smooth(*rules, method=INT8, smoother=SmoothQuant(alpha=0.8)), plain, tmp_path)
    assert len(found.report["channels"]) >= 4
    for channels in found.report["channels"]:
        assert found.report["channels"][channels]["most"] > 2
    logits = [models.model(kind, of=of).runtime.forward(models.IDS, models.POSITIONS) for of in (plain, found)]
    assert models.apart(logits[1], logits[0]) < 1e-4
    name = "model.layers.0.self_attn.q_proj.weight"
    spread = [float(np.ptp(np.log(of.statistics.of(name).absmax))) for of in (plain, found)]  # type: ignore[union-attr]
    assert spread[1] < 0.5 * spread[0]
    x = found.statistics.of(name).sample()  # type: ignore[union-attr, misc]
    np.testing.assert_allclose(np.abs(x).max(0), found.statistics.of(name).absmax, rtol=1e-6)  # type: ignore[union-attr]


def test_factors_of_no_use_are_not_taken() -> None:
    """A matrix that int4 holds exactly."""
    levels = np.random.default_rng(0).integers(-7, 8, (16, 64)).astype(np.float32)
    levels[:, ::32] = 7
    x = inputs(64)
    stats = LinearStatistics(np.asarray(400), np.square(x).mean(0), np.abs(x).max(0), lambda: x.T @ x)
    found = Awq(grid=4).factors(
        [Multiplied(levels, INT4, stats, np.abs(levels).max(0))], Channels("n", ("w",), None, False, 64, 64, 1)
    )
    assert found.loss == 0
    np.testing.assert_array_equal(found.factors, 1)


def test_a_killed_one_goes_on_with_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, asked = seen("smollm2"), []
    whole = made(smooth(), plain, tmp_path / "whole")
    factors = Awq.factors

    def counted(self: Awq, consumers: Any, channels: Any) -> Any:
        asked.append(channels.source)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return factors(self, consumers, channels)

    monkeypatch.setattr(Awq, "factors", counted)
    with pytest.raises(KeyboardInterrupt):
        made(smooth(), plain, tmp_path / "killed")
    again = made(smooth(), plain, tmp_path / "killed")
    assert len(asked) == 8 + 1  # the fourth twice
    for name in plain.store.specs:
        assert again.store.read(name).tobytes() == whole.store.read(name).tobytes()


def test_what_stays_packed_or_takes_nothing_is_left_alone(tmp_path: Path) -> None:
    plain = seen("smollm2")
    kept = "model.layers.0.self_attn.k_proj.weight"
    packed = replace(plain, store=CodedStore(plain.store, {kept: quant_method("int8")}, measure=False))
    stage = smooth(Rule("keep", kept), Rule("keep", "*.down_proj.weight"), Rule("quant", MATRICES[0]))
    assert {*made(stage, packed, tmp_path).report["channels"]} == {
        "model.layers.1.input_layernorm.weight", *(f"model.layers.{i}.self_attn.v_proj.weight" for i in (0, 1)),
        *(f"model.layers.{i}.post_attention_layernorm.weight" for i in (0, 1)),
    }  # fmt: skip
    none = smooth(method=quant_method("none"))
    assert made(none, plain, tmp_path / "none").folded["smooth"].names == frozenset()


def test_corrected_by_the_statistics_of_scaled_channels(tmp_path: Path) -> None:
    """awq+gptq: the stage behind takes XᵀX of divided inputs."""
    plain = seen("smollm2")
    found = made(smooth(), plain, tmp_path)
    name = "model.layers.0.mlp.gate_proj.weight"
    stage = replace(smooth().quantize, calibrate=Gptq())
    codes = stage.run(Context(tmp_path), found).store.read(name)
    w, stats = found.store.read(name), found.statistics.of(name)  # type: ignore[union-attr]
    wanted = Gptq().calibrated(INT4).encode(w, statistics=stats)
    np.testing.assert_array_equal(codes.codes, wanted.codes)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    plain = seen("smollm2")
    with pytest.raises(PlanError, match=r"the stage smooth, before quantize, does that"):
        smooth().quantize.run(Context(tmp_path), plain)
    with pytest.raises(PlanError, match="the stage calibrate, before smooth"):
        smooth().plan(replace(plain, statistics=None))
    with pytest.raises(PlanError, match=r"model_type 'strange': its family's `feeds` say so"):
        smooth().plan(replace(plain, config={**plain.config, "model_type": "strange"}))
    with pytest.raises(ConfigError, match="at least 1 of each"):
        Awq(grid=0)
    found = made(smooth(), plain, tmp_path)
    with pytest.raises(ConfigError, match=r"sensitivity looks at tensors one by one.*calibrate=gptq or imatrix"):
        apart(found, "sensitivity")
    apart(plain, "sensitivity")
