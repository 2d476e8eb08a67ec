"""The flows that run a model: what the main job ends with, by the command line and by the Python API."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import pipeline as weightmill
from pipeline.api import compose_run
from pipeline.errors import ConfigError, PlanError, SourceError
from pipeline.planning.memory import plan_run
from pipeline.stage import Checkpoint
from pipeline.testing.memory import MemoryStore
from stages.parity import Parity
from tests.cases import two_layers
from tests.cli.run import MAIN, OPTIMIZED, ROOT, end, pipeline, start

TINY = ROOT / "plugins" / "models" / "gpt_oss" / "tiny"
# plugins/models/gpt_oss/tiny/README.md: transformers, fp32 arithmetic on the bf16 weights, the first 8192 tokens.
BF16 = {"sotu_eval.txt": 70.860, "moby_eval.txt": 65.759}
MXFP4 = {"sotu_eval.txt": 71.088, "moby_eval.txt": 66.276}
SHORT = ["evaluate.windows.tokens=512", "evaluate.windows.batch=2", "progress=false"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*overrides: str) -> Any:
    return weightmill.run(["+model=gpt_oss", *overrides])


def small(*overrides: str) -> Any:
    """Of half the model, where nothing that is asserted is of a trained one."""
    return run(f"model.source={two_layers.folder()}", *overrides)


def assert_as_planned(report: Any, *overrides: str) -> None:
    """Every stage that ran a model had on the device what its plan says."""
    plan = plan_run(compose_run(["+model=gpt_oss", *overrides]), Path(report.run))
    assert plan.takes
    for name, need in plan.takes.items():
        facts = report.results[name]["facts"]
        assert max(facts["device_nbytes"], facts.get("baseline_nbytes", 0)) == need.device_nbytes - need.cache_nbytes, (
            name
        )
        assert facts["planned_nbytes"] == facts["device_nbytes"], name


def test_the_main_job_says_what_quantization_did(tmp_path: Path, thorough: bool) -> None:
    """Of the whole model and whole texts README.md says it, and test_readme.py that it does."""
    source = TINY if thorough else two_layers.folder()
    args = (f"model.source={source}", "flow=full", "sampling.max_tokens=8")
    args += (f"evaluate.windows.tokens={8192 if thorough else 1024}",)
    said = pipeline(*MAIN, *args, cwd=tmp_path, env=OPTIMIZED if thorough else None)
    assert said.code == 0, said.err
    [found] = (tmp_path / "outputs").glob("*/manifest.json")
    manifest = json.loads(found.read_text())
    evaluated, generated = manifest["results"]["evaluate"], manifest["results"]["generate"]
    assert evaluated["texts"].keys() == BF16.keys()
    for name, row in evaluated["texts"].items():
        assert row["scored"] == (8160 if thorough else 1020)
        if thorough:
            assert row["baseline_perplexity"] == pytest.approx(BF16[name], abs=6e-4)
            assert row["perplexity"] == pytest.approx(MXFP4[name], abs=6e-4)
        assert f"{row['baseline_perplexity']:.3f}" in said.out
        assert f"{row['perplexity']:.3f}" in said.out
        assert 0.001 < row["kl"] < 0.02
        assert 0.9 < row["top1"] < 1
    weights = sum(p.stat().st_size for p in (Path(manifest["run"]) / "model").glob("*.safetensors"))
    on_device = evaluated["facts"]["device_nbytes"]
    assert weights * 0.99 < on_device < weights  # the file, less its header
    assert generated["facts"]["device_nbytes"] == on_device
    assert evaluated["facts"]["baseline_nbytes"] == (2 * 5_107_032 if thorough else values(source))
    [tokens] = generated["tokens"]
    assert len(tokens) == 8
    assert generated["finish"] == ["length"]
    for text in ("weights on the device", "tokens/s", generated["texts"][0][:20]):
        assert text in said.out
    assert generated["texts"][0] in said.err  # streamed as it came
    plan = pipeline("plan", *MAIN, *args, cwd=tmp_path)
    assert plan.code == 0, plan.err
    rows = {row["what"]: row for row in manifest["predicted"]}
    assert rows["device"]["planned"] == rows["device"]["measured"] == evaluated["facts"]["baseline_nbytes"]
    share = 0.8 if thorough else 0.7  # of shorter texts, what is kept is less beside what else is planned
    assert share * rows["disk"]["planned"] < rows["disk"]["measured"] <= rows["disk"]["planned"]
    assert rows["memory"]["measured"] <= rows["memory"]["planned"]
    assert re.search(r"\bKV\b", plan.out)  # a table may break the line anywhere
    assert any(b[0] == "moe" for b in manifest["backends"])


def values(source: Path) -> int:
    """Bytes of all tensors in a file."""
    content = (source / "model.safetensors").read_bytes()
    return len(content) - 8 - int.from_bytes(content[:8], "little")


def test_a_sweep_computes_the_baseline_once(here: Path) -> None:
    tables, times = [], []
    for quant in ("mxfp4", "mxfp6_e3m2", "none"):
        tables.append(small("flow=evaluate", f"quant={quant}", *SHORT).results["evaluate"]["texts"])
        times.append([p.stat().st_mtime_ns for p in baselines(here, "states.npz")])
    assert len({t["sotu_eval.txt"].get("baseline_perplexity", t["sotu_eval.txt"]["perplexity"]) for t in tables}) == 1
    assert tables[0]["sotu_eval.txt"]["kl"] > tables[1]["sotu_eval.txt"]["kl"] > 0
    assert "kl" not in tables[2]["sotu_eval.txt"]
    assert len(times[0]) == 2
    assert times[0] == times[1] == times[2]


def baselines(here: Path, name: str) -> list[Path]:
    return sorted(p.with_name(name) for p in (here / "outputs" / ".results").glob("*/states.npz"))


@pytest.mark.repeats
def test_a_damaged_baseline_is_made_again(here: Path) -> None:
    def evaluated() -> Any:
        return run("flow=evaluate", "quant=mxfp4", *SHORT, "overwrite=true").results["evaluate"]["texts"]

    first = evaluated()
    whole = [p.read_bytes() for p in baselines(here, "states.npz")]
    for path in baselines(here, "states.npz"):
        bits = bytearray(path.read_bytes())
        bits[len(bits) // 2] ^= 1
        path.write_bytes(bits)
    assert evaluated() == first
    assert [len(p.read_bytes()) for p in baselines(here, "states.npz")] == [len(b) for b in whole]
    for path in baselines(here, "result.json"):
        path.write_text("{")
    assert evaluated() == first
    assert all(json.loads(p.read_text())["xxh3_128"] for p in baselines(here, "result.json"))
    assert len(list((here / "outputs" / ".results").iterdir())) == 4  # two texts, the head, the evaluation


def test_a_baseline_that_cannot_be_kept(here: Path) -> None:
    (here / "outputs").mkdir()
    (here / "outputs" / ".results").write_text("in the way")
    with pytest.raises(PlanError, match=r"results cannot be kept in .*outputs/\.results: .*\.results is not a folder"):
        run("flow=evaluate", "quant=mxfp4", *SHORT)


@pytest.mark.repeats
def test_what_any_stage_changes_is_evaluated(tmp_path: Path) -> None:
    """A stage of the user's own, which changes values and no spec, before `decode` and after it."""
    (tmp_path / "mine" / "stages").mkdir(parents=True)
    (tmp_path / "mine/stages/prune.yaml").write_text(
        "# @package stages.prune\n_target_: stages.prune.Prune\nbelow: 0.0\n"
    )
    (tmp_path / "mine/stages/prune.py").write_text(PRUNE)
    found = []
    for stages, below in (("load,prune,decode", 0.0), ("load,prune,decode", 0.05), ("load,decode,prune", 0.05)):
        at = f"paths.run=run{len(found)}"
        args = (f"stages=[{stages},evaluate]", f"stages.prune.below={below}", "evaluate.windows.tokens=128", at)
        said = pipeline("--config-dir", "mine", "+model=gpt_oss", *args, cwd=tmp_path)
        assert said.code == 0, said.err
        manifest = json.loads((tmp_path / f"run{len(found)}/manifest.json").read_text())
        found.append(manifest["results"]["evaluate"]["texts"]["sotu_eval.txt"])
    assert found[1]["perplexity"] > 1.02 * found[0]["perplexity"]
    assert found[2]["perplexity"] == pytest.approx(found[1]["perplexity"], rel=1e-5)
    assert found[2]["baseline_perplexity"] == pytest.approx(found[0]["perplexity"], rel=1e-5)


