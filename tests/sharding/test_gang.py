"""A run in two processes with two devices each: what one device finds; and whoever fails or is killed ends all."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import pipeline
from pipeline.errors import ConfigError, PlanError, StageError
from pipeline.mesh import Mesh
from pipeline.records import points
from pipeline.running import gang, keeper, member
from pipeline.stage import Gang
from tests.cases import model_runs
from tests.cases.traces import checked, spans
from tests.cases.traces import end as end_of
from tests.cli.run import ROOT, end, start
from tests.sharding import killed

TEXT = ("evaluate.windows.tokens=100", "evaluate.windows.window=32", "evaluate.windows.batch=4", "quant=mxfp4")
EVALUATED = ("+model=gpt_oss", "progress=false", "stages=[load,decode,quantize,evaluate]", *TEXT)
SAMPLED = ("+model=gpt_oss", "progress=false", "stages=[load,generate]", "sampling.max_tokens=8")
HOSTS = ("mesh=multihost", "mesh.axes.fsdp=2")
EXPERTS = ("mesh=expert", "mesh.axes.expert=4", "mesh.processes=2")
LIMIT_S = 60.0
KILLED = ((0, "loading"), (1, "compiling"), (0, "in a step"), (1, "while the baseline is written"))


def members(parent: int) -> dict[int, psutil.Process]:
    """Rank → process, of those that a process has started."""
    found = {}
    for child in psutil.Process(parent).children():
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:
            continue
        at = next((i for i, word in enumerate(words) if "pipeline.running.member" in word), None)
        if at is not None:
            found[int(words[at + 2])] = child
    return found


def begun(process: "subprocess.Popen[str]") -> dict[int, psutil.Process]:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        if len(found := members(process.pid)) == 2:
            return found
        time.sleep(0.01)
    raise AssertionError("no gang was started")


def gone(processes: dict[int, psutil.Process]) -> None:
    _, alive = psutil.wait_procs([*processes.values()], timeout=10)
    for process in alive:
        process.kill()
    assert not alive


def test_who_is_killed_ends_all_and_the_same_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    """Wherever it is, with one error, no orphan, and nothing in the way of the next try; which in the end finds what
    one device does. One process keeps the baseline, both make it, and both compare with it. What each told until it was
    killed is in the trace."""
    for name, value in model_runs.quick_environment().items():
        monkeypatch.setenv(name, value)
    real, places = gang.run, KILLED if thorough else KILLED[3:]
    command = [*EVALUATED, *HOSTS, f"paths.run={tmp_path / 'run'}", f"paths.outputs={tmp_path}"]
    command += ["trace=true", "monitor=0.1"]
    for rank, place in places:
        started = watched(monkeypatch)
        monkeypatch.setattr(gang, "run", lambda several, call: real(killed.doomed(several, rank, place), call))  # noqa: B023
        with pytest.raises(StageError) as why:
            pipeline.run(command)
        assert str(why.value).startswith(f"process {rank} of 2 was killed by SIGKILL; the others were ended"), place
        assert len(started) == 2
        gone(started)
    monkeypatch.setattr(gang, "run", real)
    found = pipeline.run(command).results["evaluate"]
    with model_runs.quick_compilation():
        expected = pipeline.run([*EVALUATED, f"paths.run={tmp_path / 'one'}", f"paths.outputs={tmp_path}"])
    for text, row in found["texts"].items():
        assert row == pytest.approx(expected.results["evaluate"]["texts"][text], rel=1e-4), text
    assert found["facts"]["devices"] == 4
    _traced(tmp_path / "run", len(places) + 1)
    for rank in (0, 1):
        seen = [*points.points(points.file_of(tmp_path / "run", f"system.{rank}"))]
        assert {p.member for p in seen} == {rank}
        assert all(1 << 20 < p.value < 1 << 40 for p in seen if p.name == "rss")
        assert {"rss", "cpu", "threads"} <= {p.name for p in seen}


def _traced(run_dir: Path, tries: int) -> None:
    events = checked(run_dir)
    titles = {e["pid"]: e["args"]["name"].partition(",")[0] for e in events if e["name"] == "process_name"}
    assert Counter(titles.values())["run"] == tries
    assert all(1 <= Counter(titles.values())[f"member {rank} of the gang"] <= tries for rank in (0, 1))
    last = {titles[pid]: pid for pid in sorted(titles)}  # of the try that came to its end
    [watching, *_] = [e for e in spans(events, "task") if e["pid"] == last["run"] and e["name"] == "evaluate"]
    for rank in (0, 1):
        own = [e for e in spans(events) if e["pid"] == last[f"member {rank} of the gang"]]
        assert all(watching["ts"] <= e["ts"] and end_of(e) <= end_of(watching) for e in own)
        assert {"load the weights", "score"} <= {e["name"] for e in own if e["cat"] == "execute"}
        assert any(e["cat"] == "jax" for e in own)
    assert any(e["args"].get("unfinished") for e in spans(events))
    assert any(e["args"].get("failed") == "StageError" for e in spans(events, "task"))


def watched(monkeypatch: pytest.MonkeyPatch) -> dict[int, psutil.Process]:
    """Members that are started from here on, by their rank."""
    started: dict[int, psutil.Process] = {}
    spawned = keeper._spawned

    def seen(*args: Any) -> Any:
        process = spawned(*args)
        started[args[-1]] = psutil.Process(process.pid)
        return process

    monkeypatch.setattr(keeper, "_spawned", seen)
    return started


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    process = start(*SAMPLED, *EXPERTS, f"paths.run={tmp_path / 'run'}")
    both = begun(process)
    process.send_signal(signal.SIGINT)
    said = end(process, LIMIT_S)
    assert said.code == 128 + signal.SIGINT
    gone(both)


def test_no_process_outlives_who_started_it() -> None:
    """Whatever it does: these would sleep for longer than any test runs."""
    code = "from tests.sharding import test_gang as t; t.gang.run(t.Gang(2, '127.0.0.1:0', t.join), t.asleep)"
    process = subprocess.Popen([sys.executable, "-c", code], text=True, cwd=ROOT)  # where `tests` is
    both = begun(process)
    time.sleep(2)
    process.kill()
    process.wait()
    gone(both)


def asleep() -> None:
    time.sleep(3600)


def join(rank: int, address: str, *, alone: bool) -> None:
    """Of a gang without JAX."""


def raising(rank: int) -> int:
    """In the other process a wait that has no end."""
    if member._here is not None and member._here.rank == rank:
        raise ConfigError("nothing of the kind")
    return int(member.agreed(0))


def leaving(rank: int) -> None:
    if member._here is not None and member._here.rank == rank:
        os.write(2, b"the last words\n")
        os._exit(3)
    member.agreed()


def first_of(value: str) -> str:
    assert member._here is not None
    return str(member.agreed(f"{value}{member._here.rank}"))


def test_an_error_of_one_is_the_error() -> None:
    with pytest.raises(StageError, match=r"^process 1 of 2 failed: nothing of the kind; the others were ended$") as why:
        gang.run(Gang(2, "127.0.0.1:0", join), partial(raising, 1))
    assert why.value.exit_code == ConfigError.exit_code
    with pytest.raises(StageError, match=r"process 0 of 2 ended with exit 3; .*\n.*\n    the last words$"):
        gang.run(Gang(2, "127.0.0.1:0", join), partial(leaving, 0))
    assert gang.run(Gang(2, "127.0.0.1:0", join), partial(first_of, "rank")) == "rank0"
    with pytest.raises(StageError, match="nothing on this machine can listen there"):
        gang.run(Gang(2, "192.0.2.1:0", join), partial(first_of, "rank"))


def test_processes_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlanError) as why:
        Mesh({"host": 2, "fsdp": 3}, processes=4, coordinator="here")
    assert [p.where for p in why.value.problems] == ["processes", "coordinator"]
    with pytest.raises(PlanError, match=r"axes\.host says 2"):
        Mesh({"host": 2, "fsdp": 3}, processes=3)
    assert Mesh({"fsdp": 4}, processes=2).hosts == ((0, 1), (2, 3))
