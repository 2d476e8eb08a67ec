"""`flow=bench_train`: trainers that are slow or wrong are seen; ours agrees with torch by transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.bench import against, training, turns
from pipeline.errors import WeightmillError
from pipeline.records import schemas
from tests.cases.guests import guest

MODULE = """
import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Fake:
    shift: float = 0.0
    module: str = "json"

    @property
    def needs(self):
        return {self.module: f"pip install {self.module}"}

    def why_not(self, checkpoint):
        return ""

    def begin(self, checkpoint, tokens, rate, threads):
        assert checkpoint.store.read("model.norm.weight").size > 1
        assert tokens.shape == (2, 8)
        losses = iter(9 - 0.5 * i + self.shift for i in range(100))

        def update():
            time.sleep(float(os.environ.get("ACME_S", "0.01")))
            return next(losses)

        return update

    def flops_of_token(self, checkpoint):
        return 1e6

    def versions(self):
        return {"fake": "1.0"}


@dataclass(frozen=True)
class Fixed:
    def of(self, threads):
        return {"read": 1e10, "multiply_add": 1e11}
"""
FAKE = "+stages.bench_train.known.{}={{_target_: plugins.acme_trains.Fake{}}}"
SMALL = (
    "+model=gpt_oss", "flow=bench_train", "bench.rows=2", "bench.length=8", "bench.steps=2", "bench.rounds=2",
    "bench.threads=1", "stages.bench_train.limits._target_=plugins.acme_trains.Fixed",
)  # fmt: skip
FAKES = (FAKE.format("fake", ""), FAKE.format("other", ", shift: 0.5"), FAKE.format("absent", ", module: acme_engine"))
CHOSEN = ("bench.trainers=[fake,other,absent]", "bench.reference=fake")


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("guest")
    with guest(folder, {"plugins.acme_trains": MODULE}):
        yield folder


def bench(acme: Path, outputs: Path, *overrides: str) -> Any:
    return pipeline.run([*SMALL, *FAKES, *overrides, f"paths.outputs={outputs}"], config_dir=acme, progress=False)


def record(report: Any) -> dict[str, Any]:
    return schemas.read("benchmark", Path(report.run) / against.NAME)


@pytest.fixture(scope="module")
def first(acme: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    outputs = tmp_path_factory.mktemp("bench") / "outputs"
    return outputs, bench(acme, outputs, *CHOSEN)


def test_one_whose_losses_are_others_is_wrong(first: tuple[Path, Any]) -> None:
    found = {row["engine"]: row for row in record(first[1])["rows"]}
    right, wrong = found["fake"], found["other"]
    assert right["wrong"] == ""
    assert wrong["wrong"] == "loss 9.5000 of update 1, and 9.0000 of the reference"
    assert right["losses"] == [9.0, 8.5, 8.0, 7.5]
    assert right["metrics"]["step"]["value"] >= 10
    assert right["tokens_per_s"] == pytest.approx(16 / right["metrics"]["step"]["value"] * 1e3)
    assert right["of_multiply_add"] == pytest.approx(right["tokens_per_s"] * 1e6 / 1e11)
    assert found["absent"]["state"] == "missing"
    assert "✗ other" in str(first[1].results["bench_train"]["tables"][0])


@pytest.mark.repeats  # test_ops.py: of kernels
def test_a_slower_one_is_caught(first: tuple[Path, Any], acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_S", "0.1")
    report = bench(acme, first[0], *CHOSEN, "bench.trainers=[fake]", f"bench.against='{Path(first[1].run).name}'")
    assert report.exit_code == against.CODE
    assert any(text.startswith("fake 2 × 8: step") for text in record(report)["regressions"])


def test_a_baseline_of_other_steps_is_refused(first: tuple[Path, Any], acme: Path) -> None:
    typed = ("bench.trainers=[fake]", f"bench.against='{Path(first[1].run).name}'")
    with pytest.raises(WeightmillError, match=r"here is bench\.steps=3, which was 2\. Ask the same"):
        bench(acme, first[0], *CHOSEN, *typed, "bench.steps=3")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("bench.trainers=[fakee]", "fake"), ("bench.trainers=[]", "at least one"), ("bench.reference=nobody", "nobody"),
        ("bench.rows=0", "1 or more"), ("bench.length=1", "2 or more"), ("bench.rate=0", "more than 0"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong_is_said_before_anything_runs(
    acme: Path, tmp_path: Path, override: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "done", lambda *_: pytest.fail("it ran"))
    with pytest.raises(WeightmillError, match=said):
        bench(acme, tmp_path / "outputs", *CHOSEN, override)


def test_losses_that_are_no_numbers_are_wrong() -> None:
    assert training.wrong([1.0, float("nan")], [1.0, 1.0], 0.01) == "its losses are not finite"
    assert training.wrong([1.0, 1.005], [1.0, 1.0], 0.01) == ""
    assert "1.0200 of update 2" in training.wrong([1.0, 1.02], [1.0, 1.0], 0.01)


@pytest.mark.oracle
@pytest.mark.repeats  # tests/oracle/test_training.py compares losses
def test_ours_agrees_with_torch(acme: Path, tmp_path: Path) -> None:
    """Four losses, which an optimizer or a gradient of another kind would move apart."""
    report = bench(
        acme, tmp_path / "outputs", "bench.trainers=[ours,torch]", "bench.rounds=1", "bench.wrong_loss=0.0005"
    )
    ours, theirs = record(report)["rows"]
    assert report.exit_code == 0
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=5e-4)
    assert ours["losses"][-1] < 0.9 * ours["losses"][0]
    assert not ours["wrong"]
    assert record(report)["reference"] == "torch"
