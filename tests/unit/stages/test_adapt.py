"""Adapters from files, merged into weights where these are read: exact in float32, rounded once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.adapters import Layer
from pipeline.errors import PlanError, SourceError
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Context
from pipeline.testing.memory import MemoryStore, quantized
from plugins.formats.peft.adapter import Peft
from plugins.kernels.cases import BF16, SCHEMES
from stages.adapt import Adapt

EXPERTS = "model.layers.0.mlp.experts"
NAMES = {p: tuple(f"model.layers.1.mlp.experts.{e}.{p}_proj.weight" for e in range(3)) for p in ("gate", "up", "down")}


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def tensors() -> dict[str, Any]:
    """A matrix of bfloat16 and a packed one, a stack of experts, experts one by one; and one that stays."""
    found = {
        "model.layers.0.self_attn.q_proj.weight": normal(10, 64, dtype=BF16),
        "model.layers.0.self_attn.o_proj.weight": quantized(SCHEMES["mxfp4"], (12, 64)),
        "model.norm.weight": normal(64),
        f"{EXPERTS}.gate_up_proj": normal(4, 48, 64),
        f"{EXPERTS}.down_proj": normal(4, 64, 24),
    }
    for part, names in NAMES.items():
        found |= {n: normal(64, 20, seed=i) if part == "down" else normal(20, 64, seed=i) for i, n in enumerate(names)}
    return found


def layers(*, rslora: bool = False) -> list[Layer]:
    def one(names: Any, a: Any, b: Any, alpha: float = 6.0) -> Layer:
        return Layer(names if isinstance(names, tuple) else (names,), normal(*a), normal(*b, seed=1), alpha, rslora)

    return [
        one("model.layers.0.self_attn.q_proj.weight", (3, 64), (10, 3)),
        one("model.layers.0.self_attn.o_proj.weight", (5, 64), (12, 5), 4.0),
        one(f"{EXPERTS}.gate_up_proj", (4, 3, 64), (48, 3, 4)),
        one(f"{EXPERTS}.down_proj", (4, 3, 24), (64, 3, 4)),
        one(NAMES["gate"], (3, 3, 64), (20, 3, 3)),
        one(NAMES["up"], (3, 3, 64), (20, 3, 3), 2.0),
        one(NAMES["down"], (3, 3, 20), (64, 3, 3)),
    ]


def adapt(folder: Path) -> Adapt:
    return Adapt(str(folder), Peft(), Kernel("cast", ("numpy",)), Kernel("dequantize", ("numpy",)))


def checkpoint() -> Checkpoint:
    return Checkpoint(MemoryStore(tensors()))


@pytest.mark.parametrize("rslora", [False, True])
def test_what_was_written_is_read_and_added(rslora: bool, tmp_path: Path) -> None:
    Peft().write(tmp_path, layers(rslora=rslora), dropout=0.1)
    merged = adapt(tmp_path).run(Context(tmp_path), checkpoint())
    assert [p.path.name for p in merged.inputs] == ["adapter_config.json", "adapter_model.safetensors"]
    before = tensors()
    added = {name: layer for layer in layers(rslora=rslora) for name in layer.names}
    for name, value in before.items():
        found = merged.store.read(name)
        if name not in added:
            assert found is value or np.array_equal(found, value)
            continue
        layer = added[name]
        scale = layer.alpha / (layer.rank**0.5 if rslora else layer.rank)
        packed = name.endswith("o_proj.weight")
        base = adapt(tmp_path).unpack(value, "F32") if packed else value.astype(np.float32)
        if len(layer.names) > 1:
            e = layer.names.index(name)
            delta = layer.b[:, :, e] @ layer.a[e]
        else:
            delta = layer.b @ layer.a if layer.a.ndim == 2 else np.einsum("ore,eri->eoi", layer.b, layer.a)
        expected = base + scale * delta
        assert found.dtype == (BF16 if packed else value.dtype)
        tolerance = 2**-8 if found.dtype == BF16 else 1e-5
        np.testing.assert_allclose(found.astype(np.float32), expected, rtol=tolerance, atol=1e-4)
        box = tuple(slice(n // 2, n) for n in found.shape)
        box = (*box[:-1], slice(0, found.shape[-1])) if packed else box
        np.testing.assert_allclose(
            merged.store.read(name, box).astype(np.float32), found[box].astype(np.float32), rtol=1e-2, atol=1e-4
        )


def test_calls_are_those_of_what_is_adapted(tmp_path: Path) -> None:
    Peft().write(tmp_path, layers()[:2], dropout=0.0)
    calls = [(c.kernel.op, c.where.split(".")[-2]) for c in adapt(tmp_path).calls(checkpoint())]
    assert calls == [("cast", "q_proj"), ("dequantize", "o_proj"), ("cast", "o_proj")]


def test_what_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"has no adapter_config\.json"):
        adapt(tmp_path / "none").run(Context(tmp_path), checkpoint())
    other = [
        Layer(("model.layers.0.self_attn.x_proj.weight",), normal(3, 64), normal(10, 3), 6.0),
        Layer(("model.layers.0.self_attn.q_proj.weight",), normal(3, 32), normal(10, 3), 6.0),
        Layer(("model.layers.0.self_attn.o_proj.weight",), normal(3, 64), normal(12, 3), 6.0),
    ]
    Peft().write(tmp_path, other, dropout=0.0)
    config = tmp_path / "adapter_config.json"
    config.write_text(config.read_text().replace('"bias": "none"', '"bias": "all", "use_dora": true'))
    with pytest.raises(PlanError) as caught:
        adapt(tmp_path).run(Context(tmp_path), checkpoint())
    said = str(caught.value)
    config.write_text(config.read_text().replace('"lora_alpha": 6.0', '"lora_alpha": "six"'))
    with pytest.raises(PlanError, match="lora_alpha is 'six'; a number above 0 is needed"):
        adapt(tmp_path).run(Context(tmp_path), checkpoint())
    assert len(said.splitlines()) == 4
    for part in (
        "use_dora: is not understood",
        "bias: 'all'",
        "x_proj: the checkpoint has no tensor",
        "q_proj: b (10, 3)",
    ):
        assert part in said


def test_what_peft_would_take_for_another_is_refused() -> None:
    names = [NAMES["gate"], ("model.layers.0.mlp.gate_proj.weight",), ("model.layers.0.mlp.odd",)]
    said = [str(p) for p in Peft().problems(names)]
    assert [s.partition(":")[0] for s in said] == ["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.odd"]
    assert list(Peft().problems(names[1:2])) == []
