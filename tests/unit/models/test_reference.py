"""kernels=reference runs models: op by op, on the definitions, with the results of the compiled backends."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.engine import Against, Windows
from pipeline.ops import Kernel
from plugins.engine import sizes
from plugins.models.common.ops import Ops
from tests.cases import model_runs, toy_gpt_oss, two_layers

IDS = [5, 17, 3, 99, 42, 7, 11, 23]


def on_definitions() -> Ops:
    """Ops as conf/kernels/reference.yaml has them."""
    return Ops(*(Kernel(name, ("reference",)) for name in Ops.__dataclass_fields__))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts packed in two layers and plain in one."""
    made = toy_gpt_oss.make(experts="mxfp4", plain_layers=(1,))
    return toy_gpt_oss.write(tmp_path_factory.mktemp("toy"), made)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.brief("f32")
def test_states_logits_scores_and_tokens_are_those_of_xla(
    toy: Path, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, thorough: bool
) -> None:
    """In `make test` of one window and of a prompt as long: op by op each token takes long, and each shape compiles."""
    engine, source = replace(model_runs.engine(), dtype=dtype), model_runs.checkpoint(toy)
    compiled, eager = engine.load(source), replace(engine, ops=on_definitions()).load(source)
    atol = 1e-5 if dtype == "f32" else 2**-6
    ours, theirs = compiled.taps(IDS), eager.taps(IDS)
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert np.abs(theirs[name] - value).max() <= atol * np.abs(value).max(), name
    windows = Windows(window=8, stride=None, tokens=24 if thorough else 8, bos=False, batch=2)
    ids = IDS * 3
    if not thorough:
        monkeypatch.setattr(sizes, "BUCKETS", (len(IDS),))
    kept = tmp_path / "kept.npz"
    nll = compiled.score(ids, windows, keep=kept).nll
    compiled.keep_head(tmp_path / "head.npz")
    # One block of positions, as a command has it, and several.
    for block in (1 << 30, 4 * 259 * 5) if thorough else (4 * 259 * 5,):
        monkeypatch.setattr("plugins.engine.score.LOGITS_NBYTES", block)
        score = eager.score(ids, windows, against=Against(kept, tmp_path / "head.npz"))
        assert score.nll == pytest.approx(nll, rel=atol)
        assert abs(score.kl) <= atol
        assert score.compile_s == 0
    if dtype == "f32":
        prompts = [IDS, IDS[2:]] if thorough else [IDS]
        one, two = (m.generate(prompts, max_tokens=3) for m in (compiled, eager))
        assert [g.completion.tokens for g in one] == [g.completion.tokens for g in two]
    assert eager.runtime.compiled == ()


def test_the_command_runs_it_and_the_manifest_says_so(tmp_path: Path, thorough: bool) -> None:
    """In `make test`, a token."""
    text = tmp_path / "text.txt"
    text.write_text("Fellow citizens of the Senate and of the House of Representatives")
    how = ("kernels=reference", "quant=none", f"paths.run={tmp_path / 'run'}", f"paths.outputs={tmp_path}")
    how += (f"model.source={two_layers.folder()}",)
    options = (f"evaluate.texts=[{text}]", "evaluate.windows={window: 8, tokens: 8, batch: 1}")
    options += (f"sampling.max_tokens={2 if thorough else 1}", "chat=false", "prompt=The")
    stages = "load,decode,quantize,evaluate,generate" if thorough else "load,decode,quantize,generate"
    pipeline.run(["+model=gpt_oss", f"stages=[{stages}]", *how, *options])
    ran = {tuple(b) for b in json.loads((tmp_path / "run" / "manifest.json").read_text())["backends"]}
    ops = ("matmul", "embed", "moe", "attention", "softmax", "rms_norm", "rope")
    assert ran == {(op, "reference") for op in ops} | {("cast", "reference")} & ran


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["llama3", "qwen3-moe", "gemma3"])
@pytest.mark.brief("llama3")
def test_other_families(name: str) -> None:
    from tests.cases.toy_models import toy

    t = toy(name)
    runtime = model_runs.load(t.folder, ops=on_definitions())
    ids = t.ids[:1, :10]
    got = runtime.taps(ids, np.arange(10, dtype=np.int32)[None])
    for tap, value in t.taps.items():
        assert np.abs(np.asarray(got[tap]) - value[:1, :10]).max() <= 1e-4, tap