PRUNE = """
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.stage import Checkpoint, Context


@dataclass(frozen=True)
class Prune:
    below: float

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint.map(partial(prune, below=self.below), "*.weight")


def prune(x, below):
    return np.where(abs(x) < below, np.zeros((), x.dtype), x)
"""


@pytest.mark.repeats
def test_overlapping_windows_score_every_token_once(here: Path) -> None:
    alone = run("flow=evaluate", *SHORT, "evaluate.windows.tokens=300").results["evaluate"]["texts"]
    overlap = run("flow=evaluate", *SHORT, "evaluate.windows.tokens=300", "evaluate.windows.stride=64")
    more = overlap.results["evaluate"]["texts"]
    assert_as_planned(overlap, "flow=evaluate", *SHORT)
    bos = run("flow=evaluate", *SHORT, "evaluate.windows.tokens=300", "evaluate.windows.bos=true").results["evaluate"][
        "texts"
    ]
    for name in alone:
        assert alone[name]["scored"] == 298  # two windows, whose first tokens are context only
        assert more[name]["scored"] == 299
        assert bos[name]["scored"] == 300
        assert more[name]["perplexity"] < alone[name]["perplexity"]  # more context


def test_generate_is_the_quick_way_to_text(here: Path, thorough: bool) -> None:
    options = ("flow=generate", "quant=mxfp4", "sampling.max_tokens=12", "progress=false")
    report = small(*options, "prompts=[The people, Our army and navy]")
    found = report.results["generate"]
    assert found["prompts"] == ["The people", "Our army and navy"]
    assert_as_planned(report, f"model.source={two_layers.folder()}", *options)
    alone = small(*options, "prompt=Our army and navy").results["generate"]
    assert alone["texts"] == found["texts"][1:]
    assert not (here / "outputs").joinpath("model").exists()
    nucleus = small(*options, "sampling=nucleus", "prompt=The people", "seed=1").results["generate"]["texts"]
    assert nucleus != found["texts"][:1]
    third = found["tokens"][0][2]
    ended = small(*options, "prompt=The people", f"sampling.stop_tokens=[{third}]").results["generate"]
    assert ended["finish"] == ["end"]
    assert ended["tokens"][0] == found["tokens"][0][: found["tokens"][0].index(third) + 1]
    if thorough:  # of strings tests/unit/engine/test_generate.py says it
        word = re.findall(r" [a-z]+", found["texts"][0])[-1]
        stopped = small(*options, "prompt=The people", f"sampling.stop=['{word}']").results["generate"]
        assert stopped["finish"] == ["stop"]
        assert stopped["texts"][0] == found["texts"][0].partition(word)[0]


