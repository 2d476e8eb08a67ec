"""A population from the command line: every member is what its own job would be, on one device or divided over four."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import PlanError, StageError
from pipeline.records.points import METRICS
from pipeline.running.results import FOLDER
from plugins.formats.safetensors.container import SafeTensors
from plugins.train.members import Members
from tests.cases import model_runs, toy_table

STEPS = 6
TRAINED = (*toy_table.TRAINED, "data.held_out=0.25", f"train.steps={STEPS}")
SEEDS, RATES = (0, 1), (0.01, 0.1)
SEVERAL = ("train=population", f"train.population.seeds={[*SEEDS]}", f"train.population.rates={[*RATES]}")
OVER_FOUR = ("mesh=data", "mesh.axes.data=4")


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> Path:
    return toy_table.write(tmp_path / "table.csv")


def run(folder: Path, name: str, *overrides: str) -> Any:
    where = f"data.files=[{folder / 'table.csv'}]", f"paths.run={folder / name}", f"paths.outputs={folder / name}-out"
    with model_runs.quick_compilation():
        return pipeline.run([*TRAINED, *where, *overrides]).results["train"]


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found = map(json.loads, (folder / name / METRICS).read_text().splitlines())
    return [r for r in found if r["kind"] in ("train", "held_out")]


def weights(folder: Path, name: str) -> dict[str, Any]:
    [found] = (p.parent for p in (folder / f"{name}-out" / FOLDER).glob("*/*.safetensors"))
    store = SafeTensors().open(found)
    return {n: store.read(n) for n in store.specs}


def test_members_are_what_their_jobs_are(tmp_path: Path, thorough: bool) -> None:
    """Of another seed, and of another rate; and the best one is."""
    found = run(tmp_path, "all", *SEVERAL, *OVER_FOUR)
    best = found["best"]
    judged = {}
    for i, (seed, rate) in enumerate((s, r) for s in SEEDS for r in RATES):
        name = f"{seed}-{rate}"
        mine = [(r["kind"], r["step"], r["loss"]) for r in rows(tmp_path, "all") if r["member"] == i]
        judged[seed, rate] = [loss for kind, _, loss in mine if kind == "held_out"][-1]
        if not (thorough or i in (0, 3) or (seed, rate) == (best["seed"], best["rate"])):
            continue
        alone = run(tmp_path, name, f"seed={seed}", f"train.optimizer.rate={rate}")
        assert judged[seed, rate] == pytest.approx(alone["last"], rel=1e-4)
        theirs = [(r["kind"], r["step"], r["loss"]) for r in rows(tmp_path, name)]
        assert [m[:2] for m in mine] == [t[:2] for t in theirs]
        assert [m[2] for m in mine] == pytest.approx([t[2] for t in theirs], rel=1e-4)
    assert (best["seed"], best["rate"]) == min(judged, key=lambda m: judged[m])
    for n, w in weights(tmp_path, f"{best['seed']}-{best['rate']}").items():
        np.testing.assert_allclose(weights(tmp_path, "all")[n], w, rtol=1e-3, atol=1e-4, err_msg=n)
    assert (tmp_path / "all" / "loss.png").stat().st_size > 0
    table = found["tables"][0]  # then where it lies
    assert len(table["rows"]) == 4


@pytest.mark.repeats
def test_it_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, often = Members._row, (*SEVERAL, "train.save.every=2", "train.save.seconds=null")

    def stopped(self: Members, name: str, before: int, *args: Any) -> None:
        if before == 3:
            raise StageError("the power went off")
        real(self, name, before, *args)

    monkeypatch.setattr(Members, "_row", stopped)
    with pytest.raises(StageError, match="the power went off"):
        run(tmp_path, "often", *often)
    monkeypatch.setattr(Members, "_row", real)
    run(tmp_path, "often", *often)
    run(tmp_path, "once", *SEVERAL)
    timed = {"time", "seconds", "examples_per_s"}
    for mine, theirs in zip(rows(tmp_path, "often"), rows(tmp_path, "once"), strict=True):
        assert {n: v for n, v in mine.items() if n not in timed} == {n: v for n, v in theirs.items() if n not in timed}
    for n, w in weights(tmp_path, "once").items():
        np.testing.assert_array_equal(weights(tmp_path, "often")[n], w, n)


def test_one_that_diverges_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    wild = "train.population.rates=[1.0e+30,0.01]"
    found = run(tmp_path, "wild", "train=population", "train.population.seeds=[0]", wild)
    assert found["out"][0] > 0
    assert found["out"][1] == 0
    assert found["best"]["rate"] == 0.01
    with pytest.raises(StageError, match=r"no member has a loss that is a number; lower rates may help"):
        run(tmp_path, "all", "train=population", "train.population.seeds=[0]", "train.population.rates=[1.0e+30]")


def test_what_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as why:
        run(tmp_path, "none", *SEVERAL, "mesh=data", "mesh.axes.data=3", "mesh.processes=3", "train.look.prompts=[a]")
    said = [str(p) for p in why.value.problems]
    assert any("4 members over 3 devices; 1, 2, 4 devices divide them" in p for p in said)
    assert any("a population is trained in one process" in p for p in said)
    assert any("train.look.prompts" in p for p in said)
