"""Traces: of real runs, in threads, on workers and of a sweep; and made of files that were torn, or are foreign.

What perfetto's package reads traces with is a program that it downloads, so the format is held against a schema of the
fields that we use, and nesting is checked here.
"""

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from pipeline import tracing
from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.events import Events
from pipeline.planning.sweep import Job
from pipeline.reporting.trace import Unwritten, merge
from pipeline.running.runner import execute, execute_jobs
from pipeline.running.traced import traced
from tests.cases.runs import digests

FIELDS: dict[str, dict[str, Any]] = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "dur": (int, float), "args": dict},
    "i": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "s": str, "args": dict},
    "C": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "ts": (int, float), "args": dict},
}
CLUSTER = ("dask=distributed", "dask.workers=2", "dask.dashboard=false")


def run_of(run_dir: Path, *overrides: str) -> Any:
    more = (f"paths.run={run_dir}", f"paths.outputs={run_dir}.outputs", "dask.chunk=1MiB")
    return compose_run(["+model=gpt_oss", "quant=mxfp4", "flow=convert", *more, *overrides])


def checked(folder: Path) -> list[dict[str, Any]]:
    """The events of a trace in which every field is of its type, time goes on, and spans of a thread nest."""
    events: list[dict[str, Any]] = json.loads((folder / "trace.json").read_text())["traceEvents"]
    for e in events:
        wanted = FIELDS[e["ph"]]
        assert {*e} == {"ph", *wanted}, e
        assert all(isinstance(e[k], t) for k, t in wanted.items()), e
        assert min(e["ts"], e.get("dur", 0)) >= 0, e
        assert e["name"].isprintable()
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert times == sorted(times)
    threads: dict[tuple[int, int], list[int]] = defaultdict(list)
    for e in (e for e in events if e["ph"] == "X"):
        start, end = round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000)
        around = threads[e["pid"], e["tid"]]
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1], e
        around.append(end)
    return events


def spent(events: list[dict[str, Any]], job: str = "") -> dict[str, float]:
    """Stage → seconds in it alone, by its spans."""
    found: Counter[str] = Counter()
    for e in (e for e in events if e.get("cat") == "stage"):
        if not job or job in e["args"]["jobs"]:
            found[e["name"]] += e["args"]["self_s"]
    return dict(found)


@pytest.mark.parametrize("how", [("dask.workers=2",), CLUSTER], ids=["threads", "distributed"])
def test_spans_are_what_the_manifest_says_and_nothing_else_differs(tmp_path: Path, how: tuple[str, ...]) -> None:
    plain = execute(run_of(tmp_path / "plain", "dask.workers=2"), tmp_path / "plain", [], Events())
    said: list[str] = []
    report = execute(run_of(tmp_path / "a", "trace=true", *how), tmp_path / "a", [], Events(say=said.append))
    assert not [s for s in said if "trace" in s]
    events = checked(tmp_path / "a")
    assert spent(events) == pytest.approx({s["name"]: s["seconds"] for s in report.stages}, rel=1e-9)
    kinds = Counter(e.get("cat") for e in events)
    assert kinds["chunk"] == report.chunks["all"] > 1
    kernels = [e["args"] for e in events if e.get("cat") == "kernel"]
    assert {(k["op"], k["backend"]) for k in kernels} == {tuple(b) for b in report.backends}
    assert all(k["nbytes_in"] > k["nbytes_out"] > 0 for k in kernels)
    assert report.traces == {"trace.json": "trace.json"}
    assert plain.traces == {}
    assert digests(tmp_path / "a/model") == digests(tmp_path / "plain/model")
    assert not (tmp_path / "plain/trace.json").exists()
    assert not (tmp_path / "a" / tracing.PARTS).exists()
    assert tracing.active is False


def test_a_sweep_has_one_trace_that_tells_its_jobs_apart(tmp_path: Path) -> None:
    jobs = [
        Job(run_of(tmp_path / q, "trace=true", f"quant={q}"), tmp_path / q, (f"quant={q}",), q)
        for q in ("int8", "none")
    ]
    with traced(tmp_path / "sweep", [j.run.spine for j in jobs], {}, print) as trace:
        outcomes = execute_jobs(jobs, Events(), trace=trace)
    events = checked(tmp_path / "sweep")
    for job, report in zip(jobs, outcomes, strict=True):
        assert not isinstance(report, Exception)
        seconds = {s["name"]: s["seconds"] for s in report.stages if s["seconds"]}
        assert spent(events, job.name) == pytest.approx(seconds, rel=1e-9)
        assert report.traces == {"trace.json": "../sweep/trace.json"}
    assert {e["name"] for e in events if e.get("cat") == "job"} == {"int8", "none"}


