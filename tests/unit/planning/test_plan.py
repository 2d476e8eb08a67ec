"""Wiring by type and name, what is said when it does not fit, and the guard that keeps planning from reading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.spine import Dask
from pipeline.digest import InputFile
from pipeline.errors import ConfigError, PlanError, Problem, SourceError
from pipeline.planning.budget import Budget
from pipeline.planning.memory import computing
from pipeline.planning.sweep import Job, Sweep
from pipeline.planning.wiring import MemoryPlan, Plan, StageStore, make_plan, wire
from pipeline.running.graph import run_threads
from pipeline.running.tasks import Try, build_tasks
from pipeline.stage import Checkpoint, Chunk, Context, Footprint, OutputFile, Prediction, Work
from pipeline.tensors.pieces import Piece
from pipeline.tensors.views import MappedStore
from tests.cases.memory_store import MemoryStore

CTX = Context(Path("/nowhere"))


@dataclass(frozen=True)
class Source:
    names: tuple[str, ...] = ("w",)
    inputs: tuple[InputFile, ...] = ()

    def run(self, ctx: Context) -> Checkpoint:
        return Checkpoint(MemoryStore({n: np.zeros((2, 3), "f4") for n in self.names}), inputs=self.inputs)


@dataclass(frozen=True)
class View:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, store=MappedStore(checkpoint.store, Same()))


@dataclass(frozen=True)
class Same:
    def spec(self, name: str, spec: Any) -> Any:
        return spec

    def apply(self, name: str, value: Any, index: Any) -> Any:
        return value


@dataclass(frozen=True)
class Passes:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint


@dataclass(frozen=True)
class Compare:
    def run(self, ctx: Context, before: Checkpoint, after: Checkpoint) -> "Verdict":
        return Verdict()


class Verdict:
    pass


class Finer(Verdict):
    pass


@dataclass(frozen=True)
class GivesFiner:
    def run(self, ctx: Context) -> Finer:
        return Finer()


@dataclass(frozen=True)
class TakesVerdict:
    def run(self, ctx: Context, verdict: Verdict) -> None:
        return None


@dataclass(frozen=True)
class Reads:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        checkpoint.store.read(next(iter(checkpoint.store.specs)))
        return checkpoint


@dataclass(frozen=True)
class Raises:
    why: Exception

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        raise self.why


@dataclass
class Computes:
    """Eager: `plan` predicts, `run` would read."""

    ran: list[str] = field(default_factory=list)

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(checkpoint, Footprint(host_nbytes=7))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        self.ran.append("run")
        return checkpoint


@dataclass(frozen=True)
class Written:
    n: int


@dataclass(frozen=True)
class WriteWork:
    store: Any
    chunks: Sequence[Chunk] = (Chunk((Piece("w", ()),), 24, 24, 100), Chunk((Piece("v", ()),), 24, 24, 70))
    outputs: Sequence[OutputFile] = ()

    def begin(self, *, fresh: bool) -> None: ...

    def do(self, chunk: Chunk) -> str:
        return ""

    def digest(self, chunk: Chunk) -> str:
        return ""

    def finish(self) -> Written:
        return Written(1)


@dataclass(frozen=True)
class Write:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Written]:
        return WriteWork(checkpoint.store)


@dataclass(frozen=True)
class TakesWritten:
    def run(self, ctx: Context, written: Written) -> None:
        return None


def edges(**stages: Any) -> Mapping[str, Mapping[str, str]]:
    problems: list[Problem] = []
    nodes = wire(stages, problems)
    assert problems == []
    return {name: node.inputs for name, node in nodes.items()}


def wrong(**stages: Any) -> list[str]:
    wire(stages, problems := [])  # type: ignore[var-annotated]
    return [str(p) for p in problems]


def planned(**stages: Any) -> Plan:
    return make_plan(stages, CTX)


def test_an_edge_comes_from_the_latest_stage_of_that_type() -> None:
    assert edges(load=Source(), view=View(), again=View()) == {
        "load": {},
        "view": {"checkpoint": "load"},
        "again": {"checkpoint": "view"},
    }


def test_a_parameter_named_like_a_stage_takes_that_stage() -> None:
    found = edges(before=Source(), view=View(), after=View(), more=View(), compare=Compare())
    assert found["compare"] == {"before": "before", "after": "after"}


def test_a_name_whose_type_does_not_fit_is_not_taken() -> None:
    """`verdict` names a stage that gives a checkpoint; the type decides."""
    found = edges(finer=GivesFiner(), verdict=Source(), judge=TakesVerdict())
    assert found["judge"] == {"verdict": "finer"}


def test_a_subclass_fits_and_a_base_class_does_not() -> None:
    assert edges(finer=GivesFiner(), judge=TakesVerdict())["judge"] == {"verdict": "finer"}

    class NeedsFiner:
        def run(self, ctx: Context, finer: Finer) -> None: ...

    assert "run needs a Finer (finer), but before it" in wrong(a=Source(), b=Compare(), d=NeedsFiner())[0]


def test_work_gives_what_it_yields() -> None:
    assert edges(load=Source(), write=Write(), then=TakesWritten())["then"] == {"written": "write"}


def test_what_is_needed_and_what_there_is_are_said() -> None:
    assert wrong(view=View()) == ["stages.view: run needs a Checkpoint (checkpoint), but before it: no stage before it"]
    said = "stages.then: run needs a Written (written), but before it: load → Checkpoint, judge → Finer"
    assert wrong(load=Source(), judge=GivesFiner(), then=TakesWritten()) == [said]


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
    conf = Dask(
        scheduler="threads", address=None, tls=False, workers=2, threads_per_worker=1, memory="auto", chunk="1MiB",
        retries=0, keep_going=False, resources={}, dashboard=False,
    )  # fmt: skip
    results = run_threads(graph.tasks, conf, 2, lambda task, result: None)
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


def test_a_misspelt_hook_of_a_stage_is_a_problem() -> None:
    @dataclass(frozen=True)
    class Typos(Passes):
        select: str = "*"

        resource = {"gpu": 1}  # noqa: RUF012

        def paln(self, checkpoint: Checkpoint) -> Prediction:
            return Prediction(checkpoint, Footprint())

        def _helper(self) -> None: ...

    first, second = wrong(load=Source(), typos=Typos())
    assert "stages.typos: Typos has a member 'paln', which is none that it may have; did you mean 'plan'?" in first
    assert "member 'resource'" in second
    assert "did you mean 'resources'?" in second


def test_a_misspelt_member_of_work_and_of_a_store_is_a_problem() -> None:
    @dataclass(frozen=True)
    class Locking(WriteWork):
        def locks(self) -> None: ...

    class Grainy(MemoryStore):
        def grains(self, name: str) -> tuple[int, ...]:
            return ()

    @dataclass(frozen=True)
    class WritesLocked:
        def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Written]:
            return Locking(checkpoint.store)

    @dataclass(frozen=True)
    class Reads:
        def run(self, ctx: Context) -> Checkpoint:
            return Checkpoint(Grainy({"w": np.zeros(2)}))

    plan = planned(load=Reads(), view=Passes())
    assert ["did you mean 'grain'?" in str(p) for p in plan.problems] == [True]
    plan = planned(load=Source(), write=WritesLocked())
    assert ["did you mean 'lock'?" in str(p) for p in plan.problems] == [True]


def test_work_that_is_none_says_what_it_lacks() -> None:
    @dataclass(frozen=True)
    class Unfinished:
        def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Written]:
            return Written(1)  # type: ignore[return-value]

    [problem] = planned(load=Source(), write=Unfinished()).problems
    assert "`run` gives a Written, which is no Work: it lacks begin, chunks, digest, do, finish, outputs" in str(
        problem
    )


def test_a_result_whose_exit_code_is_misspelt_is_a_problem() -> None:
    @dataclass(frozen=True)
    class Judged:
        same: bool

        @property
        def exitcode(self) -> int:
            return 7

    class Judges:
        def run(self, ctx: Context, checkpoint: Checkpoint) -> Any:
            return Judged(False)

    Judges.run.__annotations__["return"] = Judged
    assert (
        "member 'exitcode', which is none that it may have; did you mean 'exit_code'?"
        in wrong(a=Source(), b=Judges())[0]
    )


def test_of_several_parameters_of_a_type_one_may_take_the_latest() -> None:
    assert edges(before=Source(), view=View(), compare=Compare())["compare"] == {"before": "before", "after": "view"}
    assert edges(load=Source(), compare=Compare())["compare"] == {"before": "load", "after": "load"}  # there is one
    [said] = wrong(load=Source(), befor=View(), compare=Compare())
    assert said.startswith(
        "stages.compare: run takes 'before' and 'after', each a Checkpoint, and no stage before it is"
    )
    assert "did you mean 'befor'" in said


def test_order_matters() -> None:
    assert len(wrong(view=View(), load=Source())) == 1


def test_a_parameter_without_annotation_is_a_problem() -> None:
    class Vague:
        def run(self, ctx, thing): ...  # type: ignore[no-untyped-def]

    assert wrong(load=Source(), vague=Vague()) == ["stages.vague: parameter 'thing' of run has no type annotation"]


def test_an_annotation_that_does_not_exist_is_a_problem() -> None:
    class Foreign:
        def run(self, ctx: Context, thing: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert "Nowhere" in wrong(load=Source(), foreign=Foreign())[0]


class NoContext:
    def run(self) -> None: ...


class Variadic:
    def run(self, ctx: Context, *rest: Checkpoint) -> None: ...


class KeywordOnly:
    def run(self, ctx: Context, *, checkpoint: Checkpoint) -> None: ...


@pytest.mark.parametrize("stage", [NoContext(), Variadic(), KeywordOnly()])
def test_a_run_of_another_form_is_a_problem(stage: Any) -> None:
    assert wrong(load=Source(), odd=stage) == [
        "stages.odd: run takes ctx, and then one named parameter for every artefact"
    ]


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


@dataclass(frozen=True)
class Judge:
    """Takes what not every run has, in either order."""

    def plan(self, checkpoint: Checkpoint, *, verdict: Verdict | None = None) -> Prediction:
        return Prediction("judged" if verdict is None else "judged again", Footprint())

    def run(self, ctx: Context, checkpoint: Checkpoint, verdict: Verdict | None = None) -> str:
        return str(self.plan(checkpoint, verdict=verdict).result)


def test_an_optional_parameter_takes_what_is_there() -> None:
    alone = make_plan({"a": Source(), "judge": Judge()}, CTX)
    assert not alone.problems
    assert alone.nodes["judge"].inputs == {"checkpoint": "a"}
    assert alone.nodes["judge"].result == "judged"
    both = make_plan({"before": Source(), "after": View(), "verdict": Compare(), "judge": Judge()}, CTX)
    assert not both.problems
    assert both.nodes["judge"].inputs == {"checkpoint": "after", "verdict": "verdict"}
    assert both.nodes["judge"].result == "judged again"
    after = make_plan({"a": Source(), "b": View(), "judge": Judge(), "verdict": Compare()}, CTX)
    assert after.nodes["judge"].result == "judged"


def test_a_stage_is_planned_without_the_optional_one_that_failed() -> None:
    plan = make_plan({"a": Source(), "b": View(), "verdict": Refuses(), "judge": Judge()}, CTX)
    assert [p.message for p in plan.problems] == ["no verdict"]
    assert plan.nodes["judge"].result == "judged"


@dataclass(frozen=True)
class Refuses:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Verdict:
        raise ConfigError("no verdict")
