"""Edges between stages by type and name, and what is said of stages that do not fit."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pipeline.planning.wiring import make_plan
from pipeline.stage import Checkpoint, Context, Footprint, Prediction, Work
from tests.cases.memory_store import MemoryStore
from tests.unit.planning.stages import (
    CTX,
    Compare,
    Finer,
    GivesFiner,
    Judge,
    Passes,
    Source,
    TakesVerdict,
    TakesWritten,
    View,
    Write,
    WriteWork,
    Written,
    edges,
    planned,
    wrong,
)


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
