"""The verb `plan` says what would stop the run, without touching anything."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pipeline.units import parse_bytes
from tests.cases import caches, toy_llama
from tests.cli.run import ROOT, pipeline

MAIN = ("+model=gpt_oss", "quant=mxfp4", "paths.run=here")


def test_a_target_in_the_way_and_another_run_are_said(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    result = pipeline("plan", *MAIN, "export.path=taken", cwd=tmp_path)
    assert result.code == 3
    assert "taken exists already" in result.err
    assert not (tmp_path / "here").exists()


def test_the_time_is_known_once_it_was_measured_and_the_run_says_how_far_off_the_plan_was(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": caches.fresh(tmp_path / "cache")}
    before = pipeline("plan", *MAIN, cwd=tmp_path, env=env)
    assert "time: no rate measured yet of load, decode, quantize, export" in before.out
    assert not (tmp_path / "cache/weightmill/rates.json").exists()  # planning measures nothing
    first = pipeline(*MAIN, cwd=tmp_path, env=env)
    assert first.code == 0, first.err
    assert "Planned and measured" in first.out
    assert "no rate measured yet" in first.out
    rows = {r["what"]: r for r in json.loads((tmp_path / "here/manifest.json").read_text())["predicted"]}
    assert rows["time"]["planned"] is None
    assert rows["time"]["no_rate_yet"] == ["load", "decode", "quantize", "export"]
    assert rows["disk"]["planned"] == rows["disk"]["measured"]
    assert rows["memory"]["planned"] > rows["memory"]["measured"] > 30 << 20
    after = pipeline("plan", *MAIN, "overwrite=true", cwd=tmp_path, env=env)
    assert "time about " in after.out
    assert pipeline(*MAIN, "overwrite=true", "dask.workers=1", cwd=tmp_path, env=env).code == 0
    rows = {r["what"]: r for r in json.loads((tmp_path / "here/manifest.json").read_text())["predicted"]}
    assert rows["time"]["planned"] > 0


def test_a_baseline_that_no_stage_gives_is_a_problem(tmp_path: Path) -> None:
    said = pipeline("plan", *MAIN, "stages=[load,quantize,evaluate]", cwd=tmp_path)
    assert said.code == 3
    assert "stages.evaluate: run takes 'checkpoint' and 'decode', each a Checkpoint" in said.err
    assert pipeline("plan", *MAIN, "stages=[load,decode,quantize,evaluate]", cwd=tmp_path).code == 0


def test_a_plan_without_weights_and_the_run_that_needs_them(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_bytes((ROOT / "plugins/models/gpt_oss/tiny/config.json").read_bytes())
    command = ("model.source=mine", "quant=mxfp4", "paths.run=here")
    planned = pipeline("plan", *command, cwd=tmp_path)
    assert planned.code == 0, planned.err
    assert "shapes only, no weights are here" in " ".join(planned.out.replace("│", " ").split())
    assert "8×448×160" in planned.out
    run = pipeline(*command, cwd=tmp_path)
    assert run.code == 4
    assert "model.source='mine': is no checkpoint that can be read; it has settings, and no weights" in run.err
    assert not (tmp_path / "here").exists()
    env = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    planned = pipeline("plan", "+model=gpt_oss_120b", "flow=convert", "stages=[load]", cwd=tmp_path, env=env)
    assert planned.code == 0, planned.err
    assert "128×5760×2880" in planned.out


def test_the_kv_cache_is_in_the_plan(tmp_path: Path) -> None:
    few = pipeline("plan", *MAIN, "flow=generate", cwd=tmp_path)
    many = pipeline("plan", *MAIN, "flow=generate", "sampling.max_tokens=4000", "engine.cache=int8", cwd=tmp_path)
    assert few.code == many.code == 0, few.err + many.err
    said = [re.search(r"([\d.]+ [KM]iB) of it KV cache", plan.out) for plan in (few, many)]
    sizes = [parse_bytes(found[1], "") for found in said if found is not None]
    assert len(sizes) == 2
    assert sizes[1] > sizes[0] > 0


def test_a_complete_run_is_no_obstacle_to_itself_but_to_others(tmp_path: Path) -> None:
    assert pipeline(*MAIN, cwd=tmp_path).code == 0
    planned = pipeline("plan", *MAIN, cwd=tmp_path)
    assert planned.code == 0
    assert "done already: export; `why` says where" in planned.out.splitlines()
    assert "\ntime" not in planned.out  # nothing is left to do
    assert "done already" not in pipeline("plan", *MAIN, "overwrite=true", cwd=tmp_path).out
    other = pipeline("plan", *MAIN, "quant.scale_rule=even", cwd=tmp_path)
    assert other.code == 3
    assert "done already" not in other.out
    assert "holds another run (this one has quant.scale_rule=even)" in " ".join(other.err.split())


def test_tensors_that_config_json_contradicts_are_refused_before_the_run_and_alike(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({n: a.astype(np.float32) for n, a in toy_llama.weights().items()}, model / "model.safetensors")
    shutil.copy(ROOT / "plugins/models/gpt_oss/tiny/tokenizer.json", model)
    found, hidden = toy_llama.CONFIG["vocab_size"], toy_llama.CONFIG["hidden_size"]
    (model / "config.json").write_text(json.dumps({**toy_llama.CONFIG, "vocab_size": found - 8}))
    (tmp_path / "text.txt").write_text("a text of some words. " * 60)
    args = (f"model.source={model}", "quant=none")
    generate, train = (*args, "flow=generate"), (*args, "flow=finetune", "data.files=[text.txt]", "train.steps=1")
    told = [pipeline(*verb, cwd=tmp_path) for verb in (("plan", *generate), generate, ("plan", *train))]
    assert [said.code for said in told] == [4, 4, 4], [said.err for said in told]
    words = f"has shape [{found}, {hidden}]; config.json makes it [{found - 8}, {hidden}], by vocab_size {found - 8}"
    assert all(words in said.err for said in told)
    assert told[0].err == told[1].err
    assert pipeline("plan", *args, "flow=convert", cwd=tmp_path).code == 0  # which needs no model
