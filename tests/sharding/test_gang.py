"""A run in two processes with two devices each: what one device finds; and whoever fails or is killed ends all."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.errors import ConfigError, PlanError, StageError
from pipeline.mesh import Mesh
from pipeline.running import gang
from pipeline.stage import Gang
from tests.cli.run import ROOT, end, manifest, pipeline, start

TEXT = ("evaluate.windows.tokens=100", "evaluate.windows.window=32", "evaluate.windows.batch=4", "quant=mxfp4")
EVALUATED = ("+model=gpt_oss", "progress=false", "stages=[load,decode,quantize,evaluate]", *TEXT)
SAMPLED = ("+model=gpt_oss", "progress=false", "stages=[load,generate]", "sampling.max_tokens=8")
HOSTS = ("mesh=multihost", "mesh.axes.fsdp=2")
EXPERTS = ("mesh=expert", "mesh.axes.expert=4", "mesh.processes=2")
LIMIT_S = 60.0


def run(tmp_path: Path, name: str, *args: str) -> dict[str, Any]:
    said = pipeline(*args, f"paths.run={tmp_path / name}")
    assert said.code == 0, said.err
    return manifest(tmp_path / name)


def members(parent: int) -> dict[int, psutil.Process]:
    """Rank → process, of those that a process has started."""
    found = {}
    for child in psutil.Process(parent).children():
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:
            continue
        if "pipeline.running.gang" in words:
            found[int(words[words.index("pipeline.running.gang") + 2])] = child
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


def test_perplexity_is_that_of_one_device(tmp_path: Path) -> None:
    """The baseline too: one process keeps it, all make it, and all compare with it."""
    alone, both = (run(tmp_path, n, *EVALUATED, *on)["results"]["evaluate"] for n, on in (("1", ()), ("2", HOSTS)))
    for text, found in both["texts"].items():
        assert found == pytest.approx(alone["texts"][text], rel=1e-5)
    assert both["facts"]["devices"] == 4


@pytest.mark.parametrize("killed", [0, 1])
def test_who_is_killed_ends_all_and_the_same_command_goes_on(killed: int, tmp_path: Path) -> None:
    args = (*SAMPLED, *EXPERTS, f"paths.run={tmp_path / 'run'}")
    process = start(*args)
    both = begun(process)
    time.sleep(killed * 2.5)  # as it starts, and while it is at work
    both[killed].kill()
    said = end(process, LIMIT_S)
    assert said.code == StageError.exit_code
    assert said.err.count("was killed by SIGKILL") == 1
    assert f"process {killed} of 2 was killed by SIGKILL; the others were ended" in said.err
    gone(both)
    if killed:
        both_s = run(tmp_path, "run", *SAMPLED, *EXPERTS)["results"]["generate"]
        alone = run(tmp_path, "alone", *SAMPLED)["results"]["generate"]
        assert both_s["tokens"] == alone["tokens"]


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


def join(rank: int, address: str) -> None:
    """Of a gang without JAX."""


def raising(rank: int) -> int:
    """In the other process a wait that has no end."""
    if gang._here is not None and gang._here.rank == rank:
        raise ConfigError("nothing of the kind")
    return int(gang.agreed(0))


def leaving(rank: int) -> None:
    if gang._here is not None and gang._here.rank == rank:
        os.write(2, b"the last words\n")
        os._exit(3)
    gang.agreed()


def first_of(value: str) -> str:
    assert gang._here is not None
    return str(gang.agreed(f"{value}{gang._here.rank}"))


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
