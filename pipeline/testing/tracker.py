"""What every tracker promises, as tests against a place of its own."""

import dataclasses
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.hooks import lacking
from pipeline.tracker import Point, State, Tracked, Tracker, told

NAMES = ("train/loss", "train/loss/member 3", "KL", "gradient_norm *.attn[0-9]", "ärger 100 %", "a" * 300)
FOLDER, ID, BEGAN = "run-1", "0123456789abcdef0123456789abcdef", 1_700_000_000.25


class TrackerContract:
    """Tests of one tracker, read back by its own library."""

    def tracker(self, place: Path) -> Tracker:
        """The tracker, made anew; the same place, the same tracker."""
        raise NotImplementedError

    def points(self, tracker: Tracker, tracked: str, name: str) -> list[tuple[int, float]]:
        """(step, value) of every point that the library has of that name, in order; a point of no step has step 0."""
        raise NotImplementedError

    def config(self, tracker: Tracker, tracked: str) -> Mapping[str, str]:
        """What the library has of the config, as text."""
        raise NotImplementedError

    def state(self, tracker: Tracker, tracked: str) -> str:
        """`running`, or the state that it ended with."""
        raise NotImplementedError

    def contents(self, tracker: Tracker, tracked: str) -> Mapping[str, bytes]:
        """Files that the library has of it."""
        raise NotImplementedError

    def parent(self, tracker: Tracker, tracked: str) -> str:
        """What the library says it is below; empty: nothing."""
        raise NotImplementedError

    def finite(self, value: float) -> float:
        """How the library keeps a number that is not finite."""
        return value

    @pytest.fixture
    def one(self, tmp_path: Path) -> Tracker:
        return self.tracker(tmp_path / "a place")

    @pytest.fixture
    def run(self, tmp_path: Path) -> Tracked:
        folder = tmp_path / FOLDER
        folder.mkdir()
        text = "Ümläut, 'quoted'\n${oc.env:X}"
        config = {"quant.element": "e2m1", "seed": 0, "a.b": None, "text": text, "list": [1, "a"]}
        return Tracked(ID, FOLDER, folder, BEGAN, config, {"command": "quant=mxfp4"})

    def test_keeps_the_contract(self, one: Tracker) -> None:
        assert not lacking(one, Tracker)
        assert dataclasses.is_dataclass(one)
        assert hash(one) == hash(dataclasses.replace(one))
        assert one.place
        assert one.patience_s > 0
        assert one.host_nbytes > 0
        assert pickle.loads(pickle.dumps(one)) == one

    def test_a_run(self, one: Tracker, run: Tracked) -> None:
        tracked = one.begin(run)
        assert self.state(one, tracked) == "running"
        one.log(tracked, [Point("train/loss", 1 / (step + 1), step, BEGAN + step) for step in range(2500)])
        one.log(tracked, [Point("perplexity", 68.64, None, BEGAN + 9)])
        one.end(tracked, "complete")
        again = self.tracker(run.folder.parent / "a place")
        assert self.points(again, tracked, "train/loss") == [(step, 1 / (step + 1)) for step in range(2500)]
        assert [value for _, value in self.points(again, tracked, "perplexity")] == [68.64]
        found = self.config(again, tracked)
        assert {key: found[key] for key in run.config} == {key: told(value) for key, value in run.config.items()}
        assert self.state(again, tracked) == "complete"

    @pytest.mark.parametrize("name", NAMES)
    def test_any_name(self, one: Tracker, run: Tracked, name: str) -> None:
        tracked = one.begin(run)
        one.log(tracked, [Point(name, 1.5, 1, BEGAN), Point("another", 2.5, 1, BEGAN)])
        assert self.points(one, tracked, name) == [(1, 1.5)]
        assert dict(one.last(tracked, [name, "none"])) == {name: 1}

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 5e-324, -1.7e308, 0.1 + 0.2])
    def test_any_number(self, one: Tracker, run: Tracked, value: float) -> None:
        tracked = one.begin(run)
        one.log(tracked, [Point("a", value, 3, BEGAN)])
        [(step, found)] = self.points(one, tracked, "a")
        wanted = value if math.isfinite(value) else self.finite(value)
        assert step == 3
        assert found == wanted or (math.isnan(found) and math.isnan(wanted))

    def test_nothing_twice(self, one: Tracker, run: Tracked) -> None:
        """Of a run that goes on, with points that were told before it was killed."""
        tracked = one.begin(run)
        points = [Point("a", float(step), step, BEGAN + step) for step in range(10)]
        one.log(tracked, points[:7])
        other = self.tracker(run.folder.parent / "a place")
        assert other.begin(run, tracked) == tracked
        assert dict(other.last(tracked, ["a", "b"])) == {"a": 6}
        other.log(tracked, points)
        assert self.points(other, tracked, "a") == [(step, float(step)) for step in range(10)]
        assert self.state(other, tracked) == "running"

    def test_a_changed_setting_of_a_run_that_goes_on(self, one: Tracker, run: Tracked) -> None:
        """What says how it is run may be another."""
        tracked = one.begin(run)
        more = dataclasses.replace(run, config={**run.config, "seed": 1, "dask.workers": 2})
        assert one.begin(more, tracked) == tracked
        assert self.config(one, tracked)["dask.workers"] == "2"

    @pytest.mark.parametrize("state", ["complete", "failed", "killed"])
    def test_how_it_ended(self, one: Tracker, run: Tracked, state: State) -> None:
        tracked = one.begin(run)
        one.end(tracked, state)
        assert self.state(one, tracked) == state
        one.end(tracked, state)  # by whoever finds it later
        assert one.begin(run, tracked) == tracked
        assert self.state(one, tracked) == "running"  # it goes on

    def test_a_run_that_is_gone_is_begun_anew(self, one: Tracker, run: Tracked) -> None:
        """As its place was emptied since; what is asked of it then is told again."""
        elsewhere = "0" * 32
        tracked = one.begin(run, elsewhere)
        assert tracked != elsewhere
        one.log(tracked, [Point("a", 1.0, 0, BEGAN)])
        assert self.points(one, tracked, "a") == [(0, 1.0)]
        assert dict(one.last(tracked, ["a"])) == {"a": 0}

    def test_a_run_made_again_is_another(self, one: Tracker, run: Tracked) -> None:
        assert one.begin(run) != one.begin(run)

    def test_a_run_whose_begin_was_not_recorded_is_found_again(self, one: Tracker, run: Tracked) -> None:
        """As whoever began it was killed before it knew what the tracker calls it."""
        begun = dataclasses.replace(run, token="a" * 32)
        tracked = one.begin(begun)
        one.log(tracked, [Point("a", 1.0, 0, BEGAN)])
        other = self.tracker(run.folder.parent / "a place")
        assert other.begin(begun) == tracked
        assert self.points(other, tracked, "a") == [(0, 1.0)]
        assert self.state(other, tracked) == "running"
        assert other.begin(dataclasses.replace(run, token="b" * 32)) != tracked
        assert other.begin(run) != tracked

    def test_of_a_sweep(self, one: Tracker, run: Tracked) -> None:
        sweep = dataclasses.replace(run, id="f" * 32, name="sweep-1", config={}, sweep=True)
        above = one.begin(sweep)
        below = one.begin(dataclasses.replace(run, parent=above))
        assert self.parent(one, below) == above
        one.files(above, {})
        one.end(above, "complete")
        one.end(above, "failed")

    def test_files(self, one: Tracker, run: Tracked) -> None:
        tracked = one.begin(run)
        (run.folder / "a b.txt").write_bytes(b"text")
        (run.folder / "zeros.bin").write_bytes(bytes(1000))
        one.files(tracked, {"a b.txt": run.folder / "a b.txt", "export/sub/zeros.bin": run.folder / "zeros.bin"})
        assert dict(self.contents(one, tracked)) == {"a b.txt": b"text", "export/sub/zeros.bin": bytes(1000)}

    def test_long_settings(self, one: Tracker, run: Tracked) -> None:
        """Those that a library would not take whole begin as they do."""
        config: dict[str, Any] = {"long": "ab" * 10_000, **{f"many.{i}": i for i in range(450)}}
        tracked = one.begin(dataclasses.replace(run, config=config))
        found = self.config(one, tracked)
        assert found["long"][:5000] == ("ab" * 10_000)[:5000]
        assert all(found[f"many.{i}"] == str(i) for i in range(450))
