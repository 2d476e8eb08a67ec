"""What export=auto chooses for other people's models, loaded and run by the program it was chosen for."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.api import run
from tests.cases import toy_models

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed"),
]
torch = pytest.importorskip("torch")
TOKENS = [[5, 100, 0, 17, 3, 42]]


@pytest.mark.parametrize(("kind", "quant"), [
    ("llama3", "int4"), ("llama3", "fp8_e4m3"), ("qwen3", "nvfp4"), ("gemma3", "int8"), ("mistral", "mxfp4"),
    ("qwen2", "none"),
])  # fmt: skip
@pytest.mark.brief("qwen3-nvfp4")
def test_transformers_loads_what_was_chosen(
    kind: str, quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are what we read there, to the last bits, which test_compressed_tensors_oracle.py is about."""
    from safetensors.numpy import load_file
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    toy_models.make(tmp_path / "source", kind)
    report = run([f"model.source={tmp_path / 'source'}", "flow=convert", f"quant={quant}", "paths.run=packed"])
    assert report.chosen["export"].startswith("hf, " if quant == "none" else "compressed_tensors, ")
    values = ["flow=convert", "quant=none", "export=plain", "export.dtype=fp32", "paths.run=values"]
    run(["model.source=packed/model", *values])
    loaded, info = AutoModelForCausalLM.from_pretrained("packed/model", dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        logits = loaded(torch.tensor(TOKENS)).logits  # decompresses
    assert torch.isfinite(logits).all()
    state: dict[str, Any] = {n: p.detach().float().numpy() for n, p in loaded.named_parameters()}
    want = load_file("values/model/model.safetensors")
    assert want.keys() <= state.keys()
    for name, value in want.items():
        assert np.allclose(state[name], value, rtol=2**-7, atol=0), name  # theirs multiplies in bf16


def test_gguf_opens_what_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    monkeypatch.chdir(tmp_path)
    toy_models.make(tmp_path / "source", "llama2")
    report = run([f"model.source={tmp_path / 'source'}", "flow=convert", "quant=q8_0", "paths.run=run"])
    assert report.chosen == {"export": "gguf, chosen for int8/32/f16"}
    reader = gguf.GGUFReader(tmp_path / "run" / "model" / "model.gguf")
    kinds = {t.name: t.tensor_type.name for t in reader.tensors}
    assert kinds["blk.1.attn_q.weight"] == kinds["blk.2.ffn_down.weight"] == "Q8_0"
    back = run(["model.source=run/model/model.gguf", "flow=convert", "paths.run=back"])
    assert back.chosen == {"export": "gguf, chosen for int8/32/f16"}  # as it came
    back = run(["model.source=run/model/model.gguf", "flow=convert", "quant=none", "paths.run=values"])
    assert back.chosen == {"export": "hf, chosen for plain values"}


def test_transformers_loads_what_was_kept_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GGUF file whose embedding and head are packed: all but the embedding stays so, to the bit."""
    from safetensors.numpy import load_file
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    toy_models.make(tmp_path / "source", "llama2")
    run(["model.source=source", "flow=convert", "quant=q8_0", "paths.run=run"])
    source = "model.source=run/model/model.gguf"
    report = run([source, "flow=convert", "export=compressed_tensors", "paths.run=packed"])
    assert "model.embed_tokens.weight (int8/32/f16) unpacked" in report.chosen["export"]
    run([source, "flow=convert", "quant=none", "export=plain", "export.dtype=fp32", "paths.run=values"])
    loaded, info = AutoModelForCausalLM.from_pretrained("packed/model", dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert torch.isfinite(loaded(torch.tensor(TOKENS)).logits).all()
    state = {n: p.detach().float().numpy() for n, p in loaded.named_parameters()}
    for name, value in load_file("values/model/model.safetensors").items():
        assert np.allclose(state[name], value, rtol=2**-7, atol=0), name


def test_transformers_refuses_what_modelopt_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README and conf/export/modelopt.yaml say so. It does not know the method, and takes the codes for values, which
    are half as wide; a version that loads it fails here, and is then to be said there."""
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    toy_models.make(tmp_path / "source", "llama3")
    run(["model.source=source", "flow=convert", "quant=nvfp4", "export=modelopt", "paths.run=packed"])
    with pytest.raises(RuntimeError, match="mismatched_sizes"):
        AutoModelForCausalLM.from_pretrained("packed/model", dtype=torch.bfloat16)
