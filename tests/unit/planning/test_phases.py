"""Stages that compute before the first chunk is read, and tasks, need memory one after the other."""

from pathlib import Path

import pytest

from pipeline.api import compose_run
from pipeline.planning.memory import RESIDENT, computing, plan_run
from pipeline.planning.wiring import Plan

GPTQ = ("+model=gpt_oss", "quant=int4", "calibrate=gptq", "dask.workers=1")


def planned(folder: Path, *overrides: str) -> Plan:
    plan = plan_run(compose_run([*GPTQ, *overrides]), folder)
    assert not plan.problems
    return plan


def test_statistics_are_made_before_tasks(tmp_path: Path) -> None:
    plan = planned(tmp_path, "flow=convert")
    assert plan.memory is not None
    first = computing(plan.takes.values())
    assert [*plan.takes] == ["calibrate"]
    assert plan.memory.model == max(first - plan.memory.task, min(first, RESIDENT))
    assert plan.memory.peak >= first + plan.memory.base, "calibrating itself"
    assert plan.memory.peak < first + plan.memory.conversion, "which tasks do not come on top of"


def test_what_runs_beside_tasks_counts_in_full(tmp_path: Path) -> None:
    plan = planned(tmp_path, "flow=full")
    assert plan.memory is not None
    later = [takes for name, takes in plan.takes.items() if name != "calibrate"]
    assert len(later) > 1
    assert plan.memory.model >= computing(later)


@pytest.mark.parametrize("batch", [1, 8])
def test_experts_of_a_batch_are_planned(batch: int, tmp_path: Path) -> None:
    """What goes into and out of them is of every token as often as it has experts."""
    found = planned(tmp_path, "flow=convert", f"calibrate.windows.batch={batch}").takes["calibrate"].host_nbytes
    one = planned(tmp_path, "flow=convert", "calibrate.windows.batch=2").takes["calibrate"].host_nbytes
    assert (found - one) * (batch - 2) > 0
