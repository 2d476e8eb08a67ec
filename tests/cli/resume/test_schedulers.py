"""A scheduler that was there before: the same bytes through it, and an error when it goes."""

import json
import subprocess
import sys

import pytest
from distributed import Client

from tests.cases.resumed import DISTRIBUTED, command
from tests.cases.runs import after_chunks, digests, journaled, until
from tests.cli.run import ROOT, done, end, kill_tree, pipeline, start

OTHER = "quant.scale_rule=even"


@pytest.fixture
def scheduler(tmp_path):
    """An address with a scheduler behind it, and a way to start its worker."""
    dask = [sys.executable, "-m", "dask"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    file = tmp_path / "scheduler.json"
    options = ["--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    process = subprocess.Popen([*dask, "scheduler", *options], text=True, **quiet)
    until(file.exists, process)
    until(file.read_text, process)
    address = json.loads(file.read_text())["address"]
    started = [process]

    def worker(count=2):
        options = ["--nthreads", "1", "--nworkers", f"{count}", "--no-dashboard", "--host", "127.0.0.1"]
        started.append(subprocess.Popen([*dask, "worker", address, *options], text=True, **quiet))
        with Client(address) as client:  # a busy machine takes longer than a run waits for them
            client.wait_for_workers(count, timeout=300)

    yield address, worker, process
    for p in started:
        if p.poll() is None:
            kill_tree(p.pid)
        p.wait()


def test_a_scheduler_that_was_there_before(source, expected, tmp_path, scheduler, thorough):
    """Without workers, and where there is none, it is an error; whatever runs through it writes the same bytes; when it
    dies the run ends, and goes on without it."""
    address, worker, process_of_scheduler = scheduler
    through = f"dask.address={address}"
    result = pipeline(*command(source, tmp_path / "none", through))
    assert result.code == 6
    assert "the scheduler there has no workers" in result.err
    result = pipeline(*command(source, tmp_path / "none", "dask.address=tcp://127.0.0.1:9"))
    assert result.code == 6
    assert "no scheduler answers there" in result.err

    worker()
    if thorough:  # test_killed.py: of a local cluster
        done(*command(source, tmp_path / "local", *DISTRIBUTED))
        assert digests(tmp_path / "local" / "model") == expected
    runs = [tmp_path / "one", tmp_path / "two"]
    each = [start(*command(source, run, through, *more)) for run, more in zip(runs, ([], [OTHER]), strict=True)]
    for process in each:  # at once, on the same workers
        result = end(process)
        assert result.code == 0, result.err
    assert digests(runs[0] / "model") == expected
    assert digests(runs[1] / "model") != expected

    process = start(*command(source, tmp_path / "run", through))
    after_chunks(tmp_path / "run", 3, process)
    process_of_scheduler.kill()
    result = end(process, 60)
    assert result.code == 6
    assert "scheduler is gone" in result.err
    assert "Traceback" not in result.err
    had = len(journaled(tmp_path / "run"))
    assert done(*command(source, tmp_path / "run"))["chunks"]["reused"] == had
    assert digests(tmp_path / "run" / "model") == expected
