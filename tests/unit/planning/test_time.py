"""Time: nothing is known of what was never measured; what was is at its own rate, by size, on this machine."""

import json
import resource
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.digest import stamped
from pipeline.planning import rates as rates_module
from pipeline.planning.digests import Digests
from pipeline.planning.rates import MOST_KINDS, Rates
from pipeline.planning.time import learn, parts, time_plan
from pipeline.planning.wiring import Plan, make_plan
from pipeline.reporting.console import time_line
from pipeline.stage import Checkpoint, Context, Footprint, Prediction, Saves
from tests.cases.memory_store import MemoryStore
from tests.unit.planning.stages import CTX, Source, View, Write


class Slow:
    """Computes, and says how much it goes through."""

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(None, Footprint(moved_nbytes=1000, rate="cpu f32"))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> None:
        return None


def planned() -> Plan:
    return make_plan({"load": Source(("v", "w")), "view": View(), "write": Write(), "slow": Slow()}, CTX)


def record(**seconds: float) -> dict[str, Any]:
    return {"digest": "", "stages": {n: {"seconds": s} for n, s in seconds.items()}}


def test_nothing_is_known_before_it_was_measured() -> None:
    time = time_plan(planned(), Rates(), workers=1)
    assert time.seconds is None
    assert time.unknown == ("load", "view", "write", "slow")
    assert time.of("slow") is None


def test_what_a_run_measured_is_what_the_next_plan_says() -> None:
    rates, plan = Rates(), planned()
    learn(rates, plan, 1, [record(load=1.0, view=2.0), record(load=1.0, write=3.0)], {"slow": 5.0}, {})
    time = time_plan(plan, rates, workers=1)
    assert {n: time.of(n) for n in ("load", "view", "write", "slow")} == {"load": 2, "view": 2, "write": 3, "slow": 5}
    assert time.seconds == 12
    assert time.unknown == ()


def test_what_is_done_already_takes_no_time() -> None:
    """Neither the work itself, nor what it would read through."""
    rates, plan = Rates(), planned()
    learn(rates, plan, 1, [record(load=1.0, view=2.0, write=3.0)], {"slow": 5.0}, {})
    time = time_plan(plan, rates, workers=1)
    assert time.without(["write"]).seconds == time.of("slow") == 5
    assert time.without(["write", "slow"]).parts == ()
    assert time.without([]) == time


class Repeats(Slow):
    """Does one thing again and again."""

    def __init__(self, times: float):
        self._times = times

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(None, Footprint(moved_nbytes=1000, times=self._times, rate="cpu f32"))


def test_what_is_done_again_and_again_is_predicted_from_once() -> None:
    def plan(times: float) -> Plan:
        return make_plan({"load": Source(("v", "w")), "slow": Repeats(times)}, CTX)

    rates = Rates()
    learn(rates, plan(4), 1, [], {"slow": 12.0}, {}, {"slow": (2.0, 3.0)})  # it stopped early, after 10 s of compiling
    assert time_plan(plan(4), rates, 1).of("slow") == pytest.approx(10 + 4 * 2 / 3)
    assert time_plan(plan(600), rates, 1).of("slow") == pytest.approx(10 + 600 * 2 / 3)
    assert time_plan(plan(4), Rates(), 1).unknown == ("slow",)
    silent = Rates()
    learn(silent, plan(4), 1, [], {"slow": 12.0}, {}, {})  # of what it did again and again it said nothing
    assert time_plan(plan(4), silent, 1).of("slow") is None


class Saving(Repeats):
    """And saves states every 100 s, and one for certain."""

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        found = super().plan(checkpoint)
        return replace(found, takes=replace(found.takes, saves=Saves(10, most=3, sure=1, seconds=100.0), disk_nbytes=7))


def test_what_is_saved_with_time_goes_by_the_time() -> None:
    rates, kept = Rates(), {}
    for times in (4.0, 200.0, 900.0):
        plan = make_plan({"load": Source(("v", "w")), "slow": Saving(times)}, CTX)
        assert plan.kept_nbytes == 7 + 3 * 10  # at most, as its time is not known
        learn(rates, plan, 1, [], {"slow": 10 + times * 2 / 3}, {}, {"slow": (times * 2 / 3, times)})
        plan.time = time_plan(plan, rates, 1)
        kept[times] = plan.kept_nbytes
    assert kept == {4.0: 7 + 10, 200.0: 7 + 20, 900.0: 7 + 30}


