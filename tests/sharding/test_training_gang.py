"""A training in two processes with two devices each: whoever is killed, the same command goes on, to the same bits."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import StageError
from pipeline.records.points import METRICS
from pipeline.running import gang
from pipeline.running.results import FOLDER
from plugins.formats.safetensors.container import SafeTensors
from tests.cases import model_runs, toy_table
from tests.cli.run import start
from tests.sharding import killed
from tests.sharding.test_gang import LIMIT_S, begun, gone, watched

STEPS = 24
TRAINED = (
    *toy_table.TRAINED, f"train.steps={STEPS}", "train.save.every=2", "train.save.seconds=null", "train.look.every=5",
    "mesh=data", "mesh.axes.data=4",
)  # fmt: skip
KILLED = ((1, "in an update"), (0, "saving a state"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return toy_table.write(tmp_path / "table.csv")


def command(table: Path, outputs: Path, *overrides: str) -> list[str]:
    return [*TRAINED, f"data.files=[{table}]", f"paths.run={outputs / 'run'}", f"paths.outputs={outputs}", *overrides]


def losses(outputs: Path) -> list[tuple[str, int, Any]]:
    """Kind, updates, loss of every row."""
    rows = map(json.loads, (outputs / "run" / METRICS).read_text().splitlines())
    return [(r["kind"], r["step"], r["loss"]) for r in rows if r["kind"] in ("train", "held_out")]


def weights(outputs: Path) -> dict[str, Any]:
    [folder] = (p.parent for p in (outputs / FOLDER).glob("*/*.safetensors"))
    store = SafeTensors().open(folder)
    return {name: store.read(name) for name in store.specs}


@pytest.mark.repeats
def test_who_is_killed_ends_all_and_the_same_run_goes_on(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    """A member, or the process that started them; in the end there is what nobody was killed for."""
    for name, value in model_runs.quick_environment().items():
        monkeypatch.setenv(name, value)
    two, real = "mesh.processes=2", gang.run
    often = command(table, tmp_path / "often", two)
    for rank, place in KILLED if thorough else KILLED[:1]:
        started = watched(monkeypatch)
        monkeypatch.setattr(gang, "run", lambda several, call: real(killed.doomed(several, rank, place), call))  # noqa: B023
        with pytest.raises(StageError, match=f"^process {rank} of 2 was killed by SIGKILL; the others were ended"):
            pipeline.run(often)
        assert len(started) == 2
        gone(started)
    monkeypatch.setattr(gang, "run", real)
    [left] = (tmp_path / "often" / FOLDER).glob("*.unfinished/states")
    done = max(int(p.name) for p in left.iterdir() if p.name.isdigit())
    assert done >= 2
    process = start(*often)
    both, until = begun(process), time.monotonic() + LIMIT_S
    while max(int(p.name) for p in left.iterdir() if p.name.isdigit()) == done and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    gone(both)
    went_on = pipeline.run(often).results["train"]
    seldom = "train.save.every=0"
    once = pipeline.run(command(table, tmp_path / "once", two, seldom)).results["train"]
    assert went_on["step"] == once["step"] == STEPS
    assert losses(tmp_path / "often") == losses(tmp_path / "once")
    assert [step for kind, step, _ in losses(tmp_path / "once") if kind == "train"] == [*range(1, STEPS + 1)]
    for name, w in weights(tmp_path / "once").items():
        np.testing.assert_array_equal(weights(tmp_path / "often")[name], w, name)
    alone = pipeline.run(command(table, tmp_path / "alone", seldom)).results["train"]
    assert once["amount"] == alone["amount"] == 8 * STEPS
    for (_, _, found), (_, _, wanted) in zip(losses(tmp_path / "once"), losses(tmp_path / "alone"), strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)
    for name, w in weights(tmp_path / "alone").items():
        np.testing.assert_allclose(weights(tmp_path / "once")[name], w, rtol=0, atol=1e-5 * np.abs(w).max())
