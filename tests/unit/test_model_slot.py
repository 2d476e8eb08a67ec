"""Models are let go of: a cluster never holds two where one is planned, and nothing stays when a run is over."""

import gc
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pipeline as weightmill
from pipeline.errors import ConfigError
from pipeline.model_slot import ModelSlot
from pipeline.running import runner
from pipeline.running.tasks import run_stage
from pipeline.stage import Context
from plugins.engine.loader import JaxLoader
from tests.cases import model_runs

TINY = Path(model_runs.__file__).parents[2] / "plugins/models/gpt_oss/tiny"
QUICK = [f"evaluate.windows.{o}" for o in ("tokens=64", "window=32", "batch=1")] + ["sampling.max_tokens=2"]


def loaded() -> int:
    """Models in this process, whoever refers to them."""
    gc.collect()
    runtime = sys.modules.get("plugins.engine.runtime")
    return sum(type(o) is runtime.Runtime for o in gc.get_objects()) if runtime else 0


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The stores of all models that are loaded, in order."""
    found: list[Any] = []
    real = JaxLoader.load

    def watched(self: JaxLoader, engine: Any, checkpoint: Any) -> Any:
        found.append(checkpoint.store)
        return real(self, engine, checkpoint)

    monkeypatch.setattr(JaxLoader, "load", watched)
    return found


def run(*overrides: str) -> Any:
    return weightmill.run(["+model=gpt_oss", "quant=mxfp4", "progress=false", *QUICK, *overrides])


@pytest.mark.repeats
def test_a_worker_lets_go_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers, three models one after another: whenever a stage is done, nobody holds one."""
    monkeypatch.chdir(tmp_path)
    counts: list[int] = []
    real = runner.run_distributed

    def watched(tasks: Any, conf: Any, client: Any, on_done: Any, wanted: Any) -> Any:
        def look(task: Any, result: Any) -> None:
            if task.fn is run_stage:
                counts.extend(client.run(loaded).values())
            on_done(task, result)

        return real(tasks, conf, client, look, wanted)

    monkeypatch.setattr(runner, "run_distributed", watched)
    how = ("dask=distributed", "dask.workers=2", "dask.dashboard=false", "dask.memory=4GiB")
    report = run("flow=full", *how)
    assert {"evaluate", "generate"} <= set(report.results)
    assert report.results["evaluate"]["facts"]["read_from"] == str(Path(report.run) / "model")  # on a worker as well
    assert counts == [0, 0, 0, 0]  # two stages that run models, two workers


def test_a_run_lets_go_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: list[Any]) -> None:
    """On threads a model is held from one stage to the next, and let go of at the end."""
    monkeypatch.chdir(tmp_path)
    before = loaded()
    run("stages=[load,decode,quantize,evaluate,generate]")
    assert len(loads) == 2  # the baseline's, and one for evaluating and generating
    loads.clear()
    assert loaded() == before
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(ConfigError, match="tokens, nothing to predict"):
        run("flow=evaluate", "evaluate.texts=[short.txt]", "paths.run=again")
    loads.clear()
    assert loaded() == before  # the error has gone, and took what it knew along


def test_a_loaded_model_is_its_users_alone(loads: list[Any]) -> None:
    before = loaded()
    model = weightmill.load_model(TINY)
    assert loaded() == before + 1
    model.generate("The people", max_tokens=2)
    assert weightmill.load_model(TINY) is not model
    assert len(loads) == 2
    del model
    assert loaded() == before


class Session:
    alive = 0

    def __init__(self) -> None:
        assert Session.alive == 0
        Session.alive += 1
        self.itself = self  # as a model knows its parts, and they it: only collecting ends it

    def __del__(self) -> None:
        Session.alive -= 1


class Engine:
    def __init__(self, name: str):
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Engine) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def load(self, checkpoint: Any, *, plain: bool = False) -> Session:
        return Session()


@pytest.mark.repeats
def test_one_at_a_time() -> None:
    one, other = SimpleNamespace(store="a"), SimpleNamespace(store="b")
    with ModelSlot() as models:
        first = id(models.load(Engine("jax"), one))
        assert id(models.load(Engine("jax"), SimpleNamespace(store="a"))) == first  # an equal store
        for wanted in (
            lambda: models.load(Engine("jax"), one, plain=True),
            lambda: models.load(Engine("jax"), other),
            lambda: models.load(Engine("other"), other),
        ):
            wanted()  # what was held before has gone, or Session would complain
            assert Session.alive == 1
        there = pickle.loads(pickle.dumps(models))
        assert there._held is None  # a model does not travel
    assert Session.alive == 0


def test_a_model_that_cannot_be_loaded_leaves_nothing() -> None:
    class Broken(Engine):
        def load(self, checkpoint: Any, *, plain: bool = False) -> Session:
            raise ConfigError("no such device")

    with ModelSlot() as models:
        models.load(Engine("jax"), SimpleNamespace(store="a"))
        with pytest.raises(ConfigError, match="no such device"):
            models.load(Broken("jax"), SimpleNamespace(store="b"))
        assert Session.alive == 0


@dataclass(frozen=True)
class Runs:
    """A stage that runs a model."""

    def run(self, ctx: Context, name: str) -> int:
        ctx.models.load(Engine(name), SimpleNamespace(store=name))
        return Session.alive


def test_a_task_without_a_run_to_hold_models_lets_go_of_its_own(tmp_path: Path) -> None:
    def task(name: str, models: ModelSlot | None) -> Any:
        return run_stage("runs", Runs(), None, Context(tmp_path), models, (), ("name",), None, None, name).value

    assert task("a", None) == 1
    assert Session.alive == 0
    with ModelSlot() as models:
        assert task("a", models) == 1
        assert Session.alive == 1  # for the next
        assert task("b", models) == 1
    assert Session.alive == 0
