"""Somebody's first commands: their own checkpoint and what to make of it, and nothing else."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from tests.cases import toy_gpt_oss, toy_llama
from tests.cli.run import pipeline


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front door")
    toy_gpt_oss.write(folder / "gpt", toy_gpt_oss.make("hf", "bf16"))
    (folder / "llama").mkdir()
    save_file(toy_llama.weights(), folder / "llama" / "model.safetensors")
    (folder / "llama" / "config.json").write_text(json.dumps(toy_llama.CONFIG))
    return folder


def test_a_sweep_over_checkpoints_and_formats_needs_no_other_option(sources: Path) -> None:
    said = pipeline("-m", "model.source=gpt,llama", "quant=mxfp4,nvfp4,int8,q8_0", "flow=convert", cwd=sources)
    assert said.code == 0, said.err
    found = {}
    for file in (sources / "outputs").glob("*/manifest.json"):
        manifest = json.loads(file.read_text())
        [option, source, quant] = [
            o.partition("=")[2] for o in manifest["command"] if o.lstrip("+").startswith(("model", "quant"))
        ]
        assert f"-{quant}" in file.parent.name
        assert option in file.parent.name
        assert source in file.parent.name
        found[source, quant] = manifest["chosen"]["export"].partition(",")[0]
    assert found == {
        ("gpt", "mxfp4"): "hf", ("gpt", "nvfp4"): "compressed_tensors", ("gpt", "int8"): "compressed_tensors",
        ("gpt", "q8_0"): "gguf", ("llama", "mxfp4"): "compressed_tensors", ("llama", "nvfp4"): "compressed_tensors",
        ("llama", "int8"): "compressed_tensors", ("llama", "q8_0"): "gguf",
    }  # fmt: skip


def test_the_plan_and_the_run_say_what_was_chosen(sources: Path) -> None:
    typed = ("model.source=llama", "quant=int4", "flow=convert")
    line = "\nexport: compressed_tensors, chosen for int4/128/bf16, int4/64/bf16, int4/32/bf16 (hf cannot hold it)\n"
    for verb in ((), ("plan",)):
        said = pipeline(*verb, *typed, cwd=sources)
        assert said.code == 0, said.err
        assert line in said.out


def test_a_comma_in_a_prompt_is_no_sweep(sources: Path) -> None:
    typed = ("model.source=gpt", "stages=[load,decode,quantize]", "quant=mxfp4,none")
    said = pipeline("-m", *typed, 'prompt=One, "two" = {three}, ${four}', cwd=sources)
    assert said.code == 0, said.err
    assert "[2/2]" in said.err
    asked = pipeline("-m", *typed, "prompt_file=a.txt,b.txt", cwd=sources)
    assert "[4/4]" in asked.err


@pytest.mark.parametrize("model", ["model=qwen", "+model=gpt_oss"])
def test_a_model_that_contradicts_the_checkpoint_is_an_error(model: str, sources: Path) -> None:
    said = pipeline(model, "model.source=llama", "quant=int8", "flow=convert", cwd=sources)
    assert (said.code, said.out) == (4, "")
    assert "says 'llama'; model=llama is for it" in said.err
    assert len(said.err.splitlines()) == 1
