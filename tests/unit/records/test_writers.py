"""Many who write and read at once, and writers that are killed: nothing is half read, and little is lost."""

import multiprocessing
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.records import tags
from pipeline.records.index import NAME, TABLES
from pipeline.records.lines import append, lines
from pipeline.records.registry import all_runs, registry
from tests.cases.many_runs import make_run, make_tree


def dumped(outputs: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(outputs / NAME)) as db:
        return {t: sorted(db.execute(f"SELECT * FROM {t}")) for t in TABLES}  # noqa: S608


def plain(outputs: Path) -> list[Any]:
    return [(run, dict(run.config)) for run in all_runs(outputs)]


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    make_tree(tmp_path / "outputs", 8, points=5)
    return tmp_path / "outputs"


def _write_runs(outputs: str, worker: int) -> None:
    for i in range(12):
        folder = Path(outputs) / f"w{worker}-{i % 3}"
        shutil.rmtree(folder, ignore_errors=True)
        make_run(folder, worker * 1000 + i, points=20)
        tags.say(folder, [f"t{i}"])


def _index(outputs: str, times: int) -> int:
    return [len(registry(Path(outputs)).runs) for _ in range(times)][-1]


def test_many_writers_and_a_reader(tmp_path: Path, thorough: bool) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_runs, args=(str(tmp_path), w)) for w in range(10 if thorough else 4)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        for run in all_runs(tmp_path):  # in the middle of being written, or whole, and never something else
            if run.state == "complete":
                assert {"perplexity", "KL", "SQNR"} <= run.metrics.keys()
        reads += 1
    for writer in writers:
        writer.join(60)
    assert reads
    assert {writer.exitcode for writer in writers} == {0}
    for writer in writers:
        writer.close()
    found = plain(tmp_path)
    assert {run.state for run, _ in found} == {"complete"}
    (tmp_path / NAME).unlink()
    assert plain(tmp_path) == found


def test_several_make_the_index_at_once(outputs: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        for _ in range(5):
            (outputs / NAME).unlink(missing_ok=True)
            assert pool.starmap(_index, [(str(outputs), 3)] * 4) == [8] * 4
    all_runs(outputs)
    assert len(dumped(outputs)["records"]) == 8
    assert [p.name for p in outputs.iterdir() if p.name.startswith(".index")] == [NAME]


def test_writers_that_are_killed_lose_the_line_they_are_writing(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom pipeline.records.lines import append\n"
        "for i in range(10**9): append(Path(sys.argv[1]), {'i': i, 'text': 'x' * 500})"
    )
    whole = 0
    for round_ in range(4):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lines.jsonl")])
        deadline = time.monotonic() + 60
        while len(list(lines(tmp_path / "lines.jsonl"))) < whole + 50 + 17 * round_:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = list(lines(tmp_path / "lines.jsonl"))
        assert all(len(line["text"]) == 500 for line in found)
        whole = len(found)
        with (tmp_path / "lines.jsonl").open("ab") as file:
            file.write(b'{"i": 3, "te')  # what a kill in the middle of a write leaves
    assert next(line["i"] for line in lines(tmp_path / "lines.jsonl")) == 0
    append(tmp_path / "lines.jsonl", {"i": -1})
    assert [line["i"] for line in lines(tmp_path / "lines.jsonl")][-1] == -1
