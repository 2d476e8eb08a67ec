"""Activations that are rounded too: our logits beside those of transformers with compressed-tensors, from our export.

Where a value lies between two codes, float32 sums in another order take the other one, and what follows is moved by a
step: logits are equal until then, and lie closer together than either does to those with activations as they are.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.api import quant_method
from tests.cases import model_runs
from tests.cases.toy_models import toy

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed"),
]
RULES = "model.rules=[{role: attention, to: quant},{role: mlp, to: quant}]"


def rms(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


@pytest.mark.parametrize("name", ["int8", "fp8_e4m3"])
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
    for which, method in {"rounded": quant_method(name, like), "as they are": None}.items():
        runtime = model_runs.load(out, quant="keep", activations=method)
        with model_runs.quick_compilation():
            found[which] = np.asarray(runtime.forward(t.ids, positions))
    assert rms(found["as they are"] - theirs) > 0.04 * rms(theirs)
    assert rms(found["rounded"] - theirs) < 0.6 * rms(found["as they are"] - theirs)
    first = np.abs(found["rounded"] - theirs)[:, 0].max(-1)
    assert first.min() < 1e-4, "of a first token, where little was summed"
