"""The stages of acme-prune: what every stage promises, and what these compute."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.stage import Context
from pipeline.testing.memory import checkpoint
from pipeline.testing.stage import StageContract, stage_of

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
