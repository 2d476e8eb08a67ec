"""Factors moved from tensors into those that multiply them: every family is the function that it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.calibration import LinearStatistics
from pipeline.folded import Scaled, ScaledStatistics, settled
from pipeline.hooks import optional
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.views import MappedStore
from pipeline.testing.memory import checkpoint as in_memory
from pipeline.topology import Channels, channels
from plugins.models.family import family_of
from stages.outline import FamilyHooks
from tests.sharding import models

UNPACK = Kernel("dequantize", ("numpy",))
COUNT = {"qwen3_moe": 2 * 3 + 1 + 12, "gpt_oss": 2 * 3}  # of two layers; Qwen's second one is dense


def all_channels(checkpoint: Checkpoint) -> tuple[Channels, ...]:
    family = family_of(checkpoint.config, models.engine().families)
    parameters = family.parameters(checkpoint.config)
    return channels(optional(family, FamilyHooks, "feeds"), checkpoint.store.specs, parameters)


def scaled(checkpoint: Checkpoint, place: Path, found: tuple[Channels, ...]) -> Checkpoint:
    """With factors from 1/8 to 8 in all of `found`."""
    rng, arrays = np.random.default_rng(3), dict[str, Any]()
    for one in found:
        factors = np.exp2(rng.uniform(-3, 3, one.count)).astype(np.float32)
        source = checkpoint.store.read(one.source)
        if source.ndim == 1:
            norm, factors = settled(factors, source, plus_one=one.plus_one)
            arrays[f"{one.source}/norm"] = norm.astype(np.float32)
        arrays[f"{one.source}/factors"] = factors
    np.savez(place, **arrays)
    return replace(checkpoint, store=MappedStore(checkpoint.store, Scaled(found, place, UNPACK)))


@pytest.mark.parametrize("kind", models.CONFIGS)
def test_a_model_stays_what_it_was(kind: str, tmp_path: Path) -> None:
    plain = models.checkpoint(kind)
    if kind == "gemma3":  # as files have norms
        tensors = plain.store.tensors  # type: ignore[attr-defined]
        plain = in_memory(
            {n: x.astype(ml_dtypes.bfloat16) if "norm" in n else x for n, x in tensors.items()}, config=plain.config
        )
    found = all_channels(plain)
    head = "lm_head.weight" in plain.store.specs  # which the last norm feeds
    assert len(found) == COUNT.get(kind, 2 * 4) + head
    changed = scaled(plain, tmp_path / "factors.npz", found)
    for one in found:
        assert not np.array_equal(changed.store.read(one.source), plain.store.read(one.source))
        assert changed.store.specs[one.source].dtype == (
            plain.store.specs[one.source].dtype if "norm" in one.source else "F32"
        )
    before, after = (models.model(kind, of=of).runtime.forward(models.IDS, models.POSITIONS) for of in (plain, changed))
    assert models.apart(after, before) < 1e-4


def test_boxes_are_those_of_the_whole(tmp_path: Path) -> None:
    plain = models.checkpoint("llama")
    changed = scaled(plain, tmp_path / "factors.npz", all_channels(plain)).store
    value = "model.layers.1.self_attn.v_proj"
    np.testing.assert_array_equal(
        changed.read(f"{value}.weight", (slice(3, 9), slice(16, 40))), changed.read(f"{value}.weight")[3:9, 16:40]
    )
    np.testing.assert_array_equal(changed.read(f"{value}.bias", (slice(3, 9),)), changed.read(f"{value}.bias")[3:9])


@pytest.mark.parametrize("plus_one", [False, True])
def test_a_norm_is_rounded_first_and_the_factors_are_what_that_makes_of_them(plus_one: bool) -> None:
    rng = np.random.default_rng(0)
    norm = (0.4 * rng.standard_normal(200) + (not plus_one)).astype(ml_dtypes.bfloat16)
    norm[:2] = (-1, -1) if plus_one else (0, 0)  # what is always 0
    wanted = np.exp2(rng.uniform(-3, 3, 200)).astype(np.float32)
    new, factors = settled(wanted, norm, plus_one=plus_one)
    assert new.dtype == norm.dtype
    np.testing.assert_array_equal(factors[:2], 1)
    np.testing.assert_allclose(factors[2:], wanted[2:], rtol=0.06 if plus_one else 0.004)
    was, is_ = (x.astype(np.float64) + plus_one for x in (norm, new))
    np.testing.assert_allclose(is_ * factors, was, rtol=1e-6)


def test_statistics_are_those_of_the_divided_inputs(tmp_path: Path) -> None:
    """Of grouped queries: `o_proj` has each head of `v_proj` four times."""
    plain = models.checkpoint("llama")
    one = next(c for c in all_channels(plain) if c.source.endswith("1.self_attn.v_proj.weight"))
    by = np.exp2(np.random.default_rng(1).uniform(-1, 1, one.count)).astype(np.float32)
    np.savez(tmp_path / "factors.npz", **{f"{one.source}/factors": by})
    x = np.random.default_rng(2).standard_normal((50, one.columns)).astype(np.float32)
    y = x / np.tile(by.reshape(2, 1, 16), (1, 4, 1)).reshape(-1)

    def of(x: Any) -> LinearStatistics:
        return LinearStatistics(np.asarray(50), np.square(x).mean(0), np.abs(x).max(0), lambda: x.T @ x / 50)

    class Kept(dict[str, LinearStatistics]):
        of = dict.get

    seen = ScaledStatistics(Kept({one.consumers[0]: of(x)}), Scaled((one,), tmp_path / "factors.npz", UNPACK))
    found = seen.of(one.consumers[0])
    assert found is not None
    assert found.hessian is not None
    for a, b in ((found.mean_square, np.square(y).mean(0)), (found.hessian(), y.T @ y / 50)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.absmax, np.abs(y).max(0), rtol=1e-5)
    assert seen.of("another") is None
