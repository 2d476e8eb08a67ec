"""What every stage and every tracker promises, and what the stages of acme-prune compute."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from acme_prune.notes import Notes

from pipeline.errors import PlanError
from pipeline.stage import Context
from pipeline.testing.memory import checkpoint
from pipeline.testing.stage import StageContract, stage_of
from pipeline.testing.tracker import TrackerContract
from pipeline.tracker import Tracker

GIVEN = np.array([[0.5, -0.009, 0.0, -2.0], [0.01, 0.008, -0.02, 1.0]], np.float32)


class TestPruneSmall(StageContract):
    def stage(self) -> Any:
        return stage_of("prune_small", "threshold=0.5")


class TestPruneFraction(StageContract):
    def stage(self) -> Any:
        return stage_of("prune_fraction", "fraction=0.3")


def pruned(tmp_path: Path, *chosen: str) -> Any:
    return stage_of(*chosen).run(Context(tmp_path), checkpoint({"a.weight": GIVEN})).store.read("a.weight")


def test_small(tmp_path: Path) -> None:
    assert pruned(tmp_path, "prune_small").tolist() == np.where(np.abs(GIVEN) < 0.01, 0, GIVEN).tolist()


@pytest.mark.parametrize(("fraction", "zeros"), [(0, 1), (0.25, 2), (0.5, 4), (1, 8)])
def test_fraction(fraction: float, zeros: int, tmp_path: Path) -> None:
    assert (pruned(tmp_path, "prune_fraction", f"fraction={fraction}") == 0).sum() == zeros


def test_options_are_checked() -> None:
    with pytest.raises(PlanError, match=r"stages.prune_fraction: fraction 1.5: between 0 and 1"):
        stage_of("prune_fraction", "fraction=1.5")


class TestNotes(TrackerContract):
    def tracker(self, place: Path) -> Notes:
        return Notes(str(place / "notes.jsonl"))

    def _given(self, tracker: Tracker, tracked: str, wanted: str) -> list[Any]:
        assert isinstance(tracker, Notes)
        return [given for what, of, given in tracker.lines() if (what, of) == (wanted, tracked)]

    def points(self, tracker: Tracker, tracked: str, name: str) -> list[tuple[int, float]]:
        told = [point for given in self._given(tracker, tracked, "log") for point in given]
        return [(step or 0, value) for of, value, step in told if of == name]

    def config(self, tracker: Tracker, tracked: str) -> Mapping[str, str]:
        return {
            key: value for given in self._given(tracker, tracked, "begin") for key, value in given["config"].items()
        }

    def state(self, tracker: Tracker, tracked: str) -> str:
        assert isinstance(tracker, Notes)
        said = [(what, given) for what, of, given in tracker.lines() if of == tracked and what in ("begin", "end")]
        return "running" if said[-1][0] == "begin" else str(said[-1][1])

    def contents(self, tracker: Tracker, tracked: str) -> Mapping[str, bytes]:
        told = self._given(tracker, tracked, "files")
        return {name: bytes.fromhex(data) for given in told for name, data in given.items()}

    def parent(self, tracker: Tracker, tracked: str) -> str:
        return str(self._given(tracker, tracked, "begin")[-1]["parent"])