def test_tasks_at_once_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks on two cores take half; four tasks on two cores waited for each other while they were measured."""
    monkeypatch.setattr("pipeline.planning.time.cores", lambda: 2)
    rates, plan = Rates(), planned()
    learn(rates, plan, 1, [record(load=4.0, view=4.0, write=4.0)], {}, {})
    assert time_plan(plan, rates, workers=2).of("load") == 2
    assert time_plan(plan, rates, workers=8).of("load") == 2
    crowded = Rates()
    learn(crowded, plan, 4, [record(load=8.0, view=8.0, write=8.0)], {}, {})
    assert time_plan(plan, crowded, workers=4).of("load") == 2


def test_a_run_that_went_on_teaches_nothing() -> None:
    rates = Rates()
    learn(rates, planned(), 1, [record(load=1.0), {**record(view=1.0), "reused": True}], {"slow": 5.0}, {})
    assert rates.kinds == {}


def test_a_part_that_is_unknown_leaves_the_rest_known() -> None:
    rates, plan = Rates(), planned()
    learn(rates, plan, 1, [record(load=1.0, view=1.0, write=1.0)], {}, {})
    time = time_plan(plan, rates, workers=1)
    assert time.seconds is None
    assert time.unknown == ("slow",)
    assert time.of("load") == 1


def test_kinds_differ_by_what_a_stage_computes_on() -> None:
    plan = planned()
    other = replace(plan.takes["slow"], rate="cpu bf16")
    kinds = {p.kind for p in parts(plan, 1)}
    plan.nodes["slow"].takes = other
    assert len(kinds ^ {p.kind for p in parts(plan, 1)}) == 2
    wide = make_plan({"load": Wide(), "view": View(), "write": Write()}, CTX)
    assert not {p.kind for p in parts(wide, 1)} & kinds  # float64 is not float32


@dataclass(frozen=True)
class Slowly:
    """A plugin that a stage may be given."""


@dataclass(frozen=True)
class With(View):
    by: Slowly | None = None


def test_what_is_asked_for_beside_has_a_rate_of_its_own() -> None:
    plain, asked = (
        {p.kind for p in parts(make_plan({"load": Source(("v",)), "view": With(by), "write": Write()}, CTX), 1)}
        for by in (None, Slowly())
    )
    assert len(asked - plain) == 1
    assert "Slowly" in min(asked - plain)


class Wide:
    def run(self, ctx: Context) -> Checkpoint:
        return Checkpoint(MemoryStore({"w": np.zeros((2, 3))}))


def test_the_measurement_nearest_in_size_counts() -> None:
    rates = Rates()
    rates.learn("kind", 1 << 10, 1.0)  # all of it overhead
    rates.learn("kind", 1 << 30, 2.0)
    assert rates.seconds("kind", 1 << 10) == 1.0
    assert rates.seconds("kind", 1 << 31) == 4.0
    assert rates.seconds("kind", 1 << 8) == 0.25
    assert rates.seconds("other", 1) is None


def test_one_slow_run_does_not_stay() -> None:
    """Seconds of the newest, or of the middle one of three; the range is of those that are kept."""
    rates = Rates()
    rates.learn("kind", 1024, 300.0)
    rates.learn("kind", 1024, 16.0)
    assert rates.seconds("kind", 1024) == 16.0
    assert rates.range("kind", 2048) == (32.0, 600.0)
    rates.learn("kind", 0, 1.0)
    rates.learn("kind", 1024, 0.0)  # a clock that did not move
    rates.learn("kind", 1024, 15.0)
    assert rates.seconds("kind", 1024) == 16.0
    rates.learn("kind", 1024, 200.0)
    assert rates.seconds("kind", 1024) == 16.0
    assert rates.range("kind", 1024) == (15.0, 200.0)
    assert rates.range("other", 1024) == (0.0, 0.0)


def test_measurements_that_disagree_are_a_range() -> None:
    rates, plan = Rates(), make_plan({"load": Source(("v", "w")), "slow": Slow()}, CTX)
    for seconds in (10.0, 19.0):
        learn(rates, plan, 1, [], {"slow": seconds}, {})
    assert time_plan(plan, rates, 1).said() == "19 s"
    learn(rates, plan, 1, [], {"slow": 300.0}, {})
    time = time_plan(plan, rates, 1)
    assert time.said() == time.said({"slow"}) == "10 s to 5 min 0 s"
    assert "about 10 s to 5 min 0 s, by what" in time_line(time)
    assert time_plan(plan, Rates(), 1).said() == ""


def test_rates_are_kept_by_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cache" / "rates.json"
    mine = Rates()
    mine.learn("kind", 10, 1.0)
    assert mine.save(file) is None
    monkeypatch.setattr(rates_module, "machine", lambda: "another")
    assert Rates.load(file) == Rates()
    theirs = Rates()
    theirs.learn("kind", 10, 7.0)
    assert theirs.save(file) is None
    assert Rates.load(file) == theirs
    monkeypatch.undo()
    assert Rates.load(file) == mine
    assert [p.name for p in file.parent.iterdir()] == ["rates.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 0, "machines": 3}', '{"version": 1, "machines": {}}'])
def test_a_file_that_is_damaged_is_no_measurement_and_is_replaced(content: str, tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(content)
    rates = Rates.load(tmp_path / "rates.json")
    assert rates.kinds == {}
    rates.learn("kind", 10, 1.0)
    assert rates.save(tmp_path / "rates.json") is None
    assert Rates.load(tmp_path / "rates.json") == rates


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = Rates().save(tmp_path / "file" / "rates.json")
    assert said is not None
    assert "cannot be kept" in said


def test_what_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    """RLIMIT_FSIZE is a disk that is full; each try of each process would leave a file there otherwise."""
    (tmp_path / "input").write_text("content")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        said = Rates().save(tmp_path / "rates.json")
        Digests(tmp_path / "inputs.json").add([(stamped(tmp_path / "input"), "0" * 32)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said is not None
    assert [p.name for p in tmp_path.iterdir()] == ["input"]


def test_the_table_stays_small(tmp_path: Path) -> None:
    rates = Rates()
    for i in range(MOST_KINDS + 3):
        rates.learn(f"kind {i}", 10, 1.0)
    assert len(rates.kinds) == MOST_KINDS
    assert "kind 2" not in rates.kinds
    rates.save(tmp_path / "rates.json")
    assert len(json.loads((tmp_path / "rates.json").read_text())["machines"]) == 1
