"""A training whose process is killed at any moment goes on to the same bits."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cases.model_runs import quick_environment

KILLS = 2


def start(folder: Path, weights: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.cases.train_toy", str(folder), str(weights)]
    env = {**os.environ, **quick_environment()}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3], env=env)


# test_loop.py has equal bits of what was ended, and tests/cli/test_trackers.py equal losses of what was killed.
@pytest.mark.repeats
def test_killed_at_random_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(KILLS):
        process = start(tmp_path / "killed", tmp_path / "killed.npz")
        assert process.stdout is not None
        updates = rng.randint(2, 6)
        for line in process.stdout:
            updates -= line.startswith("train ")
            if not updates:
                break
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(rng.random() * 0.05)  # in the midst of an update, or of saving one
        process.kill()
        process.wait()
        process.stdout.close()
    for name in ("killed", "alone"):
        process = start(tmp_path / name, tmp_path / f"{name}.npz")
        said, _ = process.communicate()
        assert process.returncode == 0
        assert ("going on after update" in said) == (name == "killed")
    with np.load(tmp_path / "killed.npz") as killed, np.load(tmp_path / "alone.npz") as alone:
        for name in alone:
            np.testing.assert_array_equal(killed[name], alone[name], name)