def test_what_a_killed_try_left_is_in_the_trace_of_the_next(tmp_path: Path) -> None:
    run_dir, seen = tmp_path / "a", []

    def chunk(label: str, nbytes: int, reused: bool) -> None:
        seen.append(label)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(run_of(run_dir, "trace=true", "dask.workers=1"), run_dir, [], Events(chunk=chunk))
    assert [*(run_dir / tracing.PARTS).iterdir()]
    report = execute(run_of(run_dir, "trace=true", "dask.workers=1"), run_dir, [], Events())
    events = checked(run_dir)
    assert sum(e.get("cat") == "reused" for e in events) == report.chunks["reused"] > 0
    assert len({e["pid"] for e in events}) == 2


def test_a_trace_that_cannot_be_written_is_said_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if tracing.PARTS in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(tracing.os, "write", full)
    said: list[str] = []
    report = execute(run_of(tmp_path / "a", "trace=true"), tmp_path / "a", [], Events(say=said.append))
    monkeypatch.undo()
    assert report.outputs
    assert any(tracing.PARTS in s and "No space left on device" in s for s in said)


HEAD = {"pid": 1, "host": "h", "role": "run", "session": "s", "clock": "c", "perf_s": 1.0, "wall_ns": 2_000_000_000}


def parts(folder: Path, **lines: list[Any]) -> None:
    (folder / tracing.PARTS).mkdir(parents=True)
    for name, said in lines.items():
        text = "".join(json.dumps(line) + "\n" for line in said)
        (folder / tracing.PARTS / f"{name}.jsonl").write_text(text)


def test_torn_lines_and_foreign_files(tmp_path: Path) -> None:
    hostile = "\x1b[2J</script>\u202e"
    parts(tmp_path, a=[HEAD, [1, "X", hostile, "task", 1.0, 0.5, {"k\n": hostile}, 7], [1, "end", "k"]], b=[{"not": 1}])
    with (tmp_path / tracing.PARTS / "a.jsonl").open("a") as file:
        file.write('[1,"X","nan","task",NaN,1,{},7]\n[1,"Q","x","y",1,1,{},7]\n{}\n[]\n"x"\n7\n[2,"X","torn","ta')
    lacking = merge(tmp_path, {}, {"k": "K", "gone": "Gone"})
    assert any("b.jsonl" in s and "no part" in s for s in lacking)
    assert any("Gone" in s for s in lacking)
    [span] = [e for e in checked(tmp_path) if e["ph"] == "X"]
    assert "\x1b" not in json.dumps(span, ensure_ascii=False)
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["torn"] == 7


def test_the_clock_of_another_machine_is_moved_to_where_its_tasks_can_have_been(tmp_path: Path) -> None:
    theirs = HEAD | {"role": "worker", "clock": "d", "perf_s": 500.0, "wall_ns": 9_000_000_000}  # 7 s ahead
    parts(
        tmp_path,
        a=[HEAD, ["sent", "k", 1.0], ["got", "k", 1.4], [0, "X", "run", "run", 1.0, 1.0, {}, "run"]],
        b=[theirs, [1, "X", "t", "task", 500.1, 0.2, {}, 7], [1, "end", "k"]],
    )
    merge(tmp_path, {}, {})
    events = {e["name"]: e for e in checked(tmp_path) if e["ph"] == "X"}
    assert 0 <= events["t"]["ts"] <= events["t"]["ts"] + events["t"]["dur"] <= 400_000


def test_a_trace_that_is_in_the_way(tmp_path: Path) -> None:
    parts(tmp_path, a=[HEAD])
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(Unwritten, match=r"trace\.json: cannot be written"):
        merge(tmp_path, {}, {})
    assert not (tmp_path / "trace.json.partial").exists()


def test_profiles_need_a_trace(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="trace=true asks for one"):
        run_of(tmp_path / "a", "trace_jax=true")
