"""The stage `drop_bias`: what every stage promises, and what this one computes."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.stage import Context
from pipeline.testing.memory import checkpoint
from pipeline.testing.stage import StageContract, stage_of


class TestDropBias(StageContract):
    def stage(self) -> Any:
        return stage_of("drop_bias")


def test_values(tmp_path: Path) -> None:
    stage = stage_of("drop_bias", "factor=2")
    given = checkpoint({"w": np.array([1.0, -3.0], np.float32)})
    assert stage.run(Context(tmp_path), given).store.read("w").tolist() == [2.0, -6.0]
