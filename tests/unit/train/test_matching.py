"""What a training is planned with: a teacher that can teach, an objective for the data, a model for both."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.errors import SourceError
from pipeline.planning.memory import plan_run
from pipeline.planning.wiring import Plan
from tests.cases.tokenizers import TINY

TEXT = ("data.files=[text.txt]", "data.length=16", "train.batch=2")
ROWS = ("data=table", "data.files=[rows.csv]", "data.target=y")
SIX = ["sliding_attention", "full_attention"] * 3
MLP = "{inputs: 2, hidden_sizes: [4], outputs: 1}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The people of the United States have elected a sailor. " * 40)
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "1,2,3\n2,5,1\n4,7,2\n" * 20)


def planned(tmp_path: Path, *overrides: str) -> Plan:
    return plan_run(compose_run([*overrides, f"paths.run={tmp_path / 'run'}"]), tmp_path, fetch=False)


def said(tmp_path: Path, *overrides: str) -> list[str]:
    return [str(p) for p in planned(tmp_path, *overrides).problems]


def teacher(tmp_path: Path, **config: Any) -> Path:
    """The tiny model's config.json and tokenizer, without its weights."""
    folder = tmp_path / "teacher"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    given = json.loads((folder / "config.json").read_text())
    given.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps({**given, **config}))
    return folder


def distill(tmp_path: Path, *more: str, **config: Any) -> tuple[str, ...]:
    return (
        "+model=gpt_oss",
        "flow=distill",
        "stages=[load,teacher,train]",
        f"teacher={teacher(tmp_path, **config)}",
        *TEXT,
    )


def test_a_teacher_is_in_the_plan(tmp_path: Path) -> None:
    alone = planned(tmp_path, "+model=gpt_oss", "stages=[load,train]", *TEXT).takes["train"]
    taught = planned(tmp_path, *distill(tmp_path)).takes["train"]
    larger = planned(tmp_path, *distill(tmp_path, num_hidden_layers=6, layer_types=SIX)).takes["train"]
    weights = taught.device_nbytes - alone.device_nbytes
    assert weights == 4 * 5_107_032  # numbers, as fp32 on this device
    assert larger.device_nbytes > taught.device_nbytes
    assert taught.moved_nbytes == pytest.approx(4 / 3 * alone.moved_nbytes)  # forth once more
    read = {file.path for file in taught.inputs}
    assert tmp_path / "teacher" / "tokenizer.json" in read  # another one would be another training


def test_who_cannot_teach_is_said(tmp_path: Path) -> None:
    [problem] = said(tmp_path, *distill(tmp_path, vocab_size=4090))
    assert problem == "stages.teacher: has a vocabulary of 4,090 tokens, and what is trained one of 4,096"
    args = distill(tmp_path)
    file = tmp_path / "teacher" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["ro"], vocab["Ġbe"] = vocab["Ġbe"], vocab["ro"]
    file.write_text(json.dumps(tokenizer))
    [problem] = said(tmp_path, *args)
    assert "has another tokenizer than what is trained: token 300 is ' be' there and 'ro' here" in problem
    [problem] = said(tmp_path, *distill(tmp_path), "train/objective=causal_lm")
    assert "CausalLM learns of no teacher; train/objective=distillation does" in problem
    [problem] = said(tmp_path, *args, "teacher=/nowhere")
    assert problem.startswith("stages.teacher: teacher='/nowhere'")
    [problem] = said(tmp_path, *distill(tmp_path), "mesh=data", "mesh.axes.data=2")
    assert "a teacher is for one device so far" in problem


def test_what_is_rounded_learns_of_itself_and_nothing_else_does(tmp_path: Path) -> None:
    args = ("+model=gpt_oss", "stages=[load,train]", "train/objective=distillation", *TEXT)
    for kind in ("full", "lora"):
        [problem] = said(tmp_path, *args, f"train={kind}")
        assert "needs a teacher other than what is trained" in problem
    for kind in ("qat", "qlora"):
        assert said(tmp_path, *args, f"train={kind}", "quant=mxfp4") == []


def test_an_objective_is_for_some_data_and_some_models(tmp_path: Path) -> None:
    mlp = ("+model=mlp", "stages=[init,train]", f"++stages.init.config={MLP}")
    assert said(tmp_path, *mlp, *ROWS, "train/objective=regression") == []
    [problem] = said(tmp_path, *mlp, *ROWS)
    assert problem.startswith("train.objective: CausalLM takes tokens of int32 and targets of int32, and the data have")
    assert "regression for numbers" in problem
    [problem] = said(tmp_path, *mlp, *ROWS, "train/objective=classification")
    assert (
        "Classification takes targets of int32, and the data have inputs of float32 and targets of float32" in problem
    )
    [problem] = said(tmp_path, *mlp, *TEXT)
    assert problem == "data: are texts, and 'mlp' is a model for rows of numbers; data=table, images, digits"
    [problem] = said(tmp_path, "+model=gpt_oss", "stages=[load,train]", *ROWS, "train/objective=regression")
    assert problem == "data: are rows of numbers, and 'gpt_oss' is a language model; data=text, chat"
    [problem] = said(tmp_path, *mlp, *ROWS, "train/objective=regression", "train.look.prompts=[Once]")
    assert problem == "train.look.prompts: texts need a tokenizer, and the checkpoint has none"


def test_schedules_and_groups_are_for_this_training(tmp_path: Path) -> None:
    args = ("+model=gpt_oss", "stages=[load,train]", *TEXT, "train.steps=9", "train.optimizer.schedule.warmup=10")
    found = said(tmp_path, *args, "+train.optimizer.groups={*router*: 0.5, *rooter*: 2}", "train.look.groups=['*sink']")
    assert found[0].startswith("train.optimizer.schedule.warmup: 10 steps, and 0 of cooldown: more than the 9")
    assert [p.partition(":")[0] for p in found[1:]] == ["train.optimizer.groups.*rooter*", "train.look.groups.*sink"]
    adapters = ("train=lora", "train.look.groups=['*.lora_A.weight']")
    assert said(tmp_path, *args[:-1], *adapters) == []


def test_what_knows_no_words_is_neither_scored_nor_continued(tmp_path: Path) -> None:
    mlp = ("+model=mlp", f"++stages.init.config={MLP}")
    for stage in ("evaluate", "generate"):
        [problem] = said(tmp_path, *mlp, f"stages=[init,decode,{stage}]")
        assert problem.startswith("model: 'mlp' takes rows of numbers and knows no words")


def test_faults_of_data_alone_are_those_of_a_source(tmp_path: Path) -> None:
    plan = planned(tmp_path, "+model=gpt_oss", "stages=[load,train]", "data.files=[nowhere.txt]")
    assert [why.exit_code for why in plan.failures] == [SourceError.exit_code]
