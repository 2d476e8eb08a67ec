"""Trainings of a sweep: what settings come to over seeds, and the picture of their losses."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.figures import Figure
from pipeline.reporting.compare.trainings import curve, losses, over_seeds, settings
from pipeline.reporting.plots import bands, curves

NAMES = ("rate=1 seed=0", "rate=2 seed=0", "rate=1 seed=1", "rate=2 seed=1", "seed=7")


def test_jobs_that_differ_in_their_seed_alone_are_one_setting() -> None:
    assert settings(NAMES) == {"rate=1": [0, 2], "rate=2": [1, 3], "all": [4]}
    found = [{"loss": Figure(x, "nats", ".2f"), "text": "t", "read": Figure(5, "B")} for x in (1, 3, 2, 7, 9)]
    columns, lines = over_seeds(NAMES, found)
    assert columns == ["setting", "seeds", "loss", "read"]
    assert lines[0] == ["rate=1", "2", "1.50 ± 0.71 nats", "5 B"]
    assert lines[1][2] == "5.00 ± 2.83 nats"
    assert lines[2][2] == "9.00 nats"
    assert over_seeds(NAMES[:2], found[:2]) == ([], [])  # nothing to be averaged
    assert over_seeds(NAMES[:3], [{}, {}, {}])[1] == []


def metrics(run: Path, *rows: tuple[str, int, float | str]) -> Path:
    run.mkdir()
    lines = [json.dumps({"kind": kind, "step": step, "loss": loss}) for kind, step, loss in rows]
    (run / "metrics.jsonl").write_text("\n".join([*lines, '{"kind": "run", "seconds": 1}']))
    return run


def test_a_curve_is_of_what_is_held_out_if_anything_is(tmp_path: Path) -> None:
    both = metrics(tmp_path / "a", ("held_out", 0, 4.0), ("train", 1, 3.0), ("train", 2, 2.5), ("held_out", 2, 2.0))
    assert curve(both) == ("held-out loss", {0: 4.0, 2: 2.0})
    alone = metrics(tmp_path / "b", ("train", 1, 3.0), ("train", 2, 2.5), ("train", 3, "nan"))
    assert curve(alone) == ("training loss", {1: 3.0, 2: 2.5})
    assert curve(tmp_path) == ("", {})


@pytest.mark.parametrize("least", [0.001, -1.0])
def test_pictures_are_drawn(least: float, tmp_path: Path) -> None:
    """By magnitudes, or with values that have none."""
    some = [{0: 1.0, 1: least}, {0: 2.0, 1: least}, {0: 1.5, 1: 0.5}, {0: 1.5, 1: 0.4, 2: 0.1}, {}]
    losses(tmp_path / "a.png", NAMES, some, "loss")
    curves(tmp_path / "b.png", "Loss", "update", "loss", {"each": ([*range(40)], [1.0] * 40), "held": ([0], [least])})
    bands(tmp_path / "c.png", "Loss", "update", "loss", {})
    for name in "abc":
        assert np.asarray(Image.open(tmp_path / f"{name}.png")).std() > 0
