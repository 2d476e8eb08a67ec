"""What a run takes is looked at while it is at work, and changes nothing of what it is."""

import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.names import run_name
from pipeline.errors import StorageError
from pipeline.records import points
from pipeline.records.points import METRIC, Position
from pipeline.records.system import files as files_of
from pipeline.records.system import monitored


def test_rows_come_while_work_goes_on(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    file, at = points.file_of(folders[0], "system"), Position()
    with monitored(folders, 0.01):
        held = np.ones(50_000_000 // 8)
        while len(rows := [r for r in points.rows(file) if r["kind"] != METRIC]) < 4:
            time.sleep(0.01)
    assert held.nbytes < rows[-1]["rss"] < 1 << 40
    assert all(row["processes"] >= 1 and row["threads"] >= 2 for row in rows)
    assert rows[-1]["time"] > rows[0]["time"]
    seen = {p.name: p for p in points.points(file, at)}
    assert (seen["rss"].unit, seen["rss"].better, seen["rss"].series) == ("B", "lower", "system rss")
    assert seen["cpu"].value >= 0
    assert not at.problems
    assert file.read_bytes() == points.file_of(folders[1], "system").read_bytes()


def test_a_member_of_a_gang_writes_a_file_of_its_own(tmp_path: Path) -> None:
    """Beside the one of whoever started it, which has both."""
    for member in (None, 0, 1):
        with monitored([tmp_path], 60.0, member):
            pass
    names = ("metrics.system.jsonl", "metrics.system.0.jsonl", "metrics.system.1.jsonl")
    assert files_of(tmp_path) == [tmp_path / name for name in names]
    series = [{p.series for p in points.points(tmp_path / name)} for name in names]
    assert {"system rss", "system threads"} <= series[0]
    assert {"system rss, member 0", "system threads, member 0"} <= series[1]
    assert not series[1] & series[2]
    assert not series[0] & series[1]


def test_a_run_that_is_done_is_left_alone(tmp_path: Path) -> None:
    """Its last look is one more, and comes before it says what it was; the others are looked at further."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    files = [points.file_of(folder, "system") for folder in folders]
    with monitored(folders, 60.0) as leave:
        leave(folders[0])
        then = files[0].read_bytes()
        assert sum(row["kind"] != METRIC for row in points.rows(files[0])) >= 1
    assert files[0].read_bytes() == then
    assert sum(row["kind"] != METRIC for row in points.rows(files[1])) >= 1
    assert files_of(folders[0]) == [files[0]]


def test_nothing_is_looked_at_unless_asked(tmp_path: Path) -> None:
    with monitored([tmp_path], None):
        pass
    assert not [*tmp_path.iterdir()]
    with pytest.raises(StorageError, match="No such file"), monitored([tmp_path / "none"], 1.0):
        pass
    assert run_name(["+model=gpt_oss", "monitor=1"]) == run_name(["+model=gpt_oss"])
