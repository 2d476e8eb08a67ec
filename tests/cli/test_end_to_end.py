"""The whole way, from the command line to what other programs make of the files."""

import json
import math

import ml_dtypes
import numpy as np
import pytest

from tests.cases import toy_gpt_oss as toys
from tests.cli.run import QUIETLY, ROOT, done, pipeline
from tests.oracles import mx

TINY = ROOT / "plugins" / "models" / "gpt_oss" / "tiny"
TEXT = ROOT / "tests" / "cases" / "text"
EXPERTS = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
BF16 = ml_dtypes.bfloat16


def convert(run, *args):
    done(*QUIETLY, f"paths.run={run}", *args)
    return run / "model"


def leaves(folder):
    """Every stored array, by the safetensors package: bf16 as ml_dtypes', uint8 as it is."""
    from safetensors import safe_open

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return found


def config(folder):
    return json.loads((folder / "config.json").read_text())


def same(a, b):
    """Equal names, shapes, dtypes and bytes."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        assert a[name].tobytes() == b[name].tobytes(), name


def tiny():
    """The embedded model's stored arrays; experts bf16, [E, in, out]."""
    return leaves(TINY)


def requantized(values):
    """What MXFP4 (floor, ties to even) makes of bf16 experts [E, in, out]: codes and scales, [E, out, …]."""
    codes, scales = mx.encode(values.transpose(0, 2, 1))
    return codes, scales


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory):
    """The main job's export of the embedded model."""
    return convert(tmp_path_factory.mktemp("mxfp4"), "quant=mxfp4")


@pytest.fixture(scope="module")
def bf16(tmp_path_factory):
    return convert(tmp_path_factory.mktemp("bf16"), "quant=none")


# What is in the files


def test_the_main_job_writes_what_the_oracle_says(mxfp4):
    before, after = tiny(), leaves(mxfp4)
    expected = {}
    for name, value in before.items():
        if name.endswith(EXPERTS):
            codes, scales = requantized(value)
            packed = mx.pack(codes)
            expected[f"{name}_blocks"] = packed.reshape(*packed.shape[:-1], -1, 16)
            expected[f"{name}_scales"] = scales
        else:
            expected[name] = value
    same(after, expected)
    stated = config(mxfp4)
    quantization = stated.pop("quantization_config")
    assert quantization["quant_method"] == "mxfp4"
    assert stated == config(TINY)


def test_companions_are_carried_over(mxfp4, bf16):
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        for folder in (mxfp4, bf16):
            assert (folder / name).read_bytes() == (TINY / name).read_bytes()


def test_no_quantization_changes_nothing(bf16):
    same(leaves(bf16), tiny())
    assert config(bf16) == config(TINY)


def test_to_the_original_naming_and_back(tmp_path, mxfp4):
    for quant, source in (("none", TINY), ("mxfp4", mxfp4)):
        there = convert(tmp_path / quant / "there", f"quant={quant}", "export=original", f"model.source={source}")
        assert "embedding.weight" in leaves(there)
        back = convert(tmp_path / quant / "back", f"quant={quant}", f"model.source={there}")
        same(leaves(back), leaves(source))
        assert config(back) == config(source)


def test_mxfp4_passes_bit_for_bit(tmp_path, mxfp4):
    again = convert(tmp_path, "quant=mxfp4", f"model.source={mxfp4}")
    same(leaves(again), leaves(mxfp4))
    assert config(again) == config(mxfp4)


def test_mxfp4_decodes_to_what_the_oracle_says(tmp_path, mxfp4):
    plain = convert(tmp_path, "quant=none", f"model.source={mxfp4}")
    before, after = tiny(), leaves(plain)
    assert "quantization_config" not in config(plain)
    for name, value in before.items():
        if name.endswith(EXPERTS):
            value = mx.decode(*requantized(value)).astype(BF16).transpose(0, 2, 1)
        assert after[name].tobytes() == np.ascontiguousarray(value).tobytes(), name


@pytest.mark.parametrize("experts", ["bf16", "mxfp4"])
@pytest.mark.parametrize("naming", ["hf", "original"])
@pytest.mark.brief
def test_dimensions_that_all_differ(tmp_path, naming, experts):
    """No transposition hides: from each naming to the other, encoded as it was and the other way."""
    toy = toys.make(naming, experts, seed=3)
    source = toys.write(tmp_path / "toy", toy, shards=2)
    there = {"hf": "original", "original": "hf"}[naming]
    quant = {"bf16": "none", "mxfp4": "mxfp4"}[experts]
    encoded = [f"quant={quant}", "dask.chunk=256KiB"]
    other = convert(tmp_path / "other", *encoded, f"export={there}", f"model.source={source}")
    same(leaves(other), toys.make(there, experts, seed=3).leaves)
    back = convert(tmp_path / "back", *encoded, f"export={naming}", f"model.source={other}")
    same(leaves(back), toy.leaves)
    if experts == "bf16":
        packed = convert(tmp_path / "packed", "quant=mxfp4", "export=original", f"model.source={source}")
        found = leaves(packed)
        for n in range(toys.LAYERS):
            codes, scales = mx.encode(toy.logical[f"model.layers.{n}.mlp.experts.down_proj"])
            blocks = mx.pack(codes).reshape(*scales.shape, 16)
            assert np.array_equal(found[f"block.{n}.mlp.mlp2_weight.blocks"], blocks)
            assert np.array_equal(found[f"block.{n}.mlp.mlp2_weight.scales"], scales)
    else:
        plain = leaves(convert(tmp_path / "plain", "quant=none", "export=hf", f"model.source={source}"))
        for n in range(toys.LAYERS):
            name = f"model.layers.{n}.mlp.experts.gate_up_proj"
            packed, scales = toy.logical[name]
            codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
            values = mx.decode(codes, scales).astype(BF16).transpose(0, 2, 1)
            assert plain[name].tobytes() == np.ascontiguousarray(values).tobytes()


