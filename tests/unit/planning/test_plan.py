"""What a plan predicts of every stage, the problems that it collects, and the guard that keeps it from reading."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.spine import Dask
from pipeline.digest import InputFile
from pipeline.errors import ConfigError, PlanError, Problem, SourceError
from pipeline.planning.budget import Budget
from pipeline.planning.memory import BASE_CLIENT, BASE_THREADS, RESIDENT, computing, peak_after
from pipeline.planning.sweep import Job, Sweep
from pipeline.planning.wiring import MemoryPlan, StageStore, make_plan
from pipeline.running.graph import run_threads
from pipeline.running.tasks import Try, build_tasks
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from tests.cases.memory_store import MemoryStore
from tests.unit.planning.stages import (
    CTX,
    Computes,
    Judge,
    Passes,
    Raises,
    Reads,
    Source,
    TakesWritten,
    Verdict,
    View,
    Write,
    planned,
)

THREADS = Dask(
    scheduler="threads", address=None, tls=False, workers=2, threads_per_worker=1, memory="auto", chunk="1MiB",
    retries=0, keep_going=False, resources={}, dashboard=False,
)  # fmt: skip


@dataclass(frozen=True)
class Trains:
    """Gives a checkpoint, and needs a device for it."""

    keeps: int = 5

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(checkpoint, Footprint(device_nbytes=100, host_nbytes=40, kept_nbytes=self.keeps))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        values = {n: checkpoint.store.read(n) + np.float32(1) for n in checkpoint.store.specs}
        return replace(checkpoint, store=MemoryStore(values))


@dataclass(frozen=True)
class Scores:
    def plan(self, checkpoint: Checkpoint) -> Prediction:
        assert checkpoint.store.specs
        return Prediction(None, Footprint(device_nbytes=60, host_nbytes=38))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> float:
        return float(sum(checkpoint.store.read(n).sum() for n in checkpoint.store.specs))


def test_a_stage_that_computes_a_checkpoint_says_both_halves() -> None:
    plan = planned(load=Source(), train=Trains(), view=View(), score=Scores(), write=Write())
    assert plan.problems == []
    trained = plan.nodes["train"]
    assert isinstance(trained.result, Checkpoint)
    assert trained.takes == Footprint(device_nbytes=100, host_nbytes=40, kept_nbytes=5)
    assert plan.nodes["score"].result is None
    assert {n: t.device_nbytes for n, t in plan.takes.items()} == {"train": 100, "score": 60}
    assert plan.nodes["view"].takes is None
    assert plan.nodes["write"].work is not None


def test_what_a_computing_stage_keeps_counts_for_those_after_it() -> None:
    first, second = Trains().plan(Checkpoint(MemoryStore({}))).takes, Scores
    score = second().plan(Checkpoint(MemoryStore({"w": np.zeros(1)}))).takes
    assert computing([first, score]) == 38 + 5
    assert computing([score, first]) == 40
    assert computing([]) == 0


def test_stages_that_compute_run_one_after_another_and_give_what_they_promised() -> None:
    plan = planned(load=Source(), train=Trains(), view=View(), score=Scores(), again=Scores())
    run: Any = None  # of whose config tasks of one job know nothing
    graph = build_tasks(Sweep([Job(run, Path("nowhere"))], [plan]), {0: Try({}, True, (), {}, {})})
    tasks = {t.key: t for t in graph.tasks}
    assert [tasks[f"{n}:run"].behind for n in ("train", "score", "again")] == [(), ("train",), ("score",)]
    results = run_threads(graph.tasks, THREADS, 2, lambda task, result: None)
    assert results["score"] == 6.0  # zeros of [2, 3], and one


@pytest.mark.parametrize("said", [Footprint(), None, Checkpoint(MemoryStore({})), Prediction(None, None)])  # type: ignore[arg-type]
def test_half_a_prediction_is_a_problem(said: Any) -> None:
    @dataclass(frozen=True)
    class Half:
        def plan(self, checkpoint: Checkpoint) -> Any:
            return said

        def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
            return checkpoint

    [problem] = planned(load=Source(), half=Half()).problems
    assert "stages.half: `plan` gives a Prediction(result, takes=Footprint(…))" in str(problem)


def test_reading_while_planning_is_refused() -> None:
    plan = planned(load=Source(), reads=Reads())
    assert [str(p) for p in plan.problems] == [
        "stages.reads: stage 'reads' reads 'w' in `run`; return a view, or define `plan` as well"
    ]


def test_a_planned_store_can_be_read_afterwards() -> None:
    plan = planned(load=Source(), view=View())
    assert plan.problems == []
    store = plan.nodes["view"].result.store
    assert isinstance(store, StageStore)
    assert store.read("w").shape == (2, 3)


def test_nothing_is_read_to_plan() -> None:
    plan = planned(load=Source(), view=View(), write=Write())
    inner = plan.nodes["load"].result.store.store
    assert isinstance(inner, MemoryStore)
    assert inner.reads == []


def test_a_stage_that_passes_its_input_on_is_not_timed_twice() -> None:
    plan = planned(load=Source(), passes=Passes())
    assert plan.nodes["passes"].result.store is plan.nodes["load"].result.store


def test_an_eager_stage_is_predicted_and_does_not_run() -> None:
    computes = Computes()
    plan = planned(load=Source(), computes=computes, view=View())
    assert plan.problems == []
    assert computes.ran == []
    assert plan.nodes["computes"].computes
    assert plan.nodes["view"].planned_again
    assert not plan.nodes["load"].planned_again


def test_problems_of_all_stages_are_collected_and_later_stages_still_plan() -> None:
    plan = planned(
        load=Source(),
        one=Raises(ConfigError("first")),
        two=Raises(PlanError([Problem("rules[0]", "second"), Problem("rules[1]", "third")])),
        reads=Reads(),
        three=Raises(SourceError("fourth")),
    )
    assert [str(p) for p in plan.problems] == [
        "stages.one: first",
        "rules[0]: second",
        "rules[1]: third",
        "stages.reads: stage 'reads' reads 'w' in `run`; return a view, or define `plan` as well",
        "stages.three: fourth",
    ]
    assert [w.exit_code for w in plan.failures] == [2, 3, 6, 4]


def test_the_same_problem_is_said_once() -> None:
    why = PlanError([Problem("w", "is odd")])
    assert len(planned(load=Source(), one=Raises(why), two=Raises(why)).problems) == 1


def test_a_stage_without_its_input_is_left_out_in_silence() -> None:
    """The wiring problem is said; nothing that follows from it is."""
    plan = planned(load=Source(), then=TakesWritten())
    assert [p.where for p in plan.problems] == ["stages.then"]


def test_a_bug_in_a_stage_is_not_a_problem_of_the_plan() -> None:
    with pytest.raises(ZeroDivisionError):
        planned(load=Source(), bug=Raises(ZeroDivisionError()))


def test_chunks_outputs_and_inputs_of_the_whole_plan() -> None:
    file = InputFile(Path("/a"), 1, 2)
    plan = planned(load=Source(inputs=(file,)), view=View(), write=Write())
    assert plan.inputs == (file,)
    assert list(plan.works) == ["write"]
    assert len(plan.chunks) == 2


def test_peak_memory() -> None:
    assert MemoryPlan(base=100, task=7, tasks=3, budget=Budget(200, 200, "200 B")).peak == 121


def test_what_a_process_has_already_comes_on_top_but_what_models_leave_counts_once() -> None:
    workers, cluster = replace(THREADS, scheduler="distributed"), replace(THREADS, address="tcp://there:8786")
    budget = Budget(1 << 40, 1 << 40, "1 TiB")
    convert = MemoryPlan(BASE_THREADS + 10, 7, 3, budget)
    assert peak_after(convert, THREADS, BASE_THREADS) == convert.peak
    assert peak_after(convert, THREADS, BASE_THREADS + 5) == convert.peak + 5
    assert peak_after(convert, workers, BASE_CLIENT + 5) == convert.peak + 5
    assert peak_after(convert, cluster, 1 << 40) == convert.peak
    runs = replace(convert, model=RESIDENT + 100)
    assert peak_after(runs, THREADS, BASE_THREADS + RESIDENT // 2) == runs.peak
    assert peak_after(runs, THREADS, BASE_THREADS + RESIDENT + 5) == runs.peak + 5


def test_a_stage_is_planned_without_the_optional_one_that_failed() -> None:
    plan = make_plan({"a": Source(), "b": View(), "verdict": Refuses(), "judge": Judge()}, CTX)
    assert [p.message for p in plan.problems] == ["no verdict"]
    assert plan.nodes["judge"].result == "judged"


@dataclass(frozen=True)
class Refuses:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Verdict:
        raise ConfigError("no verdict")
