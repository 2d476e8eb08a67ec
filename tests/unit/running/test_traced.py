"""What a traced run tells: tries of tasks, machines with clocks of their own, killed and untraced tries, profiles of a
sweep's jobs, and what stages do that train models and run them."""

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import tracing
from pipeline.api import compose_run
from pipeline.events import Events
from pipeline.records.tries import last_try
from pipeline.reporting.manifest import Report
from pipeline.running.graph import Task, anything, run_threads
from pipeline.running.runner import execute
from pipeline.running.tasks import do_chunk
from pipeline.running.traced import Traced
from tests.cases import toy_table
from tests.cases.model_runs import quick_compilation
from tests.cases.traces import Event, checked, end, nested, spans, spent
from tests.unit.running.test_graph import CONF

CONVERT = ("+model=gpt_oss", "quant=mxfp4", "flow=convert", "dask.chunk=1MiB", "dask.workers=1")
SCORED = (
    "+model=gpt_oss", "stages=[load,evaluate,generate]", "evaluate.windows.tokens=60", "evaluate.windows.window=32",
    "sampling.max_tokens=4",
)  # fmt: skip


def ran(run_dir: Path, *overrides: str, **told: Callable[..., None]) -> Report:
    more = (f"paths.run={run_dir}", f"paths.outputs={run_dir}.outputs")
    return execute(compose_run([*overrides, *more]), run_dir, [], Events(**told))


def traced(folder: Path, tasks: list[Task], *, retries: int = 0, jobs: dict[str, list[str]] | None = None) -> Traced:
    """What becomes of tasks in a process of their own run."""
    trace = Traced(folder, jax=True)
    conf = replace(CONF, retries=retries, keep_going=True)
    run_threads(trace.tasks(tasks, jobs or {}, {}), conf, 1, trace.ended, trace.begins(anything))
    return trace


class Flaky:
    """Work whose chunks are done the third time."""

    def __init__(self) -> None:
        self.tries = 0

    def do(self, chunk: str) -> str:
        self.tries += 1
        if self.tries < 3:
            raise OSError(f"no room, for the {self.tries}. time, at https://me:hunter2@host/x")
        return "digest"


def test_each_try_of_a_task_is_a_span_and_says_why_it_failed(tmp_path: Path) -> None:
    traced(tmp_path, [Task("k", do_chunk, (Flaky(), "chunk 1", None), label="write chunk 1")], retries=2).end(
        print, {}, well=True
    )
    events = checked(tmp_path)
    for kind in ("task", "chunk"):
        tries = [e["args"] for e in spans(events, kind)]
        assert [t.get("failed") for t in tries] == ["OSError", "OSError", None], kind
        assert [t.get("error", "")[:24] for t in tries] == ["no room, for the 1. time", "no room, for the 2. time", ""]
    assert "hunter2" not in (tmp_path / "trace.json").read_text()


# Clocks


@contextmanager
def elsewhere(clock: str, ahead_s: float, wall_ahead_s: float) -> Iterator[None]:
    """This process as one of a machine whose clocks are ahead of ours."""
    ours = tracing.clock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "clock", lambda: ours() + ahead_s)
        patch.setattr(tracing, "both_clocks", lambda: (ours() + ahead_s, time.time_ns() + round(wall_ahead_s * 1e9)))
        patch.setattr(tracing, "clock_id", lambda: clock)
        patch.setattr(tracing, "_sinks", {})
        yield
        for sink in tracing._sinks.values():
            sink.close()