# NumPy folders


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("quant", ["none", "mxfp4"])
@pytest.mark.brief
def test_jax_loads_the_numpy_export(tmp_path, dtype, quant):
    import jax.numpy as jnp

    folder = convert(tmp_path, f"quant={quant}", "export=numpy", f"export.dtype={dtype}")
    kind = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[dtype]
    files = {
        name: entry["file"] for name, entry in json.loads((folder / "metadata.json").read_text())["tensors"].items()
    }
    before = tiny()
    assert files.keys() == before.keys()
    for name, value in before.items():
        got = jnp.load(folder / files[name])
        exact = value.astype(np.float64)
        if name.endswith(EXPERTS) and quant == "mxfp4":
            exact = mx.decode(*requantized(value)).transpose(0, 2, 1)  # stored as [E, in, out]
        assert got.dtype.name == kind, name
        assert np.asarray(got).tobytes() == np.ascontiguousarray(exact).astype(np.dtype(got.dtype)).tobytes(), name


@pytest.fixture
def too_large(tmp_path):
    toy = toys.make()
    toy.leaves["model.layers.1.self_attn.o_proj.weight"][3, 5] = -1e5
    toy.leaves["model.layers.2.mlp.experts.down_proj"][1, 7, 2] = 1e38
    return toys.write(tmp_path / "large", toy)


def test_fp16_refuses_what_it_cannot_hold(tmp_path, too_large):
    to = [f"model.source={too_large}", "quant=none", "export=numpy", "export.dtype=fp16"]
    result = pipeline(*QUIETLY, f"paths.run={tmp_path / 'run'}", *to)
    assert result.code == 6
    assert "model.layers.1.self_attn.o_proj.weight" in result.err or "down_proj" in result.err
    assert "out of range of F16; export.overflow=clamp" in result.err
    assert not (tmp_path / "run" / "model").exists()
    folder = convert(tmp_path / "clamped", *to, "export.overflow=clamp")
    index = json.loads((folder / "metadata.json").read_text())["tensors"]
    found = {name: np.load(folder / entry["file"]) for name, entry in index.items()}
    assert found["model.layers.1.self_attn.o_proj.weight"][3, 5] == -65504
    assert found["model.layers.2.mlp.experts.down_proj"][1, 7, 2] == 65504
    assert all(np.isfinite(a).all() for a in found.values())


# Shards


def test_shards(tmp_path, mxfp4):
    folder = convert(tmp_path, "quant=mxfp4", "export.max_shard_size=1400KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(p.name for p in folder.glob("*.safetensors"))
    assert len(files) > 2
    assert files == sorted(set(index["weight_map"].values()))
    assert files[-1] == f"model-{len(files):05}-of-{len(files):05}.safetensors"
    assert all((folder / f).stat().st_size <= 1_400_000 for f in files)
    found = leaves(folder)
    assert index["weight_map"].keys() == found.keys()
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in found.values())
    same(found, leaves(mxfp4))


# transformers


@pytest.fixture(scope="module")
def load():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(2)

    def load(folder):
        model, info = transformers.GptOssForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        return model.float().eval()

    return load


def perplexity(model, text):
    """As the model's README says: whole text tokenized, 8192 tokens in windows of 256, the first of each not scored."""
    import torch
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(TINY / "tokenizer.json")).encode(text, add_special_tokens=False).ids[:8192]
    windows = torch.tensor(ids).reshape(-1, 256)
    total = 0.0
    with torch.no_grad():
        for part in windows.split(8):
            logits = model(part).logits[:, :-1].double().log_softmax(-1)
            total -= float(logits.gather(-1, part[:, 1:, None]).sum())
    return math.exp(total / (windows.numel() - len(windows)))


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_transformers_loads_the_main_job_s_export(load, mxfp4, tmp_path, thorough):
    sharded = convert(tmp_path, "quant=mxfp4", "export.max_shard_size=2MB")
    before = tiny()
    for folder in (sharded, mxfp4) if thorough else (sharded,):
        state = load(folder).state_dict()
        assert state.keys() == before.keys()
        for name, value in before.items():
            expected = value.astype(np.float32)
            if name.endswith(EXPERTS):
                expected = mx.decode(*requantized(value)).astype(np.float32).transpose(0, 2, 1)
            got = state[name].numpy()
            assert (got.view(np.uint32) == np.ascontiguousarray(expected).view(np.uint32)).all(), name


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.repeats  # test_flows.py: of the main job
def test_perplexity_is_what_was_measured(load, mxfp4):
    """By transformers, of our export; test_flows has ours. (The bf16 export equals its source bit for bit.)"""
    model, expected = load(mxfp4), {"moby": 66.276}
    found = {name: perplexity(model, (TEXT / f"{name}_eval.txt").read_text()) for name in expected}
    assert found == pytest.approx(expected, abs=2e-3)
