"""The tasks of somebody's first hour, each one command: a small Llama that is always there, and SmolLM2 where it lies.

What is typed beside the address of the model is short; what comes out is what other programs read.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGUFReader

from tests.cases import my_llama
from tests.cli.run import ROOT, Said, end, start

SMOLLM2 = Path(os.environ.get("WEIGHTMILL_MODELS", ".models")).absolute() / "SmolLM2-135M-Instruct.Q4_1.gguf"
LLAMA_QUANTIZE_NBYTES = 91_727_008  # of the same weights as q4_0, by llama.cpp b6990's llama_model_quantize from F16
LONGEST = 60
TASKS = {
    "int4 for vLLM": "convert MODEL --quant int4",
    "GGUF": "convert MODEL --to gguf --quant q4_0",
    "four schemes on a text": "evaluate MODEL --quant int8,int4,nf4,q8_0 --texts TEXT",
    "mixed precision": "convert MODEL --quant int4 --rule '*down_proj*=int8'",
    "chat": "chat MODEL --quant int4 --max-tokens 8",
}
NOTEBOOK = "import weightmill; weightmill.run(['model.source=MODEL', 'flow=convert', 'quant=nf4'])"


@pytest.fixture(scope="module", params=["my-llama", pytest.param("SmolLM2", marks=pytest.mark.download)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A folder of plain weights, and a text."""
    folder = tmp_path_factory.mktemp("hour")
    my_llama.write(folder)
    text = folder / "my-text.txt"
    text.write_bytes(text.read_bytes()[:4000])
    if request.param == "my-llama":
        yield folder / "my-llama", text
        return
    if not SMOLLM2.is_file():
        pytest.skip(f"{SMOLLM2.name} is not in WEIGHTMILL_MODELS")
    said = typed(f"convert {SMOLLM2} --quant none --out {folder / 'smol'}", folder)
    assert said.code == 0, said.err
    yield folder / "smol", text


def typed(words: str, cwd: Path, stdin: int = subprocess.DEVNULL) -> Said:
    """`weightmill WORDS`, to its end."""
    process = start(*shlex.split(words), cwd=cwd, env={"COLUMNS": "80"}, stdin=stdin)
    if stdin == subprocess.PIPE:
        assert process.stdin is not None
        process.stdin.write("Hello!\n")
        process.stdin.close()
        process.stdin = None
    return end(process, timeout_s=300)


@pytest.mark.parametrize("task", TASKS)
def test_what_is_typed_is_short(task: str) -> None:
    words = TASKS[task].replace("MODEL", "").replace("TEXT", "")
    assert len(f"weightmill {' '.join(words.split())}") <= LONGEST


def run(task: str, model: tuple[Path, Path], cwd: Path) -> Said:
    words = TASKS[task].replace("MODEL", str(model[0])).replace("TEXT", str(model[1]))
    said = typed(words, cwd, subprocess.PIPE if task == "chat" else subprocess.DEVNULL)
    assert said.code == 0, said.err
    assert max(len(line) for line in said.out.splitlines() if "/" not in line) <= 80
    return said


def one(cwd: Path, pattern: str) -> Path:
    [found] = cwd.glob(f"outputs/{pattern}")
    return found


def test_int4_is_what_compressed_tensors_reads(model: tuple[Path, Path], tmp_path: Path) -> None:
    run("int4 for vLLM", model, tmp_path)
    config = one(tmp_path, "*/model/config.json").read_text()
    assert '"quant_method": "compressed-tensors"' in config
    assert '"num_bits": 4' in config


def test_gguf_is_as_large_as_llama_quantize_makes_it(model: tuple[Path, Path], tmp_path: Path) -> None:
    run("GGUF", model, tmp_path)
    file = one(tmp_path, "*/model/*.gguf")
    kinds = {tensor.tensor_type.name for tensor in GGUFReader(file).tensors}
    assert kinds == {"Q4_0", "Q8_0", "F32"}
    if model[0].name == "smol":
        assert abs(file.stat().st_size / LLAMA_QUANTIZE_NBYTES - 1) < 0.01


@pytest.mark.repeats
def test_four_schemes_and_their_picture(model: tuple[Path, Path], tmp_path: Path) -> None:
    said = run("four schemes on a text", model, tmp_path)
    folder = one(tmp_path, "sweep-*/sweep.png").parent
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    rows = (folder / "sweep.csv").read_text().splitlines()
    assert len(rows) == 6, "a header, the unquantized model, four schemes"
    assert "unquantized" in said.out


def test_one_rule_mixes_precisions(model: tuple[Path, Path], tmp_path: Path) -> None:
    run("mixed precision", model, tmp_path)
    config = one(tmp_path, "*/model/config.json").read_text()
    assert '"num_bits": 4' in config
    assert '"num_bits": 8' in config


def test_a_chat_over_a_pipe(model: tuple[Path, Path], tmp_path: Path) -> None:
    assert run("chat", model, tmp_path).out.strip()


def test_a_notebook(model: tuple[Path, Path], tmp_path: Path) -> None:
    program = NOTEBOOK.replace("MODEL", str(model[0]))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert one(tmp_path, "*/model/*.safetensors").stat().st_size > 0