@pytest.mark.parametrize("there", [("a machine", 0.0, 0.0), ("a third", 40.0, -7.0)], ids=["beside", "elsewhere"])
@pytest.mark.parametrize(("ahead_s", "wall_ahead_s"), [(500.0, 7200.0), (-3.0, -0.05)])
def test_spans_of_machines_with_other_clocks_lie_within_their_tasks(
    tmp_path: Path, ahead_s: float, wall_ahead_s: float, there: tuple[str, float, float]
) -> None:
    """Of a worker, and of a gang's member on its machine or another, of which only the worker was sent anything."""
    trace = Traced(tmp_path, jax=False)
    truth: dict[str, tuple[float, float]] = {}
    ours = tracing.clock

    def work(name: str) -> None:
        def inner() -> None:
            start, began = ours(), tracing.clock()
            time.sleep(0.002)
            tracing.done(f"inner {name}", "stage", began)
            truth[f"inner {name}"] = start, ours()

        inner() if name == "b" else member(tracing.carried(inner, lambda: "member 0"))

    def member(call: Callable[[], Any]) -> None:
        with elsewhere(*there):  # from the worker's
            call()

    tasks = trace.tasks([Task(k, work, (k,), label=k) for k in "abc"], {}, {})
    asked, sent = trace.begins(anything), {}
    for task in tasks:
        sent[task.key] = ours()
        asked(task)
        with elsewhere("a machine", ahead_s, wall_ahead_s):
            task.fn(*task.args)
        trace.ended(task, None)
    trace.end(print, {}, well=True)
    events = checked(tmp_path)
    flows = {e["ph"]: [f for f in events if f["ph"] == e["ph"]] for e in events if e["ph"] in "stf"}
    assert len(flows["s"]) == 3
    for s, key in zip(flows["s"], "abc", strict=True):
        back = next(f for f in flows["f"] if f["id"] == s["id"])
        own = [e for e in spans(events) if e["name"] in (key, f"inner {key}")]
        assert len(own) == (2 if key == "b" else 3)  # the member's task is called so too
        assert all(s["ts"] <= e["ts"] and end(e) <= round(back["ts"] * 1000) for e in own)
    [run] = spans(events, "run")
    begun = trace._began - run["ts"] / 1e6  # our clock where the trace begins
    known = [p["clock"] for p in json.loads((tmp_path / "trace.json").read_text())["otherData"]["processes"]]
    bound_s = max(float(k.split("known to ")[1].split()[0]) / 1e3 for k in known if "known to" in k)
    for e in spans(events, "stage"):
        assert abs(begun + e["ts"] / 1e6 - truth[e["name"]][0]) <= bound_s + 1e-4


# Tries


def _killed_at(run_dir: str, chunks: int) -> None:
    seen: list[str] = []

    def chunk(label: str, nbytes: int, reused: bool) -> None:
        seen.append(label)
        if len(seen) == chunks:
            os.kill(os.getpid(), signal.SIGKILL)

    ran(Path(run_dir), *CONVERT, "trace=true", chunk=chunk)


def test_what_a_process_told_before_kill_9_is_in_the_trace_of_the_next(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_killed_at, args=(str(tmp_path / "a"), 3))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "a" / "trace.json").exists()
    report = ran(tmp_path / "a", *CONVERT, "trace=true")
    events = checked(tmp_path / "a")
    assert len({e["pid"] for e in events}) == 2
    chunks = Counter(e["pid"] for e in spans(events, "chunk"))
    assert chunks == {1: 3, 2: report.chunks["all"] - report.chunks["reused"]}
    assert report.chunks["reused"] == 3
    assert spent(events) == pytest.approx({s["name"]: s["seconds"] for s in report.stages}, rel=1e-5)
    assert not (tmp_path / "a" / tracing.PARTS).exists()


def test_a_later_try_that_is_not_traced_leaves_the_trace_of_the_earlier(tmp_path: Path) -> None:
    def stop(label: str, nbytes: int, reused: bool) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path / "a", *CONVERT, "trace=true", chunk=stop)
    (tmp_path / "a" / "trace.json").unlink()  # as if it had been killed
    said: list[str] = []
    report = ran(tmp_path / "a", *CONVERT, say=said.append)
    assert [s for s in said if "tells of earlier tries only" in s]
    events = checked(tmp_path / "a")
    assert len({e["pid"] for e in events}) == 1
    assert report.traces == {"trace.json": "trace.json"}
    assert not (tmp_path / "a" / tracing.PARTS).exists()


def test_a_run_that_is_complete_says_that_there_is_nothing_to_trace(tmp_path: Path) -> None:
    assert ran(tmp_path / "a", *CONVERT).traces == {}
    said: list[str] = []
    ran(tmp_path / "a", *CONVERT, "trace=true", say=said.append)
    assert [s for s in said if "overwrite=true does it again" in s]
    assert not (tmp_path / "a" / "trace.json").exists()


