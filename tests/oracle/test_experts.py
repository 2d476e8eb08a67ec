"""gpt-oss exports of the compressed-tensors dialect, loaded and run by transformers with that package.

transformers knows gpt-oss's experts as stacks only; what runs quantized ones has linear experts, as llm-compressor
makes them. They are written out here after `GptOssExperts.forward`, and take the place of that class for a while.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.compressed_tensors.schemes import NVFP4
from tests.cases import toy_gpt_oss as toys
from tests.cases.quantized import write_folder
from tests.oracle.test_compressed_tensors import expected, rounded
from tests.oracles.blocks_by_hand import dequantize

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed"),
]
torch = pytest.importorskip("torch")
BF16 = ml_dtypes.bfloat16
TOKENS = [[5, 258, 0, 17, 99, 100, 3, 42, 7, 11]]
INT4 = Scheme("int4", 32, "bf16")


class Expert(torch.nn.Module):
    def __init__(self, hidden: int, inter: int) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden, inter)
        self.up_proj = torch.nn.Linear(hidden, inter)
        self.down_proj = torch.nn.Linear(inter, hidden)

    def forward(self, x: Any) -> Any:
        gate, up = self.gate_proj(x).clamp(max=7.0), self.up_proj(x).clamp(-7.0, 7.0)
        return self.down_proj((up + 1) * gate * torch.sigmoid(gate * 1.702))


class LinearExperts(torch.nn.ModuleList):
    def __init__(self, config: Any) -> None:
        super().__init__(Expert(config.hidden_size, config.intermediate_size) for _ in range(config.num_local_experts))

    def forward(self, x: Any, indices: Any, weights: Any) -> Any:
        out = torch.zeros_like(x)
        for e, expert in enumerate(self):
            token, place = torch.where(indices == e)
            if len(token):
                out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out


class InPlaceOfStacks:
    def __new__(cls, config: Any) -> Any:
        return LinearExperts(config)


def checkpoint(scheme: Scheme, role: str) -> dict[str, Any]:
    """The toy's tensors, those of `role` rounded to `scheme`."""
    tensors: dict[str, Any] = {}
    for name, value in toys.make("hf", "bf16").logical.items():
        wide = value.astype(np.float32)
        if role == "experts" and value.ndim == 3:
            parts = [rounded(matrix, scheme) for matrix in wide]
            found: dict[str, Any] = {c: np.stack([p.components[c] for p in parts]) for c in parts[0].components}
            tensors[name] = QTensor(scheme=scheme, **found)
        elif role == "attention" and name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            tensors[name] = rounded(wide, scheme)
        else:
            tensors[name] = value
    return tensors


def reference(tensors: dict[str, Any]) -> Any:
    """transformers' own gpt-oss with the values of `tensors`."""
    from transformers import GptOssConfig, GptOssForCausalLM

    model = GptOssForCausalLM(GptOssConfig(**toys.HF_CONFIG, **toys.ROPE_V5))
    state = {}
    for name, value in tensors.items():
        plain = expected(value, BF16) if isinstance(value, QTensor) else value.astype(np.float32)
        state[name] = torch.from_numpy(np.ascontiguousarray(plain.swapaxes(-1, -2) if plain.ndim == 3 else plain))
    model.load_state_dict(state)
    return model.eval()


def load(folder: Path) -> tuple[Any, dict[str, Any]]:
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
    with torch.no_grad():
        model(torch.tensor(TOKENS))  # decompresses, into bf16
    return torch.nn.Module.float(model).eval(), info  # transformers has none for quantized models


def same_logits(a: Any, b: Any) -> None:
    with torch.no_grad():
        x, y = (m(torch.tensor(TOKENS)).logits for m in (a, b))
    assert torch.isfinite(x).all()
    assert torch.allclose(x, y, rtol=1e-4, atol=1e-4)
    assert x.std() > 0.1


@pytest.mark.parametrize("scheme", [MXFP4, NVFP4], ids=["mxfp4", "nvfp4"])
def test_linear_experts_load_and_run(scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.gpt_oss import modeling_gpt_oss

    tensors = checkpoint(scheme, "experts")
    wanted = reference(tensors)
    write_folder(tmp_path, CompressedTensors(), tensors, {**toys.HF_CONFIG, **toys.ROPE_V5})
    monkeypatch.setattr(modeling_gpt_oss, "GptOssExperts", InPlaceOfStacks)
    model, info = load(tmp_path)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    same_logits(model, wanted)
    layers = [f"model.layers.{n}.mlp.experts" for n in range(toys.LAYERS)]
    modules = dict(model.named_modules())
    for layer in layers:
        gate_up, down = (expected(tensors[f"{layer}.{m}"], BF16) for m in ("gate_up_proj", "down_proj"))
        for e in range(toys.EXPERTS):
            found = {m: modules[f"{layer}.{e}.{m}_proj"].weight.detach().numpy() for m in ("gate", "up", "down")}
            for name, want in (("gate", gate_up[e, ::2]), ("up", gate_up[e, 1::2]), ("down", down[e])):
                assert np.array_equal(found[name].view(np.uint32), np.ascontiguousarray(want).view(np.uint32)), name


def test_quantized_attention_loads_beside_experts_as_they_are(tmp_path: Path) -> None:
    """Nothing is patched: the experts are stacks, as transformers has them."""
    tensors = checkpoint(INT4, "attention")
    write_folder(tmp_path, CompressedTensors(), tensors, {**toys.HF_CONFIG, **toys.ROPE_V5})
    model, info = load(tmp_path)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    same_logits(model, reference(tensors))
    q = model.get_submodule("model.layers.1.self_attn.q_proj").weight.detach().numpy()
    assert np.array_equal(q, dequantize(tensors["model.layers.1.self_attn.q_proj.weight"]).astype(BF16))
