"""Models are let go of: a cluster never holds two where one is planned, and nothing stays when a run is over."""

import gc
import sys
from pathlib import Path
from typing import Any

import pytest

import pipeline as weightmill
from pipeline.errors import ConfigError
from pipeline.running import held, runner
from pipeline.running.tasks import run_stage
from tests.cases import model_runs

TINY = Path(model_runs.__file__).parents[2] / "plugins/models/gpt_oss/tiny"
QUICK = [f"evaluate.windows.{o}" for o in ("tokens=64", "window=32", "batch=1")] + ["sampling.max_tokens=2"]


def loaded() -> int:
    """Models in this process, whoever refers to them."""
    gc.collect()
    runtime = sys.modules.get("plugins.engine.runtime")
    return sum(type(o) is runtime.Runtime for o in gc.get_objects()) if runtime else 0


def run(*overrides: str) -> Any:
    return weightmill.run(["+model=gpt_oss", "quant=mxfp4", "progress=false", *QUICK, *overrides])


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
    assert counts == [0, 0, 0, 0]  # two stages that run models, two workers


def test_a_run_lets_go_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On threads a model is held from one stage to the next, and let go of at the end."""
    monkeypatch.chdir(tmp_path)
    held.release()
    before, loads = loaded(), []
    real = held.model

    def watched(engine: Any, store: Any, load: Any) -> Any:
        return real(engine, store, lambda: (loads.append(store), load())[1])

    monkeypatch.setattr(held, "model", watched)
    run("stages=[load,decode,quantize,evaluate,generate]")
    assert len(loads) == 2  # the baseline's, and one for evaluating and generating
    assert loaded() == before
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(ConfigError, match="tokens, nothing to predict"):
        run("flow=evaluate", "evaluate.texts=[short.txt]", "paths.run=again")
    assert held._held is None
    assert loaded() == before  # the error has gone, and took what it knew along


def test_a_loaded_model_is_its_users_alone() -> None:
    held.release()
    before = loaded()
    model = weightmill.load_model(TINY)
    assert loaded() == before + 1
    model.generate("The people", max_tokens=2)
    del model
    assert loaded() == before


def test_one_at_a_time() -> None:
    class Session:
        alive = 0

        def __init__(self) -> None:
            assert Session.alive == 0
            Session.alive += 1

        def __del__(self) -> None:
            Session.alive -= 1

    store, other = object(), object()
    held.release()
    first = id(held.model("engine", store, Session))
    assert id(held.model("engine", store, Session)) == first
    held.model("engine", other, Session)
    held.model("another", other, Session)
    assert Session.alive == 1
    held.release()
    assert Session.alive == 0