def test_a_job_of_a_sweep_links_its_own_profiles(tmp_path: Path) -> None:
    def profiled() -> None:
        tracing.profile(lambda place: begun(Path(place)), lambda: None)

    def begun(place: Path) -> None:
        (place / "plugins/profile/now").mkdir(parents=True)
        (place / "plugins/profile/now/host.xplane.pb").touch()

    tasks = [Task(k, profiled, label=k) for k in ("first", "second", "shared")]
    jobs = {"first": ["int8"], "second": ["none"], "shared": ["int8", "none"]}
    trace = traced(tmp_path / "sweep", tasks, jobs=jobs)
    (tmp_path / "sweep" / tracing.PROFILES / "of a killed process").mkdir()
    for job in ("int8", "none"):
        found = trace.links(tmp_path / job, job)
        labels = sorted(name.rpartition("/")[2].partition("-")[0] for name in found if name != "trace.json")
        assert labels == sorted(k for k in jobs if job in jobs[k])
        assert all((tmp_path / job / place).resolve().exists() for n, place in found.items() if n != "trace.json")
    trace.end(print, {}, well=True)
    linked = json.loads((tmp_path / "sweep/trace.json").read_text())["otherData"]["profiles"]
    assert len(linked) == 3


# What runs models


def names(events: list[Event], kind: str) -> Counter[str]:
    return Counter(e["name"] for e in spans(events, kind))


def test_a_training_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    """Updates, what they wait for, evaluations, states that are saved and restored, and what JAX compiled, all within
    the task that trains; of the stopped try, too."""
    table = toy_table.write(tmp_path / "table.csv")
    often = ("train.steps=8", "train.save.every=2", "train.save.seconds=null", "train.look.every=4")
    typed = (*toy_table.TRAINED, *often, f"data.files=[{table}]", "trace=true")

    def stop(text: str) -> None:
        if "after update 4" in text:
            raise KeyboardInterrupt

    with quick_compilation():
        with pytest.raises(KeyboardInterrupt):
            ran(tmp_path / "a", *typed, text=stop)
        report = ran(tmp_path / "a", *typed)
    events = checked(tmp_path / "a")
    steps = {pid: [e["args"]["step"] for e in spans(events, "execute") if e["name"] == "update" and e["pid"] == pid]
             for pid in (1, 2)}  # fmt: skip
    assert steps[1] == [1, 2, 3, 4]
    assert steps[2] == [*range(steps[2][0], 9)]
    assert 2 < steps[2][0] <= 5
    assert names(events, "data")["wait for the batch"] >= 8
    assert names(events, "execute")["evaluate"] >= 3
    assert {"save states", "restore states"} <= {*names(events, "checkpoint")}
    assert any(name.startswith("compile") for name in names(events, "jax"))
    assert report.traces == {"trace.json": "trace.json"}
    inside = {id(e): around for e, around in nested(events)}
    for e in spans(events, "execute", "data", "checkpoint"):
        around: Event | None = e
        while around is not None and around["cat"] != "task":
            around = inside[id(around)]
        assert around is not None
        assert around["name"] == "train"
    tasks = [e["args"].get("failed") for e in spans(events, "task") if e["name"] == "train"]
    assert tasks == ["interrupted", None, None]  # the last hands on what it gave


@pytest.mark.repeats
def test_models_that_are_evaluated_and_generate_with_profiles_by_jax(tmp_path: Path) -> None:
    with quick_compilation():
        report = ran(tmp_path / "a", *SCORED, "trace=true", "trace_jax=true")
    events = checked(tmp_path / "a")
    assert {"load the weights", "score", "prefill", "decode"} <= {*names(events, "execute")}
    assert any(name.startswith("compile") for name in names(events, "jax"))
    assert max(e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "device") > 1 << 20
    assert {*names(events, "stage")} >= {"evaluate", "generate"}
    profiles = {name: place for name, place in report.traces.items() if name != "trace.json"}
    assert sorted(name.rpartition("/")[2].partition("-")[0] for name in profiles) == ["evaluate", "generate"]
    assert all([*(tmp_path / "a" / place).rglob("*.xplane.pb")] for place in profiles.values())
    assert {*json.loads((tmp_path / "a/trace.json").read_text())["otherData"]["profiles"]} == {*profiles}
    assert (last_try(tmp_path / "a").stages, last_try(tmp_path / "a").made) == (2, {"evaluate", "generate"})
