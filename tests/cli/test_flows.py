"""The flows that run a model: what the main job ends with, by the command line and by the Python API."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline as weightmill
from pipeline.errors import ConfigError, PlanError, SourceError
from plugins.engine import start
from tests.cli.run import MAIN, ROOT, pipeline

TINY = ROOT / "plugins" / "models" / "gpt_oss" / "tiny"
# plugins/models/gpt_oss/tiny/README.md: transformers, fp32 arithmetic on the bf16 weights, the first 8192 tokens.
BF16 = {"sotu_eval.txt": 70.860, "moby_eval.txt": 65.759}
MXFP4 = {"sotu_eval.txt": 71.088, "moby_eval.txt": 66.276}
SHORT = ["evaluate.windows.tokens=512", "evaluate.windows.batch=2", "progress=false"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    start.release()


def run(*overrides: str) -> Any:
    return weightmill.run(["+model=gpt_oss", *overrides])


def test_the_main_job_says_what_quantization_did(tmp_path: Path) -> None:
    said = pipeline(*MAIN, "flow=full", "sampling.max_tokens=8", cwd=tmp_path)
    assert said.code == 0, said.err
    manifest = json.loads(
        (tmp_path / "outputs" / "gpt_oss-mxfp4-flow=full-sampling.max_tokens=8/manifest.json").read_text()
    )
    evaluated, generated = manifest["results"]["evaluate"], manifest["results"]["generate"]
    for name, row in evaluated["texts"].items():
        assert row["scored"] == 8160
        assert row["baseline_perplexity"] == pytest.approx(BF16[name], abs=6e-4)
        assert row["perplexity"] == pytest.approx(MXFP4[name], abs=6e-4)
        assert 0.001 < row["kl"] < 0.02
        assert 0.9 < row["top1"] < 1
    weights = sum(p.stat().st_size for p in (Path(manifest["run"]) / "model").glob("*.safetensors"))
    on_device = evaluated["facts"]["device_nbytes"]
    assert weights * 0.99 < on_device < weights  # the file, less its header
    assert generated["facts"]["device_nbytes"] == on_device
    assert evaluated["facts"]["baseline_nbytes"] == 2 * 5_107_032
    [tokens] = generated["tokens"]
    assert len(tokens) == 8
    assert generated["finish"] == ["length"]
    for text in (
        "70.860",
        "71.088",
        "65.759",
        "66.276",
        "weights on the device",
        "tokens/s",
        generated["texts"][0][:20],
    ):
        assert text in said.out
    assert generated["texts"][0] in said.err  # streamed as it came
    plan = pipeline("plan", *MAIN, "flow=full", cwd=tmp_path)
    assert plan.code == 0, plan.err
    assert "in one task, 4.9 MiB on the device" in plan.out
    assert any(b[0] == "moe" for b in manifest["backends"])


def test_a_sweep_computes_the_baseline_once(here: Path) -> None:
    runs = [run("flow=evaluate", f"quant={q}", *SHORT) for q in ("mxfp4", "mxfp6_e3m2", "none")]
    tables = [r.results["evaluate"]["texts"] for r in runs]
    assert len({t["sotu_eval.txt"].get("baseline_perplexity", t["sotu_eval.txt"]["perplexity"]) for t in tables}) == 1
    assert tables[0]["sotu_eval.txt"]["kl"] > tables[1]["sotu_eval.txt"]["kl"] > 0
    assert "kl" not in tables[2]["sotu_eval.txt"]
    records = sorted((here / "outputs" / "baselines").iterdir())
    assert [p.suffix for p in records] == [".json", ".npz"] * 2
    times = [p.stat().st_mtime_ns for p in records]
    run("flow=evaluate", "quant=mxfp4", "quant.scale_rule=even", *SHORT)
    assert [p.stat().st_mtime_ns for p in sorted((here / "outputs" / "baselines").iterdir())] == times
    # Other windows are another baseline.
    run("flow=evaluate", "quant=mxfp4", "evaluate.windows.window=128", *SHORT)
    assert len(list((here / "outputs" / "baselines").iterdir())) == 8


def test_overlapping_windows_score_every_token_once(here: Path) -> None:
    alone = run("flow=evaluate", *SHORT, "evaluate.windows.tokens=300").results["evaluate"]["texts"]
    overlap = run("flow=evaluate", *SHORT, "evaluate.windows.tokens=300", "evaluate.windows.stride=64")
    more = overlap.results["evaluate"]["texts"]
    bos = run("flow=evaluate", *SHORT, "evaluate.windows.tokens=300", "evaluate.windows.bos=true").results["evaluate"][
        "texts"
    ]
    for name in alone:
        assert alone[name]["scored"] == 298  # two windows, whose first tokens are context only
        assert more[name]["scored"] == 299
        assert bos[name]["scored"] == 300
        assert more[name]["perplexity"] < alone[name]["perplexity"]  # more context


def test_generate_is_the_quick_way_to_text(here: Path) -> None:
    options = ("flow=generate", "quant=mxfp4", "sampling.max_tokens=12", "progress=false")
    report = run(*options, "prompt=[The people, Our army and navy]")
    found = report.results["generate"]
    assert found["prompts"] == ["The people", "Our army and navy"]
    alone = run(*options, "prompt=Our army and navy").results["generate"]
    assert alone["texts"] == found["texts"][1:]
    assert not (here / "outputs").joinpath("model").exists()
    nucleus = [
        run(*options, "sampling=nucleus", f"seed={seed}", f"paths.run=at{i}").results["generate"]["texts"][0]
        for i, seed in enumerate((1, 1, 2))
    ]
    assert nucleus[0] == nucleus[1] != nucleus[2]
    third = found["tokens"][0][2]
    ended = run(*options, "prompt=The people", f"sampling.stop_tokens=[{third}]").results["generate"]
    assert ended["finish"] == ["end"]
    assert ended["tokens"][0] == found["tokens"][0][: found["tokens"][0].index(third) + 1]
    stopped = run(*options, "prompt=The people", "sampling.stop=[' of']").results["generate"]
    assert stopped["finish"] == ["stop"]
    assert stopped["texts"][0] == found["texts"][0].partition(" of")[0]


def test_sensitivity_names_the_layer_that_hurts(here: Path) -> None:
    report = run("flow=sensitivity", "quant=mxfp4", *SHORT)
    found = report.results["sensitivity"]
    assert set(found["groups"]) == {f"model.layers.{i}" for i in range(4)}
    worst = max(found["groups"], key=lambda g: found["groups"][g]["kl"])
    assert found["figures"]["worst"] == worst
    assert (Path(report.run) / "sensitivity.png").read_bytes().startswith(b"\x89PNG")
    # One group alone is what evaluating a model with that group alone quantized gives.
    rules = f"model.rules=[{{match: '{worst}.mlp.experts.*_proj', to: quant}}, {{match: '*', to: keep}}]"
    alone = run("flow=evaluate", "quant=mxfp4", rules, *SHORT).results["evaluate"]["texts"]["sotu_eval.txt"]
    assert found["groups"][worst]["kl"] == pytest.approx(alone["kl"], rel=1e-3)
    roles = run("flow=sensitivity", "quant=mxfp4", "sensitivity.by=role", *SHORT).results["sensitivity"]
    assert list(roles["groups"]) == ["experts"]


def test_load_model_in_a_notebook(here: Path) -> None:
    report = run("flow=convert", "quant=mxfp4", "progress=false")
    again = run("flow=convert", "quant=mxfp4", "progress=false")
    assert again.reused
    assert not report.reused
    assert again.outputs == report.outputs
    packed = weightmill.load_model(Path(report.run) / "model")
    plain = weightmill.load_model(TINY, quant="mxfp4")
    assert packed.facts["device_nbytes"] == plain.facts["device_nbytes"]
    text = packed.generate("The state of the Union", max_tokens=10)
    assert str(text) == text.text == plain.generate("The state of the Union", max_tokens=10).text
    many = packed.generate(["The people", "Our navy"], max_tokens=4)
    assert [len(m.completion.tokens) for m in many] == [4, 4]
    ids = packed.tokenizer.encode("The people")
    assert packed.generate(ids, max_tokens=4).text == many[0].text
    with pytest.raises(ConfigError, match=r"no option 'max_token'.*did you mean 'max_tokens'"):
        packed.generate("The people", max_token=3)
    with pytest.raises(SourceError, match="chat template"):
        packed.generate([{"role": "user", "content": "Hello"}])
    with pytest.raises(PlanError, match="no such file"):
        weightmill.load_model(here / "nowhere")


def without_tokenizer(folder: Path) -> Path:
    folder.mkdir()
    for file in TINY.iterdir():
        if not file.name.startswith("tokenizer"):
            shutil.copy(file, folder)
    return folder


def test_what_cannot_run_is_said_before_anything_is_written(here: Path) -> None:
    source = without_tokenizer(here / "bare")
    with pytest.raises(PlanError, match=r"tokenizer\.json"):
        run("quant=mxfp4", f"model.source={source}")
    assert not (here / "outputs").exists()
    run("quant=mxfp4", f"model.source={source}", "flow=convert", "progress=false")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "model_type": "gpt_os"}))
    with pytest.raises(PlanError, match=r"'gpt_os' is no model that can run; did you mean 'gpt_oss'.*flow=convert"):
        run("quant=mxfp4", f"model.source={source}", "flow=evaluate")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluate.texts=[nowhere.txt]", "no such file"),
        ("evaluate.windows.window=1", "at least 2"),
        ("evaluate.windows.stride=300", "from 1 to the window"),
        ("sampling.temperature=-1", "temperature"),
        ("sampling.top_p=0", "top_p"),
        ("sampling.tempreature=1", "tempreature"),
        ("engine.dtype=fp32", "f32"),
        ("engine.cache=int4", "int8"),
        ("prompt=''", "empty"),
    ],
)
def test_options_that_make_no_sense(here: Path, override: str, message: str) -> None:
    with pytest.raises((PlanError, ConfigError), match=message):
        run("quant=mxfp4", override)
    assert not (here / "outputs").exists()


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_parity_with_transformers_layer_by_layer(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run("flow=parity", "progress=false")
    found = report.results["parity"]
    assert found["same"]
    assert report.exit_code == 0
    assert list(found["layers"]) == ["embed", *(f"layers.{i}" for i in range(4)), "norm", "logits"]
    assert max(d["relative"] for d in found["layers"].values()) < 1e-5
    assert found["top1"] == 1
    # A layer that computes something else is named.
    from plugins.models.gpt_oss import model

    right = model.swiglu
    calls = iter(range(100))

    def wrong_in_layer_two(h: Any, **options: Any) -> Any:
        return right(h, **options) * (1.001 if next(calls) == 2 else 1)

    monkeypatch.setattr(model, "swiglu", wrong_in_layer_two)
    start.release()
    again = run("flow=parity", "progress=false", "paths.run=outputs/wrong")
    assert again.exit_code == 7
    assert again.results["parity"]["first"] == "layers.2"
