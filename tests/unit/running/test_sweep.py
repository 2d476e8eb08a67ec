"""Jobs that run as one graph: what they share is done once, and each leaves what it leaves alone."""

import json
from collections.abc import Sequence
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.errors import StorageError
from pipeline.events import Events
from pipeline.planning.memory import plan_jobs
from pipeline.planning.sweep import Job
from pipeline.reporting.manifest import Report
from pipeline.running.runner import execute, execute_jobs
from pipeline.running.target import MARKER
from pipeline.tensors.views import JoinedStore
from plugins.engine.session import Model
from stages.evaluate import Evaluate
from stages.export_work import ExportWork
from tests.cases import caches

SCORED = ("stages=[load,decode,quantize,evaluate]", "evaluate.windows.tokens=256", "evaluate.texts=[text.txt]")
CLUSTER = ("dask=distributed", "dask.workers=2", "dask.dashboard=false")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every read of a source."""
    found: list[int] = []
    real = JoinedStore.read

    def counted(self: Any, name: str, index: Any = ()) -> Any:
        value = real(self, name, index)
        found.append(value.nbytes)
        return value

    monkeypatch.setattr(JoinedStore, "read", counted)
    return found


def job(outputs: Path, *overrides: str) -> Job:
    run_dir = outputs / "-".join(o.rpartition("=")[2] for o in overrides if o.startswith(("quant", "export")))
    run = compose_run(["+model=gpt_oss", *overrides, f"paths.run={run_dir}", f"paths.outputs={outputs}"])
    return Job(run, run_dir, overrides, " ".join(overrides))


TWELVE = [*product(("mxfp4", "int8", "fp8_e4m3", "nvfp4"), ("plain", "numpy", "auto"))]


def some(outputs: Path, which: Sequence[int]) -> list[Job]:
    """Of the twelve."""
    typed = [("flow=convert", f"quant={q}", f"export={e}", "dask.chunk=256KiB") for q, e in TWELVE]
    return [job(outputs, *typed[i]) for i in which]


def said(report: Any) -> dict[str, Any]:
    """All of a report but times and places."""
    stages = [{k: v for k, v in row.items() if k != "seconds"} for row in report.stages]
    outputs = {Path(f["path"]).name: f["xxh3_128"] for f in report.outputs}
    del outputs[MARKER]
    return {
        "stages": stages, "outputs": outputs, "errors": report.errors, "tensors": report.tensors,
        "backends": report.backends, "declined": report.declined, "nbytes_out": report.nbytes_out,
    }  # fmt: skip


def test_jobs_read_the_source_once_and_leave_what_they_leave_alone(here: Path, read: list[int], thorough: bool) -> None:
    """Of every option; in `make test` those that are held to what is left alone, and one that shares its values."""
    which = range(12) if thorough else (4, 8, 10, 11)
    reports = dict(zip(which, execute_jobs(some(here / "together", which), Events()), strict=True))
    source = reports[which[0]].stages[0]["nbytes_out"]  # type: ignore[union-attr]
    assert source <= sum(read) <= 1.05 * source
    for i in (0, 4, 8, 11) if thorough else (4, 11):
        [alone] = some(here / "alone", [i])
        assert said(reports[i]) == said(execute(alone.run, alone.run_dir, [], Events()))


@pytest.mark.repeats
def test_workers_of_a_cluster_read_once_too(here: Path) -> None:
    jobs = [job(here / "out", "flow=convert", f"quant={q}", "dask.chunk=1MiB", *CLUSTER) for q in ("mxfp4", "int8")]
    found = [said(r) for r in execute_jobs(jobs, Events())]
    seconds = [json.loads((j.run_dir / "manifest.json").read_text())["stages"][0]["seconds"] for j in jobs]
    assert seconds[0] > seconds[1] == 0.0  # the first of them reads
    threads = [job(here / "threads", "flow=convert", f"quant={q}", "dask.chunk=1MiB") for q in ("mxfp4", "int8")]
    assert found == [said(r) for r in execute_jobs(threads, Events())]


def test_one_that_fails_in_the_middle_does_not_stop_the_rest(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(here / "out", "flow=convert", f"quant={q}", "dask.chunk=256KiB") for q in ("mxfp4", "int8", "q8_0")]
    real, broken = ExportWork.do, jobs[1].run_dir

    def breaks(self: ExportWork, chunk: Any) -> str:
        if self.run_dir == broken and chunk == self.chunks[3]:
            raise StorageError("the disk is gone")
        return real(self, chunk)

    monkeypatch.setattr(ExportWork, "do", breaks)
    settled: list[int] = []
    outcomes = execute_jobs(jobs, Events(), lambda i, outcome: settled.append(i))
    assert [type(o) for o in outcomes] == [Report, StorageError, Report]
    assert sorted(settled) == [0, 1, 2]
    assert not (broken / "manifest.json").exists()
    monkeypatch.undo()
    again = execute(jobs[1].run, broken, [], Events())  # what succeeded is kept, when it is cut the same
    assert isinstance(again, Report)


def test_a_job_whose_folder_is_somebody_elses_does_not_stop_the_rest(here: Path) -> None:
    jobs = [job(here / "out", "flow=convert", f"quant={q}") for q in ("mxfp4", "int8")]
    (jobs[0].run_dir / "model").mkdir(parents=True)
    (jobs[0].run_dir / "model" / "mine").touch()
    first, second = execute_jobs(jobs, Events())
    assert "exists already" in str(first)
    assert isinstance(second, Report)


@pytest.mark.repeats
def test_nothing_is_evaluated_twice(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "text.txt").write_text("The state of the Union is that of the people of the United States. " * 8)
    ran: list[Any] = []
    scored: list[Any] = []
    run, score = Evaluate.run, Model.score

    @wraps(run)
    def watched(self: Evaluate, *args: Any, **more: Any) -> Any:
        ran.append(self)
        return run(self, *args, **more)

    def counted(self: Model, *args: Any, **more: Any) -> Any:
        scored.append(self)
        return score(self, *args, **more)

    monkeypatch.setattr(Evaluate, "run", watched)
    monkeypatch.setattr(Model, "score", counted)
    jobs = [job(here / "out", f"quant={q}", *SCORED) for q in ("mxfp4", "int8", "mxfp4", "none")]
    jobs[2] = Job(jobs[2].run, here / "out/again", (), "again")
    reports = execute_jobs(jobs, Events())
    assert all(isinstance(r, Report) for r in reports), reports
    assert len(ran) == 3  # mxfp4 is asked for twice
    assert len(scored) == 3  # two of them, and one baseline, which is what none comes to
    figures = [r.results["evaluate"]["figures"] for r in reports]  # type: ignore[union-attr]
    assert figures[0] == figures[2] != figures[1]
    ran.clear()
    execute_jobs([Job(jobs[1].run, here / "out/later")], Events())
    assert ran == []


def test_what_a_sweep_measured_tells_how_long_the_next_takes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", caches.fresh(here / "cache"))

    def jobs(name: str) -> list[Job]:
        return [job(here / name, "flow=convert", f"quant={q}", "export=plain") for q in ("mxfp4", "int8")]

    first = jobs("one")
    unknown = plan_jobs(first).time
    assert unknown is not None
    assert unknown.seconds is None
    assert all(isinstance(r, Report) for r in execute_jobs(first, Events()))
    known = plan_jobs(jobs("two")).time
    assert known is not None
    assert known.seconds is not None
    assert 0 < known.seconds < 60
