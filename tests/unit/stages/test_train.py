"""What training gives belongs to a key: jobs and runs that need the same share it, and what was begun is not lost."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.api import compose_run
from pipeline.errors import StageError
from pipeline.events import Events
from pipeline.figures import Figure
from pipeline.planning.memory import plan_run
from pipeline.planning.sweep import Job
from pipeline.reporting.manifest import Report, plain
from pipeline.running.results import FOLDER, Results, unreferred
from pipeline.running.runner import execute, execute_jobs
from pipeline.running.why import reasons
from pipeline.stage import Checkpoint, Context, Table
from pipeline.tensors.spec import numpy_dtype
from pipeline.training import Splits, Trained
from plugins.formats.safetensors.container import SafeTensors
from plugins.train.trainer import Trainer
from tests.cases.memory_store import MemoryStore

STAGES = "stages=[load,train,quantize,export]"
BIAS = "model.layers.0.self_attn.q_proj.bias"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The people of the United States have elected a sailor. " * 40)
    return tmp_path


class Fake:
    """Stands in for `Trainer.train`: adds 1 to every weight. A first try may fail."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.fails = False
        self.went_on = False

    def __call__(
        self, trainer: Trainer, ctx: Context, checkpoint: Checkpoint, data: Splits, tokenizer: Any, seed: int,
        teacher: Checkpoint | None,
    ) -> Trained:  # fmt: skip
        assert len(data.train) > 0
        assert ctx.unfinished is not None
        self.seeds.append(seed)
        self.went_on = (ctx.unfinished / "state").exists()
        (ctx.unfinished / "state").write_text("so far")
        (ctx.run_dir / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
        if self.fails:
            raise StageError("the power went off")
        specs = trainer.result_specs(checkpoint)
        made = {n: (checkpoint.store.read(n).astype("f4") + 1).astype(numpy_dtype(s.dtype)) for n, s in specs.items()}
        tables = (Table("Training", ("", ""), (("loss", Figure(1.5)),)),)
        return Trained(MemoryStore(made), plain({"figures": {"training loss": Figure(1.5)}, "tables": tables}))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    monkeypatch.setattr(Trainer, "train", lambda self, *args: found(self, *args))
    return found


def job(outputs: Path, name: str, *overrides: str) -> Job:
    given = ["+model=gpt_oss", STAGES, "data.files=[text.txt]", *overrides, f"paths.outputs={outputs}"]
    return Job(compose_run([*given, f"paths.run={outputs / name}"]), outputs / name, tuple(overrides), name)


def run(outputs: Path, name: str, *overrides: str) -> Report:
    one = job(outputs, name, *overrides)
    return execute(one.run, one.run_dir, [], Events())


def test_jobs_that_differ_later_share_a_training(tmp_path: Path, fake: Fake) -> None:
    outputs = tmp_path / "out"
    jobs = [job(outputs, q, f"quant={q}", "export=plain") for q in ("none", "int8")]
    reports = execute_jobs(jobs, Events())
    assert fake.seeds == [0]
    for report in reports:
        assert isinstance(report, Report)
        assert {*report.results} == {"train"}  # once, and not again where the checkpoint is only passed on
        assert report.results["train"]["figures"]["training loss"]["value"] == 1.5
        rows = [json.loads(line) for line in (Path(report.run) / "metrics.jsonl").read_text().splitlines()]
        assert {"kind": "train", "step": 1} in rows
        assert rows[-1]["kind"] == "run"
    before = jobs[0].run.stages["load"].run(Context(tmp_path)).store.read(BIAS)
    after = SafeTensors().open(outputs / "none" / "model").read(BIAS)
    np.testing.assert_array_equal(after, (before.astype("f4") + 1).astype(before.dtype))
    assert not list((outputs / FOLDER).glob("*.unfinished"))


def test_a_later_run_finds_it(tmp_path: Path, fake: Fake) -> None:
    outputs = tmp_path / "out"
    run(outputs, "a", "quant=none")
    again = run(outputs, "b", "quant=int8", "train.save.every=7")  # how often it is saved is nothing to what comes out
    assert fake.seeds == [0]
    assert "train" in again.found
    assert again.results["train"]["figures"]["training loss"]["value"] == 1.5
    one = job(outputs, "c", "quant=mxfp4")
    said = {r.node: r for r in reasons(plan_run(one.run, one.run_dir), outputs, Results(outputs / FOLDER))}
    assert (said["train"].state, said["export"].state) == ("done", "to do")
    run(outputs, "d", "quant=none", "seed=1")
    run(outputs, "e", "quant=none", "train.optimizer.rate=0.5")
    assert fake.seeds == [0, 1, 0]


def test_what_was_begun_is_gone_on_from_and_kept_until_then(tmp_path: Path, fake: Fake) -> None:
    outputs, fake.fails = tmp_path / "out", True
    with pytest.raises(StageError, match="the power went off"):
        run(outputs, "a", "quant=none")
    assert not fake.went_on
    [left] = (outputs / FOLDER).glob("*.unfinished")
    assert left not in [u.path for u in unreferred(outputs)]  # gc leaves it to the run that can go on
    fake.fails = False
    run(outputs, "a", "quant=none")
    assert fake.went_on
    assert not left.exists()


def test_what_no_run_can_go_on_from_is_listed_by_gc(tmp_path: Path, fake: Fake) -> None:
    outputs, fake.fails = tmp_path / "out", True
    with pytest.raises(StageError):
        run(outputs, "a", "quant=none")
    (outputs / "a" / "run.json").unlink()
    [left] = (outputs / FOLDER).glob("*.unfinished")
    assert left in [u.path for u in unreferred(outputs)]


def test_overwrite_trains_again(tmp_path: Path, fake: Fake) -> None:
    outputs = tmp_path / "out"
    run(outputs, "a", "quant=none")
    run(outputs, "a", "quant=none", "overwrite=true")
    assert fake.seeds == [0, 0]


def test_weights_come_out_in_the_dtype_that_was_asked_for(tmp_path: Path, fake: Fake) -> None:
    run(tmp_path / "out", "a", "stages=[load,train,export]", "train.dtype=fp32")
    assert {s.dtype for s in SafeTensors().open(tmp_path / "out/a/model").specs.values()} == {"F32"}


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    one = job(tmp_path / "out", "a", "data.files=[nowhere.txt]", "mesh=data", "mesh.axes.data=4", "train.batch=30")
    said = [str(p) for p in plan_run(one.run, one.run_dir).problems]
    assert any("nowhere.txt" in p for p in said)
    assert any("train.batch" in p and "30" in p for p in said)


def test_other_tensors_than_were_promised_are_an_error(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "train", lambda self, *args: replace(fake(self, *args), store=MemoryStore({})))
    with pytest.raises(StageError, match="other tensors than its `plan` promised"):
        run(tmp_path / "out", "a", "quant=none")
