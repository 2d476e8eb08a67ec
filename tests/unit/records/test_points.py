"""Metrics are read as they were written, while they are written, and whatever stands between them."""

import json
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SourceError, StorageError
from pipeline.records import points
from pipeline.records.points import Point, Position, Type, Writer

ROOT = Path(__file__).parents[3]
ENDLESS = """
import itertools, sys
from contextlib import closing
from pathlib import Path
from pipeline.records.points import Type, Writer
writer = Writer(Path(sys.argv[1]), {"train": {"loss": Type("nats", "lower")}})
for step in itertools.count(int(sys.argv[2])) if len(sys.argv) < 4 else range(int(sys.argv[2]), int(sys.argv[3])):
    writer.row("train", {"step": step, "loss": step / 2, "text": "é" * (step % 50)})
"""


def started(path: Path, *how_many: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", ENDLESS, str(path), *map(str, how_many)], cwd=ROOT)


def steps(path: Path, at: Position | None = None) -> list[int | None]:
    return [p.step for p in points.points(path, at) if p.name == "loss"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = points.file_of(tmp_path, 3)
    writer = Writer(file, {"train": {"loss": Type("nats", "lower")}})
    writer.row("train", {"step": 1, "time": 2.5, "loss": "nan", "note": "text", "rate": 1})
    writer.row("train", {"step": 2, "loss": 0.5, "member": 4})
    writer.point("rss", 7, unit="B", better="lower", stage="load")
    writer.point("far", float("-inf"))
    writer.close()
    first, rate, second, rss, far = points.points(file)
    assert first._replace(value=0) == Point("train", "loss", 0, "nats", "lower", 1, 2.5, process="3")
    assert first.value != first.value
    assert rate == Point("train", "rate", 1.0, step=1, time=2.5, process="3")
    assert second == Point("train", "loss", 0.5, "nats", "lower", 2, member=4, process="3")
    assert second.series == "train loss, member 4"
    assert rss == Point("point", "rss", 7.0, "B", "lower", stage="load", process="3")
    assert far.value == float("-inf")
    assert file.name == "metrics.3.jsonl"
    assert points.file_of(tmp_path).name == "metrics.jsonl"
    (tmp_path / "metrics.jsonl").touch()
    assert points.files(tmp_path) == [tmp_path / "metrics.jsonl", file]


FOREIGN = {
    b"[1]": "is no row of metrics: a list of 1",
    b'{"kind": 5}': "kind 5 was given",
    b'{"a": 1}': "an object of 1 was given, an object with a kind",
    b'{"kind": "point", "name": "x"}': "it has no 'value'",
    b'{"kind": "point", "name": "x", "value": "seven"}': "value is 'seven'",
    b'{"kind": "metric", "of": "a", "name": "b", "unit": "", "better": "more"}': "better is 'more', one of",
    b'{"kind": "train", "step": -1}': "step is -1, 0 or more is allowed",
    b'{"kind": "train", "v": 2, "loss": 1}': "v is 2, 1 is allowed",
    b"\xff\xfe": "is no whole line of JSON",
    b"[" * 100_000: "is no whole line of JSON",
    b'{"kind": "train", "step": 1': "is no whole line of JSON",
    b"1" * 5000: "is no",
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_is_not_ours_is_named_and_left_out(tmp_path: Path, foreign: bytes) -> None:
    file = tmp_path / "metrics.jsonl"
    mine = b'{"kind": "train", "step": 1, "loss": 2}\n'
    file.write_bytes(mine + foreign + b"\n" + mine)
    at = Position()
    assert steps(file, at) == [1, 1]
    [said] = at.problems
    assert said.startswith(f"{file}:2: ")
    assert FOREIGN[foreign] in said
    assert (at.lines, at.damaged) == (3, 1)


def test_lines_that_are_whole_only_together_are_none(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"kind": "train", "step": 1, "a": {"b": 1}\n"c": {"d": 2}}\n')
    at = Position()
    assert steps(file, at) == []
    assert at.damaged == 2


def test_what_a_line_that_is_written_lacks_is_said(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "metrics.jsonl")
    with pytest.raises(StorageError, match=r"metrics.jsonl: what was to be written is no row of metrics: step is 'a'"):
        writer.row("train", {"step": "a"})
    writer.close()
    assert not (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(StorageError, match="No such file"):
        Writer(tmp_path / "none" / "metrics.jsonl")
    with pytest.raises(SourceError, match="cannot be opened"):
        steps(tmp_path / "none.jsonl")


def test_a_line_without_its_end_is_left_for_later(tmp_path: Path) -> None:
    file, at = tmp_path / "metrics.jsonl", Position()
    line = json.dumps({"kind": "train", "step": 1, "loss": 2.0}).encode() + b"\n"
    for cut in range(len(line)):
        file.write_bytes(line + line[:cut])
        at = Position()
        assert steps(file, at) == [1]
        assert not at.damaged
        assert at.offset == len(line)
    file.write_bytes(line * 2)
    assert at.holds(file)
    assert steps(file, at) == [1]
    with closing(Writer(file)) as writer:
        writer.row("train", {"step": 2, "loss": 1.0})
    assert steps(file, at) == [2]
    file.write_bytes(line[:-5] + b"9.0}\n" + line * 2)
    assert not at.holds(file), "another file of the same length"
    file.write_bytes(line)
    assert not at.holds(file), "it is shorter now"


def test_a_line_that_never_ends_is_no_file_of_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MOST_LINE_NBYTES", 1 << 21)
    (tmp_path / "metrics.jsonl").write_bytes(b"x" * (1 << 22))
    with pytest.raises(SourceError, match=r"metrics.jsonl:1: more than 2,097,152 bytes without a line break"):
        steps(tmp_path / "metrics.jsonl")


def test_a_full_disk_is_said_and_what_comes_later_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.jsonl"
    writer = Writer(file)

    class Full:
        def write(self, data: bytes) -> int:
            real.write(data[:9])
            return 9

    real: Any = writer._file
    monkeypatch.setattr(writer, "_file", Full())
    with pytest.raises(StorageError, match="No space left"):
        writer.point("x", 1)
    monkeypatch.setattr(writer, "_file", real)
    writer.point("x", 2)
    writer.close()
    at = Position()
    assert [p.value for p in points.points(file, at)] == [2]
    assert at.damaged == 1


def test_killed_at_random_a_writer_loses_the_line_it_was_writing(tmp_path: Path) -> None:
    file, rng, begin = tmp_path / "metrics.jsonl", random.Random(0), 0
    for _ in range(4):
        process, before = started(file, begin), file.stat().st_size if file.exists() else 0
        while (file.stat().st_size if file.exists() else 0) < before + 5000:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.wait()
        at = Position()
        seen = steps(file, at)
        assert seen == [*range(len(seen))], "one after another, none twice, none half"
        assert at.damaged == 0
        begin = len(seen)
        with file.open("ab") as cut:  # as a kill in the midst of a line leaves it: rare for short ones, yet it may have
            cut.write(b'{"kind": "train", "step": 9')
        with closing(Writer(file)) as writer:
            writer.row("train", {"step": begin, "loss": 0.0})
        begin += 1
        lines = file.read_bytes().splitlines(keepends=True)
        assert lines.pop(-2).endswith(b'{"kind": "train", "step": 9\n')
        file.write_bytes(b"".join(lines))


def test_ten_writers_and_a_reader_at_once(tmp_path: Path) -> None:
    files = [points.file_of(tmp_path, i) for i in range(10)]
    processes = [started(file, 0, 500) for file in files]
    at: dict[Path, Position] = {file: Position() for file in files}
    seen: dict[Path, list[Any]] = {file: [] for file in files}
    going = True
    while going:
        going = any(process.poll() is None for process in processes)
        for file in files:
            if file.exists():
                assert at[file].holds(file)
                seen[file] += steps(file, at[file])
    assert all(process.returncode == 0 for process in processes)
    assert all(found == [*range(500)] for found in seen.values())
    assert not any(position.damaged for position in at.values())
