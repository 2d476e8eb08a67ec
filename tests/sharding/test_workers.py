"""A gang on the workers of a Dask cluster, which stand for machines: each has an address of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

import pipeline
from pipeline.errors import ConfigError, PlanError, StageError
from pipeline.running import gang, pinned
from pipeline.running.graph import Task, run_distributed
from pipeline.stage import Gang
from tests.cases import model_runs, toy_table
from tests.cases.traces import checked, spans
from tests.cases.traces import end as end_of
from tests.cli.run import ROOT, kill_tree
from tests.sharding.test_gang import EXPERTS, SAMPLED, asleep, first_of, gone, join, members, raising
from tests.sharding.test_training_gang import losses
from tests.unit.running.test_graph import CONF

HOSTS = ("127.0.0.2", "127.0.0.3")
LIMIT_S = 60.0


@dataclass
class Cluster:
    """A scheduler in this process, and workers as people start them by hand, one a machine."""

    scheduler: LocalCluster
    client: Client
    workers: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, host: str) -> None:
        """A worker at that address."""
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self.scheduler.scheduler_address]
        options = ["--host", host, "--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "4GiB"]
        before = len(self.client.scheduler_info()["workers"])
        env = {
            **os.environ,
            **model_runs.quick_environment(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }
        self.workers[host] = subprocess.Popen([*command, *options], cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
        self.client.wait_for_workers(before + 1, timeout=LIMIT_S)

    def kill(self, host: str, both: dict[int, psutil.Process]) -> dict[int, psutil.Process]:
        """The worker at that address; of the members, which then end, it is said who they were."""
        self.workers[host].kill()
        self.workers[host].wait()
        return both

    def members(self) -> dict[int, psutil.Process]:
        """Rank → process, of all that workers have started."""
        return {r: p for w in self.workers.values() if w.poll() is None for r, p in members(w.pid).items()}

    def begun(self) -> dict[int, psutil.Process]:
        until = time.monotonic() + LIMIT_S
        while len(found := self.members()) < 2:
            assert time.monotonic() < until, "no gang was started"
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=0,
            host="127.0.0.1",
            silence_logs=50,
            dashboard_address="127.0.0.1:0",  # None is port 8787, which another test may have
        ) as scheduler,
        Client(scheduler, set_as_default=False) as client,  # type: ignore[no-untyped-call]
    ):
        found = Cluster(scheduler, client)
        try:
            for host in HOSTS:
                found.start(host)
            yield found
        finally:
            for worker in found.workers.values():
                if worker.poll() is None:
                    kill_tree(worker.pid)
                worker.wait()


def run(cluster: Cluster, *calls: Callable[[], Any], conf: Any = CONF, **how: Any) -> list[Any]:
    """What gangs of two find that are asked for at once."""
    several = Gang(2, how.pop("coordinator", "auto"), join)
    tasks = [
        Task(f"{n}", gang.run, (several, call), gang=several, label=f"gang {n}", **how) for n, call in enumerate(calls)
    ]
    found = run_distributed(tasks, replace(conf, retries=2), cluster.client, lambda task, result: None)
    return [found[task.key] for task in tasks]


@contextmanager
def once_begun(cluster: Cluster, then: Callable[[dict[int, psutil.Process]], Any]) -> Iterator[Future[Any]]:
    """Do something once both members of a gang that the body starts are there."""
    with ThreadPoolExecutor(1) as aside:
        yield aside.submit(lambda: then(cluster.begun()))


def test_a_run_finds_there_what_one_device_does(cluster: Cluster, tmp_path: Path) -> None:
    """Each member is a child of a worker of its own, and the first listens at the address of that worker only. Of the
    first try a worker is killed, and the second goes on."""

    def look(both: dict[int, psutil.Process]) -> tuple[list[int], set[str]]:
        parents, listening = [both[rank].ppid() for rank in (0, 1)], set()
        until = time.monotonic() + LIMIT_S
        while not listening and time.monotonic() < until:
            found = [c for c in both[0].net_connections("tcp") if c.status == psutil.CONN_LISTEN]
            listening = {c.laddr.ip.removeprefix("::ffff:") for c in found}
            time.sleep(0.01)
        return parents, listening

    where = f"dask.address={cluster.scheduler.scheduler_address}"
    command = [*SAMPLED, *EXPERTS, where, f"paths.run={tmp_path}/both", f"paths.outputs={tmp_path}"]
    who = rf"^process 1 of 2 \(tcp://{HOSTS[1]}:\d+\) is gone, with the worker that started it; the others were ended$"
    with once_begun(cluster, partial(cluster.kill, HOSTS[1])) as killed, pytest.raises(StageError, match=who):
        pipeline.run(command)
    gone(killed.result())
    cluster.start(HOSTS[1])
    with once_begun(cluster, look) as looked:
        both = pipeline.run(command)
    with model_runs.quick_compilation():
        alone = pipeline.run([*SAMPLED, f"paths.run={tmp_path}/alone", f"paths.outputs={tmp_path}"])
    assert both.results["generate"]["tokens"] == alone.results["generate"]["tokens"]
    assert both.results["generate"]["facts"]["devices"] == 4
    assert looked.result() == ([cluster.workers[host].pid for host in HOSTS], {HOSTS[0]})


@pytest.mark.repeats
def test_a_training_goes_there_as_in_one_process(cluster: Cluster, tmp_path: Path) -> None:
    """Rows of metrics and weights of the members are in the folders of whoever asked; later ones find them. One trace
    has what the workers and the members did, between where the training was sent and where it came back."""
    given = toy_table.write(tmp_path / "table.csv")
    trained = [*toy_table.TRAINED, f"data.files=[{given}]", "train.steps=4", "train.look.every=2"]
    mesh = ["mesh=data", "mesh.axes.data=4", "mesh.processes=2"]
    there = [*mesh, f"dask.address={cluster.scheduler.scheduler_address}", "trace=true"]

    def command(name: str, *more: str) -> list[str]:
        return [*trained, *more, f"paths.run={tmp_path / name / 'run'}", f"paths.outputs={tmp_path / name}"]

    both = pipeline.run(command("both", *there)).results["train"]
    with model_runs.quick_compilation():
        alone = pipeline.run(command("alone")).results["train"]
    assert both["step"] == alone["step"] == 4
    for found, wanted in zip(losses(tmp_path / "both"), losses(tmp_path / "alone"), strict=True):
        assert found[:2] == wanted[:2]
        assert found[2] == pytest.approx(wanted[2], rel=1e-5)
    events = checked(tmp_path / "both/run")
    titles = {e["pid"]: e["args"]["name"].partition(",")[0] for e in events if e["name"] == "process_name"}
    assert {"run", "worker", "member 0 of the gang", "member 1 of the gang"} == {*titles.values()}
    flows = {e["id"]: e for e in events if e["ph"] == "s"}, {e["id"]: e for e in events if e["ph"] == "f"}
    for pid in (p for p, title in titles.items() if title.startswith("member")):
        own = [e for e in spans(events) if e["pid"] == pid]
        assert [e["args"]["step"] for e in own if e["name"] == "update"] == [1, 2, 3, 4]
        [task] = [e for e in own if e["cat"] == "task"]
        assert any(flows[0][i]["ts"] <= task["ts"] and end_of(task) <= flows[1][i]["ts"] * 1000 for i in flows[0])


def test_the_first_is_where_its_address_is(cluster: Cluster) -> None:
    """`mesh.coordinator` says which worker that is; and gangs that are asked for at once do not wait for each other."""
    assert run(cluster, partial(first_of, "rank"), partial(first_of, "again")) == ["rank0", "again0"]
    assert pinned.choose(cluster.client, Gang(2, f"{HOSTS[1]}:0", join), {})[0].startswith(f"tcp://{HOSTS[1]}:")
    with pytest.raises(StageError, match=r"mesh\.coordinator=192\.0\.2\.1:0: nothing on this machine can listen there"):
        run(cluster, partial(first_of, "rank"), coordinator="192.0.2.1:0")


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.brief("1")
def test_a_member_that_is_killed_or_fails_ends_all(killed: int, cluster: Cluster) -> None:
    with (
        once_begun(cluster, lambda both: (both[killed].kill(), both)[1]) as both,
        pytest.raises(StageError, match=f"^process {killed} of 2 .tcp://{HOSTS[killed]}:.*was killed by SIGKILL; the"),
    ):
        run(cluster, asleep)
    gone(both.result())
    with pytest.raises(
        StageError, match=rf"^process {killed} of 2 .*failed: nothing of the kind; the others were"
    ) as why:
        run(cluster, partial(raising, killed))
    assert why.value.exit_code == ConfigError.exit_code


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.brief("0")
def test_a_worker_that_is_killed_ends_all(killed: int, cluster: Cluster) -> None:
    """The one that watches, and the other."""
    host = HOSTS[killed]
    said = rf"tcp://{host}:\d+\) is gone, with" if killed else "the Dask worker that watched its 2 processes is gone;"
    with once_begun(cluster, partial(cluster.kill, host)) as both, pytest.raises(StageError, match=said):
        run(cluster, asleep)
    gone(both.result())
    with pytest.raises(PlanError, match=r"mesh\.processes: 2, each on a Dask worker .* there are 1 workers"):
        run(cluster, asleep)
    cluster.start(host)


def test_members_end_with_the_run_that_wanted_them(cluster: Cluster) -> None:
    """However that ends: its client is gone at once here, and says nothing."""
    code = f"from tests.sharding import test_workers as t; t.asleep_at({cluster.scheduler.scheduler_address!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    both = cluster.begun()
    process.kill()
    process.wait()
    gone(both)


def asleep_at(address: str) -> None:
    with Client(address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        run(Cluster(None, client), asleep)  # type: ignore[arg-type]
