"""GGUF on the command line: written, read by the gguf package, and read back without a changed byte."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors import safe_open
from safetensors.numpy import save_file

from pipeline.running.target import MARKER
from pipeline.stage import Context
from plugins.formats.gguf.file import GgufContainer as GgufFile
from plugins.formats.gguf.model import GgufDialect
from stages.load import Load
from tests.cases import toy_llama
from tests.cli.run import MAIN, pipeline

TINY = Path(__file__).parents[2] / "plugins/models/gpt_oss/tiny"


def run(cwd: Path, *args: str) -> Path:
    cwd.mkdir(exist_ok=True)
    said = pipeline(*args, "paths.run=run", cwd=cwd)
    assert said.code == 0, said.err
    return cwd / "run" / "model"


def tensors_of(folder):
    import torch  # bfloat16 has no NumPy dtype in safetensors

    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as f:
            found |= {n: f.get_tensor(n) for n in f.keys()}  # noqa: SIM118
    return {n: t.view(torch.uint8) if t.dtype == torch.uint8 else t.float() for n, t in found.items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The embedded gpt-oss as MXFP4 in GGUF."""
    return run(tmp_path_factory.mktemp("gguf"), *MAIN, "export=gguf")


def test_one_file_that_the_package_reads(written):
    assert sorted(p.name for p in written.iterdir()) == [MARKER, "model.gguf"]
    reader = GGUFReader(written / "model.gguf")
    assert reader.fields["general.architecture"].contents() == "gpt-oss"
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 4096
    kinds = {t.name: t.tensor_type.name for t in reader.tensors}
    assert kinds["blk.3.ffn_gate_exps.weight"] == kinds["blk.0.ffn_down_exps.weight"] == "MXFP4"
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == "BF16"
    assert {kinds[f"blk.0.{n}.weight"] for n in ("attn_norm", "ffn_gate_inp", "attn_sinks")} == {"F32"}


def test_other_files_of_its_folder_are_other_models(written, tmp_path):
    """As in a folder of downloads; what a GGUF file needs is inside."""
    for name in ("tokenizer.model.v1", "o200k_base.tiktoken", "config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    source = Load(
        str(shutil.copy(written / "model.gguf", tmp_path / "one.gguf")),
        (GgufFile(),),
        (GgufDialect(),),
        ("*.json", "*"),
    )
    found = source.run(Context(tmp_path))
    assert [p.path.name for p in found.inputs] == ["one.gguf"]
    assert all(isinstance(content, bytes) for content in found.files.values())
    assert found.config["model_type"] == "gpt_oss"


@pytest.mark.oracle
def test_back_to_hugging_face_nothing_has_changed(written, tmp_path):
    """Codes and scales are the bytes of a direct export; values that were widened are equal."""
    direct = tensors_of(run(tmp_path / "a", *MAIN, "export=hf"))
    back = run(tmp_path / "b", "+model=gpt_oss", f"model.source={written}", "stages=[load,export]", "export=hf")
    again = tensors_of(back)
    assert again.keys() == direct.keys()
    assert all(a.dtype == direct[n].dtype and bool((a == direct[n]).all()) for n, a in again.items())
    assert {p.name for p in back.iterdir()} >= {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    before, after = (json.loads((f / "tokenizer.json").read_bytes())["model"] for f in (back, TINY))
    assert (before["vocab"], before["merges"]) == (after["vocab"], after["merges"])


def test_small_chunks_make_the_same_file(written, tmp_path):
    """Pieces are cut where their packing allows, whatever their size."""
    small = run(tmp_path, *MAIN, "export=gguf", "dask.chunk=24KiB")
    assert (small / "model.gguf").read_bytes() == (written / "model.gguf").read_bytes()


def test_a_split_set(written, tmp_path):
    folder = run(tmp_path, *MAIN, "export=gguf", "export.max_shard_size=1MB")
    files = sorted(p.name for p in folder.glob("*.gguf"))
    assert len(files) > 3
    whole = {t.name: t.data.tobytes() for t in GGUFReader(written / "model.gguf").tensors}
    parts = {t.name: t.data.tobytes() for f in files for t in GGUFReader(folder / f).tensors}
    assert parts == whole


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """A toy Llama 3 in safetensors."""
    folder = tmp_path_factory.mktemp("llama")
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps({**toy_llama.CONFIG, "rope_parameters": rope}))
    save_file({n: np.asarray(a, np.float32) for n, a in toy_llama.weights().items()}, folder / "model.safetensors")
    return folder


def test_llama_there_and_back(llama, tmp_path):
    """Rows of q and k in llama.cpp's order, rope factors as a tensor; back, the values are what they were."""
    args = ["+model=smollm2", "stages=[load,export]", "export.dtype=keep", "dask.chunk=1KiB"]
    folder = run(tmp_path, *args, f"model.source={llama}", "export=gguf")
    found = {t.name: t for t in GGUFReader(folder / "model.gguf").tensors}
    wanted = toy_llama.gguf_leaves(toy_llama.weights())
    assert found.keys() == wanted.keys() | {"rope_freqs.weight"}
    assert all(np.array_equal(found[n].data, np.asarray(a, np.float32)) for n, a in wanted.items())
    assert found["rope_freqs.weight"].data[-1] == 8
    del found
    back = run(tmp_path / "back", *args, f"model.source={folder}", "export=plain")
    assert json.loads((back / "config.json").read_bytes())["rope_scaling"]["factor"] == 8.0
    with safe_open(back / "model.safetensors", "np") as f:
        assert all(np.array_equal(f.get_tensor(n), np.asarray(a, np.float32)) for n, a in toy_llama.weights().items())


def test_a_config_group_for_any_llama_needs_a_source(tmp_path):
    said = pipeline("+model=smollm2", "export=gguf", "paths.run=run", cwd=tmp_path)
    assert said.code == 2
    assert "model.source" in said.err
