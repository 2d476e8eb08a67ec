"""Adapters that PEFT loads with equal logits, and PEFT's own that are read; merged ones too."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.adapters import Layer, MergedStore
from pipeline.ops import Kernel
from pipeline.rules import Rule
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from plugins.formats.peft.adapter import Peft
from plugins.models.common.weights import Weights
from plugins.models.family import family_of
from plugins.train.lora import A, Lora
from plugins.train.packing import Packing
from plugins.train.step import Bound
from tests.cases import model_runs, toy_models
from tests.cases.quantized import quant_method

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    # Of its patterns of ranks PEFT says that they match no module where they are for parameters, and heeds them.
    pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning"),
]
KINDS = ("llama3", "gpt-oss", "qwen3-moe")
TARGETS = ("*self_attn*_proj.weight", "*.experts.*_proj.weight", "*.experts.*_proj")
LORA = Lora(rank=4, alpha=10.0, ranks={"*o_proj*": 6}, targets=TARGETS)


def trained(kind: str, seed: int, lora: Lora) -> tuple[Any, Any, dict[str, Any]]:
    """The checkpoint, its parameters, and adapters that change what it says, b included."""
    checkpoint = model_runs.checkpoint(toy_models.toy(kind).folder)
    parameters = family_of(checkpoint.config, model_runs.engine().families).parameters(checkpoint.config)
    rng = np.random.default_rng(seed)
    found = {
        n: w if n.endswith(A) else (rng.standard_normal(w.shape) * 0.2).astype(np.float32)
        for n, w in lora.begin(parameters, seed).items()
    }
    return checkpoint, parameters, found


def bound_to(checkpoint: Any, lora: Lora | None = None) -> tuple[Bound, dict[str, Any]]:
    """Our model, and what its parameters hold, of the checkpoint's store."""
    engine, specs = model_runs.engine(), checkpoint.store.specs
    weights = Weights({n: s if s.scheme is not None else TensorSpec(s.shape, "F32") for n, s in specs.items()})
    ops = engine.ops.on("cpu") if lora is None else lora.ops(engine.ops.on("cpu"))
    family = family_of(checkpoint.config, engine.families)
    bound, held = Bound(family.build(checkpoint.config, weights, ops, "float32")), {}
    for name, param in bound.params.items():
        read = [checkpoint.store.read(n) for n in param.names]
        if isinstance(read[0], QTensor):
            held[name] = jax.tree.map(jnp.asarray, read[0])
        else:
            held[name] = jnp.asarray(np.stack(read) if param.stack else read[0]).astype(jnp.float32)
    return bound, held


def logits(model: Any, kind: str) -> Any:
    ids = jnp.asarray(toy_models.toy(kind).ids)
    hidden, _ = model(ids, jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape))
    return np.asarray(model.logits(hidden))


def peft_logits(kind: str, folder: Path, instead: Mapping[str, Any] | None = None) -> Any:
    """With the adapter around the toy, of which some weights may be others instead."""
    import peft
    import torch

    toy = toy_models.toy(kind)
    base = toy_models.read(toy.folder, kind)
    with torch.no_grad():
        for name, value in (instead or {}).items():
            base.get_parameter(name).copy_(torch.tensor(value))
    model = peft.PeftModel.from_pretrained(base, folder).eval()
    with torch.no_grad():
        return model(torch.tensor(toy.ids, dtype=torch.int64), use_cache=False).logits.numpy()


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.brief("llama3", "gpt-oss")
def test_peft_computes_with_what_we_write_as_we_do(kind: str, tmp_path: Path) -> None:
    checkpoint, parameters, state = trained(kind, 3, LORA)
    layers = LORA.layers(state, parameters)
    Peft().write(tmp_path / "adapter", layers, dropout=0.1)
    bound, held = bound_to(checkpoint, LORA)
    leaves = LORA.leaves(bound, parameters, {})({n: jnp.asarray(w) for n, w in state.items()}, held, None)
    ours = logits(bound.model(leaves), kind)
    close(ours, peft_logits(kind, tmp_path / "adapter"))
    assert kind == "llama3" or any(layer.a.ndim == 3 for layer in layers)
    assert np.abs(ours - toy_models.toy(kind).logits).max() > 0.1 * np.abs(ours).max()
    read = Peft().read(tmp_path / "adapter", checkpoint.store.specs)
    assert {n for layer in read for n in layer.names} == {n for layer in layers for n in layer.names}
    close_deltas(read, layers, checkpoint.store.specs)


@pytest.mark.parametrize("quant", ["nf4", "mxfp4"])
@pytest.mark.brief("mxfp4")
def test_so_it_does_around_what_a_packed_base_stands_for(quant: str, tmp_path: Path) -> None:
    """QLoRA: here the base is packed, there it is what that decodes to."""
    method = quant_method(quant)
    lora = replace(LORA, packing=Packing(method, (Rule(match="*_proj.weight"),)))
    checkpoint, parameters, state = trained("llama3", 3, lora)
    Peft().write(tmp_path / "adapter", lora.layers(state, parameters), dropout=0.0)
    base = lora.base(checkpoint)
    bound, held = bound_to(base, lora)
    packed = {n: base.store.read(n) for n, s in base.store.specs.items() if s.scheme is not None}
    assert sum(isinstance(w, QTensor) for w in held.values()) == len(packed) == 7 * toy_models.LAYERS
    leaves = lora.leaves(bound, parameters, {})({n: jnp.asarray(w) for n, w in state.items()}, held, None)
    ours = logits(bound.model(leaves), "llama3")
    decoded = {n: method.decode(q, "F32") for n, q in packed.items()}
    close(ours, peft_logits("llama3", tmp_path / "adapter", decoded))
    assert np.abs(ours - peft_logits("llama3", tmp_path / "adapter")).max() > 0.01 * np.abs(ours).max()


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.brief("gpt-oss-False", "llama3-True")
def test_what_peft_writes_is_read_and_merged(kind: str, rslora: bool, tmp_path: Path) -> None:
    import peft
    import torch

    toy = toy_models.toy(kind)
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if kind != "llama3" else None
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "o_proj"], target_parameters=experts, use_rslora=rslora
    )
    model = peft.get_peft_model(toy_models.read(toy.folder, kind), config)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.2 * torch.randn(p.shape))
        expected = model(torch.tensor(toy.ids, dtype=torch.int64), use_cache=False).logits.numpy()
    model.save_pretrained(tmp_path)
    checkpoint = model_runs.checkpoint(toy.folder)
    specs = {n: TensorSpec(s.shape, "F32") for n, s in checkpoint.store.specs.items()}
    kernels = Kernel("cast", ("numpy",)), Kernel("dequantize", ("numpy",))
    store = MergedStore(checkpoint.store, Peft().read(tmp_path, specs), specs, *kernels)
    bound, held = bound_to(replace(checkpoint, store=store))
    close(logits(bound.model(held), kind), expected)


def close_deltas(read: Any, written: Any, specs: Any) -> None:
    def deltas(layers: tuple[Layer, ...]) -> dict[str, Any]:
        boxes = {n: tuple(slice(0, d) for d in specs[n].shape) for layer in layers for n in layer.names}
        return {n: layer.delta(n, boxes[n]) for layer in layers for n in layer.names}

    mine, theirs = deltas(read), deltas(written)
    for name, delta in theirs.items():
        np.testing.assert_allclose(mine[name], delta, atol=1e-6, err_msg=name)
