"""Traces: of real runs, in threads, on workers and of a sweep; and made of files that were torn, or are foreign.

What perfetto's package reads traces with is a program that it downloads, so the format is held against a schema of the
fields that we use, and nesting is checked (`tests.cases.traces`).
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import tracing
from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.events import Events
from pipeline.reporting.trace import Unwritten, merge
from pipeline.running.runner import execute
from tests.cases.runs import digests
from tests.cases.traces import checked, spans, spent

CLUSTER = ("dask=distributed", "dask.workers=2", "dask.dashboard=false")


def run_of(run_dir: Path, *overrides: str) -> Any:
    more = (f"paths.run={run_dir}", f"paths.outputs={run_dir}.outputs", "dask.chunk=1MiB")
    return compose_run(["+model=gpt_oss", "quant=mxfp4", "flow=convert", *more, *overrides])


@pytest.mark.parametrize("how", [("dask.workers=2",), CLUSTER], ids=["threads", "distributed"])
def test_spans_are_what_the_manifest_says_and_nothing_else_differs(tmp_path: Path, how: tuple[str, ...]) -> None:
    plain = execute(run_of(tmp_path / "plain", "dask.workers=2"), tmp_path / "plain", [], Events())
    said: list[str] = []
    report = execute(run_of(tmp_path / "a", "trace=true", *how), tmp_path / "a", [], Events(say=said.append))
    assert not [s for s in said if "trace" in s]
    events = checked(tmp_path / "a")
    assert spent(events) == pytest.approx({s["name"]: s["seconds"] for s in report.stages}, rel=1e-5)
    sent = {e["id"] for e in events if e["ph"] == "s"}
    assert len(sent) > report.chunks["all"] if how == CLUSTER else not sent
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


def test_a_sweep_has_one_trace_that_tells_its_jobs_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["+model=gpt_oss", "flow=convert", "quant=int8,mxfp4", "trace=true", "dask.chunk=1MiB"]
    found = pipeline.sweep([*typed, f"paths.outputs={tmp_path}"])
    [file] = tmp_path.rglob("trace.json")
    events = checked(file.parent)
    jobs = {e["name"] for e in events if e.get("cat") == "job"}
    assert jobs == {name for name, _ in found.reports}
    assert len(jobs) == 2
    for name, report in found.reports:
        assert not isinstance(report, Exception)
        seconds = {s["name"]: s["seconds"] for s in report.stages if s["seconds"]}
        told: Counter[str] = Counter()
        for e in (e for e in spans(events, "stage") if name in e["args"]["jobs"]):
            told[e["name"]] += e["args"]["self_s"]  # with what handing over a read that is shared takes
        assert told == pytest.approx(seconds, rel=1e-9)
        assert (Path(report.run) / report.traces["trace.json"]).resolve() == file


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


def test_a_clock_that_runs_unevenly_is_said(tmp_path: Path) -> None:
    """Its task took longer there than it was away."""
    theirs = HEAD | {"role": "worker", "clock": "d"}
    parts(
        tmp_path,
        a=[HEAD, ["sent", "k", 1.0], ["got", "k", 1.4], [0, "X", "run", "run", 1.0, 1.0, {}, "run"]],
        b=[theirs, [1, "X", "t", "task", 3.0, 0.5, {}, 7], [1, "end", "k"]],
    )
    merge(tmp_path, {}, {})
    found = json.loads((tmp_path / "trace.json").read_text())
    begun = {e["name"]: e["ts"] for e in checked(tmp_path) if e["ph"] == "X"}
    assert begun == {"t": 0, "run": 50_000}  # half of what is too much on either side
    assert "by 100.000 ms: its clock runs unevenly" in found["otherData"]["processes"][1]["clock"]


def test_a_trace_that_is_in_the_way(tmp_path: Path) -> None:
    parts(tmp_path, a=[HEAD])
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(Unwritten, match=r"trace\.json: cannot be written"):
        merge(tmp_path, {}, {})
    assert not (tmp_path / "trace.json.partial").exists()


def test_profiles_need_a_trace(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="trace=true asks for one"):
        run_of(tmp_path / "a", "trace_jax=true")
