"""GPTQ of ours beside what llm-compressor made of the same model, token ids and settings, as recorded.

A whole run of each: ours with `calibrate.sequential=blocks`, which is how llm-compressor goes through a model. What is
not theirs is XᵀX and its factor in fp32, and the order of sums. And what its AWQ changes beside matrices is read.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import pipeline
from pipeline.bench.quality import Given
from pipeline.ops import Kernel
from pipeline.stage import Context
from pipeline.tensors.spec import TensorSpec
from plugins.bench.llm_compressor import LlmCompressor
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.plain import Plain
from stages.load import Load
from tests.cases.my_llama import TEXT, TINY
from tests.cases.tokenizers import tokenizer

RECORD = Path(__file__).parents[2] / "cases" / "llm_compressor.npz"
HIDDEN, INNER, HEADS, KV, HEAD, LAYERS, VOCAB = 64, 160, 4, 2, 24, 2, 4096  # no two dimensions of a matrix alike
WINDOW, TOKENS, GROUP = 48, 768, 32
SETTINGS: dict[str, tuple[dict[str, Any], list[str]]] = {  # theirs, and ours
    "static": ({}, ["quant.element=int4"]),
    "asymmetric": ({"symmetric": False}, ["quant.element=uint4", "quant.zero_point=int"]),
    "in_order": ({"actorder": None}, ["quant.element=int4", "calibrate.method.act_order=false"]),
}


def matrices() -> dict[str, TensorSpec]:
    """All that is rounded, by name."""
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV * HEAD, HIDDEN),
        "self_attn.v_proj": (KV * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    return {
        f"model.layers.{i}.{name}.weight": TensorSpec(s, "F32") for i in range(LAYERS) for name, s in shapes.items()
    }


def write(folder: Path) -> Path:
    """The model in fp32, with a tokenizer."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD,
        "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }  # fmt: skip
    rng = np.random.default_rng(0)
    tensors = {n: rng.standard_normal(s.shape) / np.sqrt(s.shape[-1]) for n, s in matrices().items()}
    norms = [f"model.layers.{i}.{n}_layernorm.weight" for i in range(LAYERS) for n in ("input", "post_attention")]
    tensors |= {n: np.exp(0.5 * rng.standard_normal(HIDDEN)) for n in (*norms, "model.norm.weight")}
    tensors |= {n: rng.standard_normal((VOCAB, HIDDEN)) for n in ("model.embed_tokens.weight", "lm_head.weight")}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TINY / name, folder / name)
    save_file({n: x.astype(np.float32) for n, x in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def rows() -> np.ndarray:
    """The token ids of `TEXT` that are calibrated on, [windows, tokens]."""
    return np.array(tokenizer("tiny").encode(TEXT.read_text()[: 8 * TOKENS])[:TOKENS]).reshape(-1, WINDOW)


def ours(source: Path, outputs: Path, *more: str) -> dict[str, np.ndarray]:
    """What our export has, by leaf."""
    report = pipeline.run([
        "+model=llama", f"model.source={source}", "flow=convert", "stages.decode.dtype=keep", "quant=int4",
        f"quant.block_elems={GROUP}", "quant.scale=f32", "quant.like=compressed_tensors", "calibrate=gptq",
        "calibrate.sequential=blocks", f"calibrate.texts=[{TEXT}]", f"calibrate.windows.window={WINDOW}",
        f"calibrate.windows.tokens={TOKENS}", "export=compressed_tensors", f"paths.outputs={outputs}", *more,
    ], progress=False)  # fmt: skip
    with safe_open(Path(report.run) / "model" / "model.safetensors", "np") as found:
        return {k: found.get_tensor(k) for k in found.keys()}  # noqa: SIM118


def codes(words: np.ndarray) -> np.ndarray:
    """4-bit integers, eight in a word, the first one lowest."""
    return (words.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(len(words), -1)


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(RECORD) as kept:
        return dict(kept)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("llm_compressor") / "model")


def both(recorded: dict[str, np.ndarray], found: dict[str, np.ndarray], setting: str, leaf: str) -> Any:
    """Of every matrix, a leaf as recorded and as ours."""
    for name in matrices():
        at = f"{name.removesuffix('weight')}{leaf}"
        yield name, recorded[f"{setting}/{at}"], found[at]


def test_both_are_given_the_same_token_ids(recorded: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(recorded["rows"], rows())


@pytest.mark.parametrize("setting", ["static", "asymmetric"])
def test_act_order_has_the_codes_of_llm_compressor(
    recorded: dict[str, np.ndarray], source: Path, tmp_path: Path, setting: str
) -> None:
    """Scales and zero points bit for bit; of 98,304 codes a few may be off by one, as sums go in another order, and
    what follows from that in the row: 6 in one row of `static`, none of `asymmetric`, when they were recorded."""
    found = ours(source, tmp_path, *SETTINGS[setting][1])
    for name, theirs, own in both(recorded, found, setting, "weight_scale"):
        np.testing.assert_array_equal(own, theirs, err_msg=name)
    for name, theirs, own in both(recorded, found, setting, "weight_zero_point") if setting == "asymmetric" else ():
        np.testing.assert_array_equal(own, theirs, err_msg=name)
    off = [codes(own).astype(int) - codes(theirs) for _, theirs, own in both(recorded, found, setting, "weight_packed")]
    assert sum(d.size for d in off) == 98_304
    assert sum(np.count_nonzero(d) for d in off) <= 50
    assert sum(np.count_nonzero(d.any(axis=1)) for d in off) <= 3
    assert max(np.abs(d).max() for d in off) <= 1


def test_columns_in_order_begin_as_those_of_llm_compressor(
    recorded: dict[str, np.ndarray], source: Path, tmp_path: Path
) -> None:
    """Its scales are of weights as they were, ours of what a group has become by then: so the first group of a row is
    the same, and in the first block, whose inputs are."""
    found = ours(source, tmp_path, *SETTINGS["in_order"][1])
    for name, theirs, own in both(recorded, found, "in_order", "weight_scale"):
        np.testing.assert_array_equal(own[:, 0], theirs[:, 0], err_msg=name)
        assert (own[:, 1:] != theirs[:, 1:]).any(), name
    for name, theirs, own in both(recorded, found, "in_order", "weight_packed"):
        if ".layers.0." in name:
            np.testing.assert_array_equal(codes(own)[:, :GROUP], codes(theirs)[:, :GROUP], err_msg=name)


def scaled(source: Path, folder: Path) -> Path:
    """The model as AWQ leaves it before it rounds: norms divided by factors, what multiplies them times those."""
    shutil.copytree(source, folder)
    tensors, rng = load_file(source / "model.safetensors"), np.random.default_rng(1)
    for i in range(LAYERS):
        for norm, parts in {
            "input_layernorm": [f"self_attn.{p}_proj" for p in "qkv"],
            "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
        }.items():
            by = np.exp(0.4 * rng.standard_normal(HIDDEN)).astype(np.float32)
            tensors[f"model.layers.{i}.{norm}.weight"] /= by
            for part in parts:
                tensors[f"model.layers.{i}.{part}.weight"] *= by
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_norms_that_awq_has_changed_are_read_with_the_matrices(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices as compressed-tensors has them, norms as values: what is scored is both, and nothing else changed."""
    place, written = scaled(source, tmp_path / "scaled"), tmp_path / "written"
    pipeline.run([
        "+model=llama", f"model.source={place}", "flow=convert", "stages.decode.dtype=keep", "quant=int8",
        f"quant.block_elems={GROUP}", "quant.scale=f32", "export=compressed_tensors",
        f"export.path={written}", f"paths.outputs={tmp_path}",
    ], progress=False)  # fmt: skip
    monkeypatch.setattr(LlmCompressor, "compress", lambda self, source, out, *_: shutil.copytree(written, out))
    load = Load(str(source), (SafeTensors(),), (CompressedTensors(), Plain()))
    plain = load.run(Context(tmp_path))
    room = tmp_path / "room"
    room.mkdir()
    found = LlmCompressor("awq").rounded(plain, [*matrices()], Given(source, []), room)
    norms = [f"model.layers.{i}.{n}_layernorm.weight" for i in range(LAYERS) for n in ("input", "post_attention")]
    assert sorted(found.changed) == norms
    was, store = load_file(source / "model.safetensors"), found.checkpoint.store
    now = load_file(place / "model.safetensors")
    for name in norms:
        assert store.read(name).tobytes() == now[name].tobytes() != was[name].tobytes()
        part = name.replace("input_layernorm", "self_attn.q_proj").replace("post_attention_layernorm", "mlp.up_proj")
        matrix = Kernel("dequantize", ("numpy",))(store.read(part), "F32")
        product, wanted = matrix * store.read(name), was[part] * was[name]
        assert np.linalg.norm(product - wanted) < 0.05 * np.linalg.norm(wanted)
        assert np.linalg.norm(matrix * was[name] - wanted) > 0.2 * np.linalg.norm(wanted), "the norm makes the product"
