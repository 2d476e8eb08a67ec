"""`bench` as people type it, with our own engine on the embedded model; with transformers beside it, where that is."""

import json
from pathlib import Path

import pytest

from plugins.contenders.llama_cpp import LlamaCpp
from tests.cli.run import pipeline

SMALL = (
    "bench.prefill=[16]", "bench.batches=[1,2]", "bench.new=4", "bench.repeats=1", "bench.rounds=1", "bench.tokens=64",
    "bench.window=64", "bench.prompt=8", "bench.greedy=8",
)  # fmt: skip


def test_our_engine_is_right_and_quantized_nearly_so(tmp_path: Path) -> None:
    said = pipeline("bench", "gpt_oss", "engines=[jax]", "quants=[none,mxfp4]", *SMALL, cwd=tmp_path)
    assert said.code == 0, said.err
    assert "2 of 2 cells measured" in said.out
    [file] = (tmp_path / "outputs").glob("*/bench.json")
    plain, packed = json.loads(file.read_text())["rows"]
    assert plain["quality"]["kl"] < 1e-6
    assert plain["quality"]["greedy"] == 8
    assert 1e-4 < packed["quality"]["kl"] < 0.05
    assert packed["nbytes"] < 0.6 * plain["nbytes"]
    assert packed["device_nbytes"] < 0.6 * plain["device_nbytes"]
    [run] = json.loads(pipeline("runs", "--format", "json", cwd=tmp_path).out)["runs"]
    assert run["state"] == "complete", "exports are no runs of their own in the list"
    wrong = pipeline("bench", "gpt_oss", "engines=[jax]", "--against", "bench-of-yore", *SMALL, cwd=tmp_path)
    assert wrong.code == 4
    assert "bench-of-yore" in wrong.err


@pytest.mark.oracle
def test_transformers_predicts_the_same(tmp_path: Path) -> None:
    typed = ("engines=[transformers]", "quants=[none,mxfp4]", "engines.transformers.dtype=f32")
    said = pipeline("bench", "gpt_oss", *typed, *SMALL, cwd=tmp_path)
    assert said.code == 0, said.err
    [file] = (tmp_path / "outputs").glob("*/bench.json")
    plain, packed = json.loads(file.read_text())["rows"]
    assert plain["quality"]["kl"] < 1e-4
    assert plain["quality"]["greedy"] == 8
    assert set(plain["versions"]) == {"torch", "transformers"}
    assert packed["state"] == "unsupported"
    assert "GPUs alone" in packed["why"]


@pytest.mark.oracle
@pytest.mark.skipif(bool(LlamaCpp().needs), reason=f"no llama.cpp: {'; '.join(LlamaCpp().needs.values())}")
def test_llama_cpp_predicts_the_same(tmp_path: Path) -> None:
    said = pipeline("bench", "gpt_oss", "engines=[llama_cpp]", "quants=[none,mxfp4]", *SMALL, cwd=tmp_path)
    assert said.code == 0, said.err
    [file] = (tmp_path / "outputs").glob("*/bench.json")
    plain, packed = json.loads(file.read_text())["rows"]
    assert plain["quality"]["kl"] < 0.02, "activations are rounded to 8 bits, keys and values to float16"
    assert plain["quality"]["cost"] == 0
    assert 1e-4 < packed["quality"]["cost"] < 0.05
    assert abs(packed["quality"]["kl"] - packed["quality"]["cost"]) < 0.02
    assert not plain["wrong"]
    assert not packed["wrong"]