def test_a_chat_template_that_is_not_there_is_not_left_out(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer.chat_template='chatml.jinja': no such file, and .*no templates"):
        run("flow=generate", "sampling.max_tokens=2", "tokenizer.chat_template=chatml.jinja")


def test_an_empty_text_is_named(here: Path) -> None:
    (here / "empty.txt").touch()
    with pytest.raises(PlanError, match=r"empty\.txt: an empty file, nothing to predict"):
        run("flow=evaluate", "evaluate.texts=[empty.txt]")


def test_an_interrupt_ends_a_long_text_at_once(tmp_path: Path) -> None:
    args = ["+model=gpt_oss", f"model.source={two_layers.folder()}", "flow=generate", "sampling.max_tokens=50000"]
    process = start(*args, cwd=tmp_path, env={"JAX_PLATFORMS": "cpu"}, stdout=None)
    assert process.stderr is not None
    try:
        assert len(process.stderr.read(30)) == 30  # text comes
        process.send_signal(signal.SIGINT)
        said = end(process, 60)
    finally:
        process.kill()
    assert said.code == 130
    assert "interrupted; the same command goes on from here" in said.err


def test_sensitivity_names_the_layer_that_hurts_and_what_calibration_gained(here: Path) -> None:
    report = small("flow=sensitivity", "quant=mxfp4", *SHORT)
    found = report.results["sensitivity"]
    assert set(found["groups"]) == {f"model.layers.{i}" for i in range(two_layers.LAYERS)}
    worst = max(found["groups"], key=lambda g: found["groups"][g]["kl"])
    assert found["figures"]["worst"] == worst
    assert (Path(report.run) / "sensitivity.png").read_bytes().startswith(b"\x89PNG")
    # One group alone is what evaluating a model with that group alone quantized gives.
    rules = f"model.rules=[{{match: '{worst}.mlp.experts.*_proj', to: quant}}, {{match: '*', to: keep}}]"
    alone = small("flow=evaluate", "quant=mxfp4", rules, *SHORT).results["evaluate"]["texts"]["sotu_eval.txt"]
    assert found["groups"][worst]["kl"] == pytest.approx(alone["kl"], rel=1e-3)
    roles = small("flow=sensitivity", "quant=mxfp4", "sensitivity.by=role", *SHORT).results["sensitivity"]
    assert list(roles["groups"]) == ["experts"]
    assert_as_planned(report, f"model.source={two_layers.folder()}", "flow=sensitivity", "quant=mxfp4", *SHORT)
    # What calibration gained is shown before and after.
    short = ("calibrate.windows.tokens=512", *SHORT)
    report = small("flow=sensitivity", "quant=mxfp4", "calibrate=imatrix", *short)
    after = report.results["sensitivity"]
    for name, row in after["groups"].items():
        assert row["nearest"] == pytest.approx({k: found["groups"][name][k] for k in row["nearest"]}, rel=1e-6)
    assert after["together"]["nearest"]["kl"] == pytest.approx(found["together"]["kl"])
    assert "nearest" not in found["together"]
    names = {f"model.layers.{i}.mlp.experts.{p}_proj" for i in range(two_layers.LAYERS) for p in ("gate_up", "down")}
    assert {row["name"] for row in report.gains} == names
    assert all([*row["lost"]] == ["nearest", "imatrix"] and row["by"] == "squares" for row in report.gains)
    again = small("flow=convert", "quant=mxfp4", "calibrate=imatrix", "calibrate.windows.tokens=512")
    of = {row["name"]: row["lost"] for row in again.gains}
    assert of == {row["name"]: pytest.approx({k: v / 2 for k, v in row["lost"].items()}) for row in report.gains}
    assert json.loads((Path(again.run) / "manifest.json").read_text())["gains"] == again.gains


def test_parity_takes_random_tokens_only_where_there_is_no_tokenizer(here: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    source = without_tokenizer(here / "bare")
    config = json.loads((source / "config.json").read_text())
    parity = Parity(None, None, str(ROOT / "plugins/texts/sotu_eval.txt"), tokens=9)  # type: ignore[arg-type]
    checkpoint = Checkpoint(MemoryStore({}), config)

    def ids(**options: Any) -> tuple[list[int], str]:
        session = weightmill.load_model(source, overrides=[f"tokenizer.{k}={v}" for k, v in options.items()])
        return parity._ids(session, checkpoint, 0)

    found, prompt = ids()
    assert (len(found), prompt) == (9, "random tokens: the checkpoint has no tokenizer")
    assert ids()[0] == found
    with pytest.raises(SourceError, match="holds neither o200k_base"):  # named, and not there: broken
        ids(vocabulary=here)
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError, match=r"tokenizer.json: not a tokenizer"):
        ids()
    shutil.copy(TINY / "tokenizer.json", source)
    assert ids()[1] == "sotu_eval.txt"


def without_tokenizer(folder: Path) -> Path:
    folder.mkdir()
    for file in two_layers.folder().iterdir():
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
        run("quant=mxfp4", f"model.source={source}", "model.model_types=[gpt_os]", "flow=evaluate")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluate.texts=[nowhere.txt]", "no such file"),
        ("evaluate.texts=[/]", "a folder; a text file is expected"),
        ("evaluate.windows.window=1", "at least 2"),
        ("evaluate.windows.stride=300", "from 1 to the window"),
        ("sampling.temperature=-1", "temperature"),
        ("sampling.top_p=0", "top_p"),
        ("sampling.tempreature=1", "tempreature"),
        ("engine.dtype=fp33", "f32"),
        ("engine.cache=int4", "int8"),
        ("prompt=", "empty"),
        ("prompts=[]", "empty"),
        ("tokenizer.vocabulary=nowhere", "no such folder"),
        ("tokenizer.encoding=o200k", "no such encoding; did you mean 'o200k_harmony'"),
    ],
)
def test_options_that_make_no_sense(here: Path, override: str, message: str) -> None:
    with pytest.raises((PlanError, ConfigError), match=message):
        run("quant=mxfp4", override)
    assert not (here / "outputs").exists()


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_parity_with_transformers_layer_by_layer(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = small("flow=parity", "progress=false")
    found = report.results["parity"]
    assert found["same"]
    assert report.exit_code == 0
    assert list(found["layers"]) == ["embed", *(f"layers.{i}" for i in range(two_layers.LAYERS)), "norm", "logits"]
    assert max(d["relative"] for d in found["layers"].values()) < 1e-5
    assert found["top1"] == 1
    assert found["prompt"] == "sotu_eval.txt"
    assert_as_planned(report, f"model.source={two_layers.folder()}", "flow=parity")
    # A layer that computes something else is named.
    from plugins.models.gpt_oss import model

    right = model.swiglu
    calls = iter(range(100))

    def wrong_in_layer_one(h: Any, **options: Any) -> Any:
        return right(h, **options) * (1.001 if next(calls) == 1 else 1)

    monkeypatch.setattr(model, "swiglu", wrong_in_layer_one)
    again = small("flow=parity", "progress=false", "paths.run=outputs/wrong", "overwrite=true")
    assert again.exit_code == 7
    assert again.results["parity"]["first"] == "layers.1"
