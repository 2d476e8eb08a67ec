"""Activations that are rounded too: our logits beside those of transformers with compressed-tensors, from our export.

Where a value lies between two codes, float32 sums in another order take the other one, and what follows is moved by a
step: logits are equal until then, and lie closer together than either does to those with activations as they are.
"""

from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import pipeline
from pipeline.formats import INPUTS
from pipeline.ops import Kernel
from pipeline.rules import Rule
from pipeline.stage import Context
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from stages.calibrate import Folder, likely
from stages.quantize import Quantize
from tests.cases import model_runs
from tests.cases.quantized import quant_method, write_folder
from tests.cases.toy_models import toy

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed"),
]
RULES = "model.rules=[{role: attention, to: quant},{role: mlp, to: quant}]"


def rms(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


@pytest.mark.parametrize("name", ["int8", "fp8_e4m3", "nvfp4"])
@pytest.mark.brief("fp8_e4m3", "nvfp4")  # the next has int8
def test_inputs_under_calibrated_scales_are_those_of_the_library(name: str, tmp_path: Path, thorough: bool) -> None:
    """It reads input_scale and input_global_scale from our export, and rounds inputs as we do who read the same. (It
    has NVFP4's weights in bf16, and is given them as they decode.) In `make test`, of NVFP4 those of the MLP."""
    import torch
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize
    from transformers import AutoModelForCausalLM

    t, out = toy("llama3"), tmp_path / "export"
    method = quant_method(name, *(["quant.second=inverse_f32"] if name == "nvfp4" else []))
    plain = model_runs.checkpoint(t.folder)
    model_runs.engine().observe(plain, t.ids, 2, tmp_path, hessian=False)
    statistics = Folder(tmp_path, {n: f"layers.{n.split('.')[2]}.npz" for n in likely(plain)})
    parts = ("mlp", "self_attn") if thorough or name != "nvfp4" else ("mlp",)
    rules = tuple(Rule("quant", f"*.{part}.*_proj.weight") for part in parts)
    made = Quantize(method, rules, inputs=method).run(Context(tmp_path), replace(plain, statistics=statistics))
    dialect = CompressedTensors("int-quantized", method, "calibrated")
    tensors = {n: made.store.read(n) for n in made.store.specs}
    write_folder(out, dialect, tensors, {**made.config, INPUTS: made.input_scales})
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).requires_grad_(requires_grad=False)

    ours, recipe = model_runs.checkpoint(out, quant="keep").input_scales, asdict(method.recipe)  # type: ignore[attr-defined]
    assert ours is not None
    assert len(ours.values) == (21 if len(parts) == 2 else 9)
    for which in ("layers.0.mlp.down_proj", "layers.2.self_attn.q_proj")[: len(parts)]:
        layer = model.model.get_submodule(which)
        most = float(statistics.of(f"model.{which}.weight").absmax.max())  # type: ignore[union-attr]
        x = np.random.default_rng(0).standard_normal((9, layer.in_features)).astype(np.float32) * most / 2
        theirs = forward_quantize(layer, torch.tensor(x), "input", layer.quantization_scheme.input_activations)
        scale = ours.values[f"model.{which}.weight"]
        rounded = partial(Kernel("quantize_dequantize", ("xla",)), scheme=ours.scheme, scale=scale, **recipe)
        mine = jax.jit(rounded)(x)
        np.testing.assert_array_equal(mine, theirs.numpy())
    if name == "nvfp4":
        with pytest.raises(RuntimeError, match="same dtype"):  # the first call unpacks them
            model(torch.tensor(t.ids, dtype=torch.int64))
        for n in ours.values:
            decoded = np.array(method.decode(made.store.read(n), "F32"))
            model.get_submodule(n.removesuffix(".weight")).weight.data = torch.tensor(decoded)
    theirs = model(torch.tensor(t.ids, dtype=torch.int64)).logits.numpy()
    positions = np.broadcast_to(np.arange(t.ids.shape[1], dtype=np.int32), t.ids.shape)
    found = {}
    for scales in ("calibrated", "none"):
        more = {"activations": method, "activations_scales": scales} if scales == "calibrated" else {}
        runtime = model_runs.load(out, quant="keep", **more)
        with model_runs.quick_compilation():
            found[scales] = np.asarray(runtime.forward(t.ids, positions))
    assert rms(found["none"] - theirs) > 0.02 * rms(theirs)
    assert rms(found["calibrated"] - theirs) < 0.6 * rms(found["none"] - theirs)
    first = np.abs(found["calibrated"] - theirs)[:, 0].max(-1)
    assert first.min() < 1e-4, "of a first token, where little was summed"


@pytest.mark.parametrize("name", ["int8", "fp8_e4m3"])
@pytest.mark.brief("int8")
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """int8 as the library has it: its scales are amax / 127.5."""
    import torch
    from transformers import AutoModelForCausalLM

    t, out = toy("llama3"), tmp_path / "export"
    typed = [f"model.source={t.folder}", f"quant={name}", "flow=convert", "export=compressed_tensors", RULES]
    pipeline.run([*typed, f"activations={name}", f"export.path={out}", f"paths.outputs={tmp_path}"], progress=False)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor(t.ids, dtype=torch.int64)).logits.numpy()
    positions = np.broadcast_to(np.arange(t.ids.shape[1], dtype=np.int32), t.ids.shape)
    like = ["quant.like=compressed_tensors"] if name == "int8" else []
    found = {}
    for which, method in {"rounded": quant_method(name, *like), "as they are": None}.items():
        runtime = model_runs.load(out, quant="keep", activations=method)
        with model_runs.quick_compilation():
            found[which] = np.asarray(runtime.forward(t.ids, positions))
    assert rms(found["as they are"] - theirs) > 0.04 * rms(theirs)
    assert rms(found["rounded"] - theirs) < 0.6 * rms(found["as they are"] - theirs)
    first = np.abs(found["rounded"] - theirs)[:, 0].max(-1)
    assert first.min() < 1e-4, "of a first token, where little was summed"
