"""Hidden states rotated: families that allow it are what they were, and the others say what is in the way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.api import quant_method
from pipeline.coded_store import CodedStore
from pipeline.errors import ConfigError, PlanError
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.spec import numpy_dtype
from plugins.quant.hadamard import Hadamard
from stages.quantize import Quantize
from stages.rotate import Rotate
from tests.sharding import models

WIDTHS = (64, 2880, 576, 45)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("block", [None, 32])
def test_it_is_orthogonal_and_spreads_what_one_channel_has(width: int, block: int | None) -> None:
    rotation = Hadamard(block)
    if block is not None and width % block:
        said = rotation.problem(width)
        assert said is not None
        assert "1 is the largest" in said
        return
    assert rotation.problem(width) is None
    r = rotation.apply(np.eye(width, dtype=np.float32))
    np.testing.assert_allclose(r @ r.T, np.eye(width), atol=1e-5)
    x = np.random.default_rng(0).standard_normal((3, 2, width)).astype(np.float32)
    np.testing.assert_allclose(rotation.apply(x), x @ r, atol=1e-5)
    together = block or width & -width
    assert (np.abs(r) > 1e-9).sum(1).min() >= together
    assert np.abs(r).max() <= (1 if width == 45 else together**-0.5 + 1e-6)
    assert not np.array_equal(r, Hadamard(block, seed=1).apply(np.eye(width, dtype=np.float32)))


def rotated(checkpoint: Checkpoint, rotation: Any = None, **more: Any) -> Checkpoint:
    stage = Rotate(rotation or Hadamard(), models.engine().families, **more)
    return stage.run(Context(Path()), checkpoint)


@pytest.mark.parametrize("kind", [k for k in models.CONFIGS if k != "gemma3"])
@pytest.mark.brief("gpt_oss", "llama", "qwen3")
def test_a_model_stays_what_it_was(kind: str) -> None:
    plain = models.checkpoint(kind)
    found = rotated(plain)
    changed = {n for n, s in plain.store.specs.items() if "norm" not in n and len(s.shape) > 1 and "bias" not in n}
    for name in changed:
        assert not np.allclose(found.store.read(name), plain.store.read(name).astype(np.float32), atol=0.01), name
    assert "lm_head.weight" in found.store.specs
    assert not found.config.get("tie_word_embeddings")
    norms = [n for n in plain.store.specs if n.endswith("layernorm.weight")]
    assert norms
    assert all((found.store.read(n) == 1).all() for n in norms)
    logits = [models.model(kind, of=of).runtime.forward(models.IDS, models.POSITIONS) for of in (plain, found)]
    assert models.apart(logits[1], logits[0]) < 1e-4


def test_boxes_are_those_of_the_whole_packed_or_not() -> None:
    plain = models.checkpoint("gpt_oss")
    names = ("model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.experts.gate_up_proj")
    packed = replace(plain, store=CodedStore(plain.store, dict.fromkeys(names, quant_method("mxfp4")), measure=False))
    with pytest.raises(PlanError, match=r"allow_requantize=true unpacks them"):
        rotated(packed)
    for store in (rotated(plain).store, rotated(packed, allow_requantize=True).store):
        for name in (*names, "lm_head.weight", "model.layers.1.mlp.experts.down_proj_bias"):
            whole = store.read(name)
            box = tuple(slice(n // 4, n // 2) for n in whole.shape)
            np.testing.assert_allclose(store.read(name, box), whole[box], atol=1e-6)
        assert store.grain(names[0])[-2:] == (64, 1 if store.store.specs[names[0]].scheme is None else 32)
        assert store.grain(names[1])[-1] == 64


def test_what_is_quantized_is_what_is_rotated(tmp_path: Path) -> None:
    plain = models.checkpoint("smollm2")
    quantize = Quantize(quant_method("mxfp4"), (Rule("quant", "*_proj.weight"),), rotate=Hadamard())
    found = rotated(plain)
    name = "model.layers.1.mlp.down_proj.weight"
    codes = quantize.run(Context(tmp_path), found).store.read(name, (slice(8, 24), slice(32, 96)))
    wanted = quant_method("mxfp4").encode(found.store.read(name)[8:24, 32:96])
    np.testing.assert_array_equal(codes.codes, wanted.codes)
    kept = "lm_head.weight"  # as every other tensor that is not packed
    narrow, wide = (replace(quantize, plain=p).run(Context(tmp_path), found).store.read(kept) for p in ("bf16", "keep"))
    np.testing.assert_array_equal(wide, found.store.read(kept))
    assert narrow.dtype == numpy_dtype("BF16")
    np.testing.assert_array_equal(narrow, wide.astype(narrow.dtype))
    with pytest.raises(PlanError, match="the stage rotate, before quantize, does that"):
        quantize.run(Context(tmp_path), plain)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(PlanError, match=r"post_attention_layernorm.weight: scales what is added to hidden states"):
        rotated(models.checkpoint("gemma3"))
    with pytest.raises(PlanError, match=r"blocks of 128 do not divide 64 channels; 64 is the largest"):
        rotated(models.checkpoint("llama"), Hadamard(128))
    with pytest.raises(PlanError, match="model_type 'strange'"):
        rotated(replace(models.checkpoint("llama"), config={"model_type": "strange"}))
    with pytest.raises(ConfigError, match="a power of two is needed"):
        Hadamard(12)
