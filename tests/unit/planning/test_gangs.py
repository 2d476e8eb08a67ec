"""What a plan says of a run in several processes: who has to have started them, and what each may take."""

import os
from pathlib import Path

import pytest

from pipeline.api import compose_run
from pipeline.planning.launchers import LAUNCHERS, started_several
from pipeline.planning.memory import plan_run
from pipeline.planning.wiring import Plan

HOW = ("+model=gpt_oss", "stages=[load,generate]", "mesh=expert", "mesh.axes.expert=4", "mesh.processes=2")


def plan(*more: str) -> Plan:
    return plan_run(compose_run([*HOW, *more]), Path("outputs/run").absolute())


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_run_that_is_started_several_times_is_refused(launcher: str) -> None:
    rank, size = LAUNCHERS[launcher]
    [problem] = started_several(2, {rank: "1", size: "2"})
    assert problem.where == "mesh.processes"
    assert problem.message.startswith(
        f"2, and {launcher} started this as process 1 of 2 ({rank}, {size}); a run is one"
    )
    assert not list(started_several(1, {rank: "1", size: "2"}))
    assert not list(started_several(2, {rank: "0", size: "1"}))
    assert not list(started_several(2, {size: "2"}))


def test_a_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not plan().problems
    monkeypatch.setitem(os.environ, "SLURM_PROCID", "0")  # in a batch script, which Slurm starts once
    monkeypatch.setitem(os.environ, "SLURM_NTASKS", "2")
    assert not plan().problems
    monkeypatch.setitem(os.environ, "SLURM_STEP_NUM_TASKS", "2")
    assert [p.where for p in plan().problems] == ["mesh.processes"]
    assert not plan("dask.address=tcp://there:8786").problems


def test_a_cluster_of_our_own_has_a_worker_for_each() -> None:
    enough = ("dask=distributed", "dask.workers=2", "dask.memory=8GiB")
    assert not plan(*enough).problems
    [problem] = plan("dask=distributed", "dask.workers=1", "dask.memory=8GiB").problems
    assert (problem.where, problem.message) == (
        "dask.workers", "1: generate has 2 processes, each on a worker of its own; dask=threads starts them itself"
    )  # fmt: skip


def test_on_a_cluster_a_worker_has_its_part_only() -> None:
    """`dask.memory` is then each worker's."""
    here, there = (plan(*where).memory for where in ((), ("dask.address=tcp://there:8786",)))
    assert here is not None
    assert there is not None
    assert there.model == -(-here.model // 2) > 0
