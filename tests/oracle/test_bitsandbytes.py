"""bitsandbytes: the library itself reads what we write, and transformers runs it."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.api import run
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import same
from plugins.kernels.codecs import dynamic8
from tests.cases import toy_models
from tests.cases.quantized import leaves_of, read, write_folder
from tests.oracles.blocks_by_hand import dequantize
from tests.unit.formats.test_bitsandbytes import CONFIG, DIALECT, DOUBLE, SINGLE, STATE, Q

pytestmark = pytest.mark.oracle


def torch_of(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.array(array))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("double", [False, True])
def test_the_library_reads_ours_and_we_read_its(double: bool) -> None:
    import torch
    from bitsandbytes import functional

    torch.manual_seed(0)
    weight = torch.randn(40, 256, dtype=torch.float32) * 0.02
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=double, blocksize=64)
    stats = {k: v.numpy() for k, v in state.as_dict(packed=True).items()}
    leaves = {Q: packed.numpy(), **{f"{Q}.{k}": v for k, v in stats.items()}}
    config = {**CONFIG, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    store = read(DIALECT, leaves, config)
    q = store.read(Q)
    assert store.specs[Q] == TensorSpec((40, 256), "F32", DOUBLE if double else SINGLE)
    scales = dynamic8.decode(q.scales, q.second) if double else q.scales
    values = dequantize(QTensor(q.codes, scales, SINGLE)).astype(np.float32)
    assert np.array_equal(values, functional.dequantize_4bit(packed, state).numpy())
    # Back: the same bytes, but for the spaces around the JSON.
    again = leaves_of(DIALECT.encode(store.specs, CONFIG), {Q: q})
    assert again.keys() == leaves.keys()
    assert all(same(again[n], leaves[n]) for n in leaves if n != STATE)
    assert again[STATE].tobytes().rstrip() == leaves[STATE].tobytes()
    ours = functional.QuantState.from_dict(
        {n.removeprefix(f"{Q}."): torch_of(a) for n, a in again.items() if n != Q}, device=torch.device("cpu")
    )
    assert torch.equal(functional.dequantize_4bit(torch_of(again[Q]), ours), functional.dequantize_4bit(packed, state))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("scheme", [SINGLE, DOUBLE], ids=["single", "double"])
def test_transformers_loads_and_runs(scheme: Scheme, tmp_path: Path) -> None:
    import torch
    from bitsandbytes import functional
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=192, num_attention_heads=4, num_key_value_heads=1, head_dim=64,
        num_hidden_layers=2, vocab_size=101, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    tensors: dict[str, Any] = {}
    for name, value in LlamaForCausalLM(config).state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = value.numpy().astype(ml_dtypes.bfloat16)
            continue
        packed, state = functional.quantize_4bit(value, quant_type="nf4", compress_statistics=scheme is DOUBLE)
        stats = {f"{Q}.{k}": v.numpy() for k, v in state.as_dict(packed=True).items()}
        tensors[name] = read(DIALECT, {Q: packed.numpy(), **stats}, {}).read(Q)
    write_folder(tmp_path, DIALECT, tensors, {**config.to_dict(), "dtype": "bfloat16"})
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    modules = dict(loaded.named_modules())
    for name, q in tensors.items():
        if not isinstance(q, QTensor):
            continue
        weight = modules[name.removesuffix(".weight")].weight
        scales = dynamic8.decode(q.scales, q.second) if scheme is DOUBLE else q.scales
        want = dequantize(QTensor(q.codes, scales, SINGLE)).astype(np.float32).astype(ml_dtypes.bfloat16)
        got = functional.dequantize_4bit(weight.data, weight.quant_state).float().numpy()
        assert np.array_equal(got, want.astype(np.float32)), name
    with torch.no_grad():
        assert torch.isfinite(loaded(torch.tensor([[5, 100, 0]])).logits).all()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.brief("double")
def test_the_library_decodes_an_export_as_we_do(double: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole export, all dimensions different, from its files: every matrix to the last bit, in the library on the
    CPU and in the modules of transformers."""
    import torch
    from bitsandbytes import functional
    from safetensors.numpy import load_file
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    toy_models.make(tmp_path / "source", "llama3")
    twice = ["quant.scale=dynamic8", "quant.second=dynamic8"] if double else []
    report = run(["model.source=source", "flow=convert", "quant=nf4", *twice, "paths.run=packed"])
    assert report.chosen["export"].startswith("bitsandbytes, ")
    run(["model.source=packed/model", "flow=convert", "quant=none", "export=plain", "export.dtype=fp32",
         "paths.run=values"])  # fmt: skip
    ours, leaves = load_file("values/model/model.safetensors"), load_file("packed/model/model.safetensors")
    packed = [n.removesuffix(STATE.removeprefix(Q)) for n in leaves if n.endswith(STATE.removeprefix(Q))]
    assert len({n for name in packed for n in ours[name].shape}) == 4  # hidden, intermediate, queries, keys
    modules = dict(AutoModelForCausalLM.from_pretrained("packed/model", dtype=torch.float32).named_modules())
    for name in packed:
        stats = {n.removeprefix(f"{name}."): torch_of(a) for n, a in leaves.items() if n.startswith(f"{name}.")}
        state = functional.QuantState.from_dict(stats, device=torch.device("cpu"))
        state.dtype = torch.float32  # the file says what the source had; rounded to that, they would agree more easily
        got = functional.dequantize_4bit(torch_of(leaves[name]), state).numpy()
        assert same(got, ours[name]), name
        weight = modules[name.removesuffix(".weight")].weight
        there = functional.dequantize_4bit(weight.data, weight.quant_state).float().numpy()
        assert same(there, ours[name].astype(ml_dtypes.bfloat16).astype(np.float32)), name
