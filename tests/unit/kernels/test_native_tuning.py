"""How native kernels divide their work: it changes no number, and is what was measured here, or what is known."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import cpu
from pipeline.running import text_stream
from pipeline.tensors.scheme import MXFP4
from pipeline.testing.memory import quantized
from plugins.kernels.native import ffi, tune, tuning
from plugins.kernels.native.tuning import Gemm, Gemv, Tuned
from tests.cases.native import needs_compiler

pytestmark = needs_compiler


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing measured, nothing known."""
    monkeypatch.setattr(tuning, "TABLE", tmp_path / "table.json")
    monkeypatch.setattr(tuning, "kept", lambda: tmp_path / "kept.json")
    tuning.best.cache_clear()
    yield tmp_path
    tuning.best.cache_clear()


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_numbers_do_not_depend_on_it(rows: int) -> None:
    w = quantized(MXFP4, (5, 1337, 320))
    x = np.random.default_rng(0).standard_normal((rows, 320), np.float32)
    expert = np.arange(rows, dtype=np.int32) % 2
    ways = [Tuned(), Tuned(Gemv(1, 1), Gemm(1, 1)), Tuned(Gemv(1 << 40, 1), Gemm(1000, 1)), Tuned(Gemv(5000, 1 << 40))]
    found = [np.asarray(ffi.grouped(x, expert, [w], tuned=how)[0]) for how in ways]
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_what_was_measured_here_comes_before_what_is_known(here: Path) -> None:
    assert tuning.best() == Tuned()
    known, measured = Tuned(gemm=Gemm(pieces=8)), Tuned(Gemv(1 << 15, 1 << 16))
    said = {"gemv": asdict(Gemv()), "gemm": {"pieces": 8, "least_strips": 4}}
    (here / "table.json").write_text(json.dumps({cpu.family(): said, "another": {}}))
    tuning.best.cache_clear()
    assert tuning.best() == tuning.known() == known
    tuning.keep(measured)
    assert tuning.known() == known
    assert tuning.best() == measured


@pytest.mark.parametrize(
    "said",
    ["{", "", "[1]", '{"HERE": 1}', '{"HERE": {}}', '{"HERE": {"gemv": {"piece_nbytes": 0, "worth_nbytes": 1}}}'],
)
def test_a_damaged_file_counts_for_nothing_and_that_is_said(
    said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = here / "kept.json"
    path.write_text(said.replace("HERE", tuning._here()))
    assert tuning.best() == tuning.best() == Tuned()
    assert capsys.readouterr().err.count(str(path)) == 1
    tuning.best.cache_clear()
    told: list[str] = []
    with text_stream.to(told.append):  # who shows how far a run is takes that away first
        tuning.best()
    assert "".join(told).count(f"{path}") == 1
    assert told[-1].endswith("anew\n")
    assert capsys.readouterr().err == ""
    tuning.keep(Tuned(Gemv(1, 1)))
    assert tuning.best() == Tuned(Gemv(1, 1))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["model", "family"])
def test_another_machine_does_not_count(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = Tuned(Gemv(1, 1)), Tuned(Gemv(2, 2))
    tuning.keep(mine)
    with monkeypatch.context() as patch:
        patch.setattr(cpu, name, lambda: "another one")
        tuning.best.cache_clear()
        assert tuning.best() == Tuned()
        tuning.keep(others)
        assert tuning.best() == others
    tuning.best.cache_clear()
    assert tuning.best() == mine, "what one machine keeps is not forgotten by another"


def test_the_table_has_what_can_be() -> None:
    said = json.loads(tuning.TABLE.read_text())
    assert said
    for family, settings in said.items():
        found = tuning._read(tuning.TABLE, family)
        assert found is not None
        assert asdict(found) == settings, "and nothing else"
        for name, candidates in tuning.CANDIDATES.items():
            group, setting = name.split(".")
            assert settings[group][setting] in candidates


def test_the_fastest_is_kept_and_noise_is_not(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(group: str, ways: dict[int, Tuned]) -> dict[int, float]:
        name = next(n for n, c in tuning.CANDIDATES.items() if n.startswith(group) and {*c} == {*ways})
        return {n: {("gemv.piece_nbytes", 16 << 10): 0.5, ("gemm.pieces", 64): 0.99}.get((name, n), 1.0) for n in ways}

    monkeypatch.setattr(tune, "_timed", timed)
    lines: list[str] = []
    found = {name: rest for name, *rest in tune.tune(lines.append)}
    assert found["gemv.piece_nbytes"] == ["65,536", "16,384", 2.0]
    assert found["gemm.pieces"] == ["32", "32", 1.0]
    assert tuning.best() == Tuned(Gemv(piece_nbytes=16 << 10))
    assert len(lines) == len(tuning.CANDIDATES)


def test_what_is_slow_for_a_while_is_not_taken_for_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two candidates of one speed: the second is timed while the machine is at half of its own, the first is lucky."""
    begun = iter([5.0, 5.0, *[1.0, 2.0], *[2.0, 2.0] * (tune.ROUNDS - 1)])  # one each to see how long, then rounds
    monkeypatch.setattr(tune, "_calls", lambda group: [(None, None, None)])
    monkeypatch.setattr(tune, "_program", lambda *given: None)
    monkeypatch.setattr(tune, "_seconds", lambda program, times: next(begun))
    took = tune._timed("gemv", {1: Tuned(), 2: Tuned()})
    assert took[1] == pytest.approx(took[2])


def test_a_stop_in_the_middle_keeps_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Tuned(Gemv(1 << 15, 1 << 16))
    tuning.keep(before)
    times = iter([{n: 1.0 / n for n in tuning.CANDIDATES["gemv.piece_nbytes"]} | {64 << 10: 1.0}] * tune.TIMES)

    def timed(group: str, ways: dict[int, Tuned]) -> dict[int, float]:
        try:
            return next(times)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(tune, "_timed", timed)
    with pytest.raises(KeyboardInterrupt):
        tune.tune(lambda line: None)
    assert tuning.best() == before
    assert [path.name for path in here.iterdir()] == ["kept.json"]


@pytest.mark.parametrize("group", ["gemv", "gemm"])
def test_candidates_are_timed(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Any = [(tune._activations(40, 64), np.arange(40, dtype=np.int32) % 3, tune._packed(MXFP4, 3, 96, 64))]
    monkeypatch.setattr(tune, "_calls", lambda group: calls)
    monkeypatch.setattr(tune, "SECONDS", 0)
    took = tune._timed(group, {1: Tuned(), 2: Tuned(Gemv(1, 1), Gemm(1, 1))})
    assert all(seconds > 0 for seconds in took.values())


def test_what_is_faster_only_once_is_noise(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lucky = iter([2.0, 1.0] * len(tuning.CANDIDATES))  # how much faster all others are than what suits most
    usual = {*asdict(Gemv()).values(), *asdict(Gemm()).values()}

    def timed(group: str, ways: dict[int, Tuned]) -> dict[int, float]:
        gain = next(lucky)
        return {n: 1.0 if n in usual else 1 / gain for n in ways}

    monkeypatch.setattr(tune, "_timed", timed)
    assert all(was == now for _, was, now, _ in tune.tune(lambda line: None))
    assert tuning.best() == Tuned()
