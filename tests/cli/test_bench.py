"""`bench` as people type it, with our own engine on the embedded model; with transformers beside it, where that is."""

import json
from pathlib import Path

import pytest

from plugins.contenders.llama_cpp import LlamaCpp
from tests.cases.fake_engines import LIMITS, MODULE, TARGET, written
from tests.cli.run import pipeline

SMALL = (
    "bench.prefill=[16]", "bench.batches=[1,2]", "bench.new=4", "bench.repeats=1", "bench.rounds=1", "bench.tokens=64",
    "bench.window=64", "bench.prompt=8", "bench.greedy=8",
)  # fmt: skip


@pytest.mark.repeats
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
@pytest.mark.repeats  # of what tests/oracle/test_contenders.py says
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


@pytest.mark.repeats  # by the command line
def test_against_a_baseline_alone_asks_what_that_was_asked(tmp_path: Path) -> None:
    """And what is typed all the same is as typed. The trend is shown and drawn."""
    fakes = (
        "--config-dir",
        str(written(tmp_path / "conf")),
        f"stages.bench.reference._target_={TARGET}",
        f"stages.bench.limits._target_={LIMITS}",
    )
    (tmp_path / "conf/plugins/contenders").mkdir(parents=True)
    (tmp_path / "conf/plugins/contenders/fake.py").write_text(MODULE)
    typed = ("engines=[fake,slow]", *(word.replace("rounds=1", "rounds=2") for word in SMALL))
    first = pipeline("bench", "gpt_oss", *typed, *fakes, "bench.threads=1", cwd=tmp_path)
    assert first.code == 0, first.err
    [before] = (tmp_path / "outputs").glob("*/bench.json")
    slower = ("+engines.fake.step_s=0.03", "bench.repeats=2")
    said = pipeline("bench", "--against", before.parent.name, *slower, *fakes[:2], cwd=tmp_path)
    assert said.code == 9, said.err
    assert "was asked: +model=gpt_oss 'engines=[fake,slow]' 'bench.prefill=[16]'" in " ".join(said.err.split())
    [after] = (f for f in (tmp_path / "outputs").glob("*/bench.json") if f != before)
    was, now = (json.loads(file.read_text()) for file in (before, after))
    assert "+model=gpt_oss" in was["command"]
    assert was["when"] < now["when"]
    assert [row["engine"] for row in now["rows"]] == ["fake", "slow"]
    assert (now["workload"], now["machine"]["threads"]) == (was["workload"] | {"repeats": 2}, 1)
    assert any(text.startswith("fake none: decode × 1") for text in now["regressions"])
    assert "Trend" in said.out
    assert (after.parent / "trend.png").stat().st_size > 10_000
    wrong = pipeline("bench", "--against", "bench-of-yore", cwd=tmp_path)
    assert wrong.code == 4
    assert "bench-of-yore" in wrong.err


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
