"""What a run keeps of how fast this machine is, and what it had better not."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import meter
from pipeline.errors import StorageError
from pipeline.events import Events
from pipeline.planning.rates import Rates
from pipeline.planning.sweep import Job
from pipeline.planning.time import BESIDE
from pipeline.reporting.manifest import Report
from pipeline.running import runner
from pipeline.running.runner import execute_jobs
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from stages.export_work import ExportWork
from tests.cases import caches
from tests.unit.running.test_sweep import job


@dataclass(frozen=True)
class Slow:
    """Computes, or is lucky and finds most of it."""

    finds: bool = False

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(None, Footprint(moved_nbytes=1000, rate="cpu"))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> None:
        if self.finds:
            meter.took()


@dataclass
class Learnt:
    """What `learn` was given."""

    nodes: list[str]
    chunks: list[Mapping[str, Any]]
    computed: Mapping[str, float]
    finished: Mapping[str, float]

    def seconds(self, node: str) -> list[float]:
        return [r["stages"][node]["seconds"] for r in self.chunks if node in r["stages"]]


@pytest.fixture
def learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Learnt]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", caches.fresh(tmp_path / "cache"))
    found: list[Learnt] = []
    real = runner.learn

    def watched(rates: Any, plan: Any, workers: int, chunks: Any, computed: Any, finished: Any, repeated: Any) -> None:
        found.append(Learnt([*plan.nodes], chunks, computed, finished))
        real(rates, plan, workers, chunks, computed, finished, repeated)

    monkeypatch.setattr(runner, "learn", watched)
    return found


def jobs(outputs: Path, *more: str) -> list[Job]:
    return [job(outputs, "flow=convert", f"quant={q}", *more) for q in ("mxfp4", "int8")]


def with_slow(one: Job, *, finds: bool) -> Job:
    return replace(one, run=replace(one.run, stages={**one.run.stages, "slow": Slow(finds)}))


@pytest.mark.slow
def test_a_sweep_counts_what_is_shared_once_and_every_stage_under_its_name(
    tmp_path: Path, learnt: list[Learnt]
) -> None:
    assert all(isinstance(r, Report) for r in execute_jobs(jobs(tmp_path / "out"), Events()))
    [found] = learnt
    assert found.nodes == ["1.load", "1.decode", "1.quantize", "1.export", "2.quantize", "2.export"]
    assert {n for r in found.chunks for n in r["stages"]} == {*found.nodes}
    read = found.seconds("1.load")  # by the first job; the other is handed it, which takes no time
    assert [s > 0 for s in read] == [True] * (len(read) // 2) + [False] * (len(read) // 2)
    assert {*found.finished} == {"1.export", "2.export"}
    assert all(s > 0 for s in found.finished.values())
    assert len({k.partition(" ")[0] for k in Rates.load().kinds}) == 4  # load, decode, quantize, export


@pytest.mark.parametrize("finds", [False, True])
def test_a_stage_that_took_what_it_gives_from_an_earlier_run_says_nothing(
    finds: bool, tmp_path: Path, learnt: list[Learnt]
) -> None:
    [report] = execute_jobs([with_slow(jobs(tmp_path / "out")[0], finds=finds)], Events())
    assert isinstance(report, Report), report
    assert {*learnt[0].computed} == (set() if finds else {"slow"})
    assert any("Slow" in kind for kind in Rates.load().kinds) != finds
    # Nor can the time of the whole run be compared with its plan.
    assert any(row["what"] == "time" for row in report.predicted) != finds


def test_nothing_is_learnt_from_part_of_the_work(
    tmp_path: Path, learnt: list[Learnt], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = jobs(tmp_path / "out", "dask.chunk=256KiB")
    real = ExportWork.do

    def breaks(self: ExportWork, chunk: Any) -> str:
        if self.run_dir == two[1].run_dir and chunk == self.chunks[3]:
            raise StorageError("the disk is gone")
        return real(self, chunk)

    monkeypatch.setattr(ExportWork, "do", breaks)
    outcomes = execute_jobs(two, Events())
    assert [type(o) for o in outcomes] == [Report, StorageError]
    monkeypatch.setattr(ExportWork, "do", real)
    assert isinstance(execute_jobs(two[1:], Events())[0], Report)  # goes on where it was
    copied = job(tmp_path / "out", "flow=convert", "quant=mxfp4", "dask.chunk=256KiB", "export.path=elsewhere")
    assert isinstance(execute_jobs([replace(copied, run_dir=tmp_path / "out/copy")], Events())[0], Report)
    assert (tmp_path / "elsewhere").is_dir()
    assert learnt == []
    assert Rates.load().kinds == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "option"), [("generate", "sampling.max_tokens=2"), ("evaluate", "evaluate.windows.tokens=64")]
)
@pytest.mark.brief(1)
def test_compiling_is_learnt_apart(flow: str, option: str, tmp_path: Path, learnt: list[Learnt]) -> None:
    """So that a longer text is not planned to compile for longer."""
    [report] = execute_jobs([job(tmp_path / "out", f"flow={flow}", option)], Events())
    assert isinstance(report, Report), report
    [beside] = [k for k in Rates.load().kinds if k.endswith(BESIDE)]
    again, once = Rates.load().kinds[beside.removesuffix(f" {BESIDE}")], Rates.load().kinds[beside]
    assert [*once] == ["0"]
    assert [*again] != ["0"]
    assert once["0"][0] < learnt[0].computed[flow]


def test_rates_that_cannot_be_kept_are_said(tmp_path: Path, learnt: list[Learnt]) -> None:
    (tmp_path / "cache/weightmill/rates.json").mkdir(parents=True)
    said: list[str] = []
    assert isinstance(execute_jobs(jobs(tmp_path / "out")[:1], Events(say=said.append))[0], Report)
    assert [text for text in said if "rates of this machine cannot be kept" in text]


def test_took_is_of_the_task_that_says_it() -> None:
    meter.took()  # nobody measures
    with meter.metered() as outer:
        with meter.metered() as inner:
            meter.took()
        assert inner.record()["took"] is True
        assert outer.record()["took"] is False
    with meter.metered() as later:
        pass
    assert later.record()["took"] is False
