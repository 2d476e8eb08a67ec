"""What the dialects write, as transformers reads it, and as gpt_oss.torch has read it (`gpt_oss_records` says how)."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.views import JoinedStore
from plugins.formats.gpt_oss.dialect import GptOss, Original
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.plain import Plain
from tests.cases import toy_gpt_oss as toys
from tests.cases.memory_store import MemoryStore, spec_of, write_all
from tests.oracles.mxfp4_by_hand import decode

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]
RECORD = Path(__file__).parents[1] / "cases" / "gpt_oss_torch.json"
KINDS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "mxfp4": {"experts": "mxfp4"},
    "mixed": {"experts": "mxfp4", "plain_layers": (1,)},
}
TOKENS = np.random.default_rng(0).integers(0, toys.VOCAB, (1, 37)).tolist()  # the window has 8


def write(folder: Path, dialect: Any, toy: toys.Toy) -> Path:
    """`toy` (Hugging Face naming) → our logical tensors → `dialect`'s leaves, in a folder written by safetensors."""
    specs = {n: spec_of(a) for n, a in toy.leaves.items()}
    store = JoinedStore(MemoryStore(toy.leaves), GptOss().decode(specs, toy.config))
    binding = dialect.encode(store.specs, store.binding.config)
    toys.write(folder, toys.Toy(dict(binding.config), write_all(binding, store.read), toy.logical))
    for name, content in binding.files.items():
        (folder / name).write_bytes(content)
    return folder


def values(toy: toys.Toy) -> dict[str, np.ndarray]:
    """The model's weights in float32, logical orientation; MXFP4 decoded by hand, which BF16 holds exactly."""
    out = {}
    for name, value in toy.logical.items():
        exact = decode(*value) if isinstance(value, tuple) else value.astype(np.float64)
        out[name] = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
        assert (out[name] == exact).all()
    return out


def bits(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a, np.float32).view(np.uint32)


@pytest.fixture
def hf_model():
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    def load(folder: Path) -> Any:
        model, info = transformers.GptOssForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        assert model.dtype == torch.bfloat16
        return model

    return load


def assert_loaded(model: Any, toy: toys.Toy) -> None:
    """Every parameter has the bits it should, in the orientation that transformers computes with."""
    state = {n: p.detach().float().numpy() for n, p in model.state_dict().items()}
    want = values(toy)
    assert state.keys() == want.keys()
    for name, value in want.items():
        stored = value.transpose(0, 2, 1) if value.ndim == 3 else value
        assert (bits(state[name]) == bits(stored)).all(), name


@pytest.mark.parametrize("v4", [False, True], ids=["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.brief(each=("kind",))
def test_transformers_loads_what_we_write(tmp_path: Path, hf_model: Any, kind: str, v4: bool) -> None:
    toy = toys.make(**KINDS[kind], v4=v4)
    model = hf_model(write(tmp_path / "hf", GptOss(), toy))
    assert_loaded(model, toy)
    assert model.config.rope_parameters["rope_theta"] == 10000.0
    assert model.config.rope_parameters["factor"] == toys.FACTOR


@pytest.mark.parametrize("inter", [toys.INTER, toys.HIDDEN], ids=["all sizes differ", "hidden = intermediate"])
def test_transformers_loads_plain_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hf_model: Any, inter: int
) -> None:
    """Where hidden and intermediate size are the same (20b, 120b) a transposed down_proj would load as well."""
    monkeypatch.setattr(toys, "INTER", inter)
    monkeypatch.setitem(toys.HF_CONFIG, "intermediate_size", inter)
    toy = toys.make()
    model = hf_model(write(tmp_path / "plain", Plain(), toy))
    assert_loaded(model, toy)


def test_modules_to_not_convert_means_what_we_think() -> None:
    """transformers replaces `<layer>.mlp.experts` unless a pattern matches: exactly the plain layers must match."""
    utils = pytest.importorskip("transformers.quantizers.quantizers_utils")
    toy = toys.make(**KINDS["mixed"])
    specs = {
        n: spec_of(QTensor(v[0], v[1], MXFP4)) if isinstance(v, tuple) else spec_of(v) for n, v in toy.logical.items()
    }
    skipped = GptOss().encode(specs, toy.config).config["quantization_config"]["modules_to_not_convert"]
    converted = [n for n in range(12) if utils.should_convert_module(f"model.layers.{n}.mlp.experts", skipped)]
    assert converted == [0, *range(2, 12)]


def read(folder: Path) -> dict[str, str]:
    """Leaf → digest of its dtype, shape and bytes, of what is in a folder."""
    store = SafeTensors().open(folder)
    found = ((name, spec, np.ascontiguousarray(store.read(name))) for name, spec in store.specs.items())
    return {n: xxhash.xxh3_64_hexdigest(f"{s.dtype} {s.shape} ".encode() + a.tobytes()) for n, s, a in found}


def test_we_write_what_gpt_oss_torch_has_read(tmp_path: Path) -> None:
    """Byte for byte; that it read it right, and takes the config, was checked when it was recorded."""
    folder = write(tmp_path / "o", Original(), toys.make(experts="mxfp4"))
    recorded = json.loads(RECORD.read_bytes())
    assert read(folder) == recorded["leaves"]
    config = json.loads((folder / "config.json").read_text())
    assert list(config.items()) == list(recorded["config"].items())


def test_both_programs_compute_the_same_logits(tmp_path: Path, hf_model: Any) -> None:
    """One set of logical tensors, written in both namings, run by both programs in float32."""
    import torch

    hf = hf_model(write(tmp_path / "hf", GptOss(), toys.make(experts="mxfp4"))).float().eval()
    with torch.no_grad():
        logits = hf(torch.tensor(TOKENS)).logits[0].numpy()
    recorded = json.loads(RECORD.read_bytes())
    theirs = np.array(recorded["logits"])
    np.testing.assert_allclose(logits[:, :: recorded["every"]], theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
