"""Whatever stops a run, the same command finishes it: nothing done is done again, and no byte differs."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.running.target import KEY_CHARS, read_marker
from tests.cases import big_gpt_oss
from tests.cases.runs import (
    ROOT,
    after_chunks,
    digests,
    done,
    end,
    journaled,
    kill_tree,
    manifest,
    start,
    until,
    weightmill,
    workers_of,
)

SIZES = big_gpt_oss.Sizes(
    layers=2, experts=6, hidden=1024, inter=1088, heads=8, kv_heads=2, head_dim=64, vocab=512
)  # 86 MB
HOW = ["quant=mxfp4", "dask.chunk=1MiB", "dask.workers=2"]
DISTRIBUTED = ["dask=distributed", "dask.dashboard=false"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return big_gpt_oss.write(tmp_path_factory.mktemp("source"), SIZES)


@pytest.fixture
def own_source(source, tmp_path):
    """A source that a test may spoil; links cost nothing."""
    return Path(shutil.copytree(source, tmp_path / "own", copy_function=os.link))


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory):
    """A run that nothing disturbed; its journal is kept, and what it was."""
    run = tmp_path_factory.mktemp("undisturbed")
    process = start(f"model.source={source}", f"paths.run={run}", *HOW)
    after_chunks(run, 1, process)
    for name in ("journal.jsonl", "run.json"):  # as they are until the run ends
        os.link(run / name, run / f"{name}.kept")
    assert end(process).returncode == 0
    return run


@pytest.fixture
def expected(undisturbed):
    return digests(undisturbed / "model")


@pytest.fixture
def nearly(undisturbed, tmp_path):
    """The run as it stands when it is killed after its last rename and before its manifest."""
    run = Path(shutil.copytree(undisturbed, tmp_path / "nearly"))
    for name in ("journal.jsonl", "run.json"):
        (run / f"{name}.kept").rename(run / name)
    (run / "manifest.json").unlink()
    old, new = str(undisturbed), str(run)
    text = (run / "run.json").read_text()
    assert old not in text  # where a run lies is not what it is
    assert new not in text
    return run


def command(source, run, *more):
    return [f"model.source={source}", f"paths.run={run}", *HOW, *more]


def partials(target):
    return list(target.parent.glob(f"{target.name}.*.partial"))


# Killed


def test_killed_on_threads(source, expected, tmp_path):
    process = start(*command(source, tmp_path))
    after_chunks(tmp_path, 10, process)
    process.kill()
    end(process)
    had = len(journaled(tmp_path))
    assert had >= 10
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "manifest.json").exists()
    chunks = done(*command(source, tmp_path))["chunks"]
    assert chunks["reused"] == had < chunks["all"]
    assert digests(tmp_path / "model") == expected
    assert not partials(tmp_path / "model")


def test_killed_twice_and_resumed_another_way(source, expected, tmp_path):
    for threads, least in (("2", 8), ("1", 30)):
        process = start(*command(source, tmp_path, f"dask.workers={threads}"))
        after_chunks(tmp_path, least, process)
        process.kill()
        end(process)
    had = len(journaled(tmp_path))
    assert len(set(journaled(tmp_path))) == had
    chunks = done(*command(source, tmp_path, *DISTRIBUTED))["chunks"]
    assert chunks["reused"] == had
    assert digests(tmp_path / "model") == expected


def test_a_killed_worker_is_replaced(source, expected, tmp_path):
    process = start(*command(source, tmp_path, *DISTRIBUTED))
    after_chunks(tmp_path, 5, process)
    workers_of(process)[0].kill()
    result = end(process)
    assert result.returncode == 0, result.stderr
    assert result.stderr.strip().startswith("Dask cluster: 2 workers")
    assert len(result.stderr.strip().splitlines()) == 1  # nothing of Dask's own
    chunks = manifest(tmp_path)["chunks"]
    assert chunks["reused"] == 0
    assert digests(tmp_path / "model") == expected


def test_killed_on_distributed(source, expected, tmp_path):
    process = start(*command(source, tmp_path, *DISTRIBUTED))
    after_chunks(tmp_path, 10, process)
    workers = workers_of(process)
    assert len(workers) == 2
    process.kill()
    end(process)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive  # workers do not outlive their run
    had = len(journaled(tmp_path))
    chunks = done(*command(source, tmp_path, *DISTRIBUTED))["chunks"]
    assert chunks["reused"] == had < chunks["all"]
    assert digests(tmp_path / "model") == expected


def test_killed_before_the_manifest(nearly, source, expected):
    chunks = done(*command(source, nearly))["chunks"]
    assert chunks["reused"] == chunks["all"]
    assert digests(nearly / "model") == expected


@pytest.mark.parametrize("how", [[], DISTRIBUTED], ids=["threads", "distributed"])
def test_a_corrupt_chunk_is_found_and_done_again(nearly, source, expected, how):
    weights = nearly / "model" / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    assert digests(nearly / "model") != expected
    chunks = done(*command(source, nearly, *how))["chunks"]
    assert chunks["reused"] == chunks["all"] - 1
    assert digests(nearly / "model") == expected


def test_a_torn_journal_line_is_ignored(nearly, source, expected):
    journal = nearly / "journal.jsonl"
    lines = sorted(journal.read_bytes().splitlines(keepends=True), key=lambda line: b'"export-' in line)
    journal.write_bytes(b"".join(lines)[:-20])
    key = read_marker(nearly / "model").key
    os.rename(nearly / "model", nearly / f"model.{key[:KEY_CHARS]}.partial")
    chunks = done(*command(source, nearly))["chunks"]
    assert chunks["reused"] == chunks["all"] - 1
    assert digests(nearly / "model") == expected


def test_a_partial_folder_that_is_gone_is_made_again(nearly, source, expected):
    shutil.rmtree(nearly / "model")
    chunks = done(*command(source, nearly))["chunks"]
    assert chunks["reused"] == 0
    assert digests(nearly / "model") == expected


@pytest.mark.parametrize("how", [[], DISTRIBUTED], ids=["threads", "distributed"])
def test_interrupted(source, expected, tmp_path, how):
    process = start(*command(source, tmp_path, *how))
    after_chunks(tmp_path, 5, process)
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    result = end(process, 30)
    assert result.returncode == 130
    assert result.stderr.strip().splitlines()[-1] == "interrupted; the same command goes on from here"
    assert "Traceback" not in result.stderr
    assert not psutil.wait_procs(workers, timeout=10)[1]
    had = len(journaled(tmp_path))
    assert had >= 5
    assert done(*command(source, tmp_path, *how))["chunks"]["reused"] == had
    assert digests(tmp_path / "model") == expected


# Schedulers


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

    def worker():
        options = ["--nthreads", "1", "--nworkers", "2", "--no-dashboard", "--host", "127.0.0.1"]
        started.append(subprocess.Popen([*dask, "worker", address, *options], text=True, **quiet))

    yield address, worker, process
    for p in started:
        if p.poll() is None:
            kill_tree(p.pid)
        p.wait()


def test_every_scheduler_writes_the_same_bytes(source, expected, tmp_path, scheduler):
    address, worker, _ = scheduler
    worker()
    done(*command(source, tmp_path / "local", *DISTRIBUTED))
    assert digests(tmp_path / "local" / "model") == expected
    runs = [tmp_path / "one", tmp_path / "two"]
    two = ["quant.scale_rule=even"]
    processes = [
        start(*command(source, runs[0], f"dask.address={address}")),
        start(*command(source, runs[1], f"dask.address={address}", *two)),
    ]
    for process in processes:  # at once, on the same workers
        result = end(process)
        assert result.returncode == 0, result.stderr
    assert digests(runs[0] / "model") == expected
    assert digests(runs[1] / "model") != expected


def test_a_scheduler_that_dies_ends_the_run(source, expected, tmp_path, scheduler):
    address, worker, process_of_scheduler = scheduler
    worker()
    process = start(*command(source, tmp_path / "run", f"dask.address={address}"))
    after_chunks(tmp_path / "run", 3, process)
    process_of_scheduler.kill()
    result = end(process, 60)
    assert result.returncode == 6
    assert "scheduler is gone" in result.stderr
    assert "Traceback" not in result.stderr
    had = len(journaled(tmp_path / "run"))
    assert done(*command(source, tmp_path / "run"))["chunks"]["reused"] == had
    assert digests(tmp_path / "run" / "model") == expected


def test_no_scheduler_and_no_worker_are_errors(source, tmp_path, scheduler):
    address, _, _ = scheduler
    result = weightmill(*command(source, tmp_path / "run", f"dask.address={address}"))
    assert result.returncode == 6
    assert "the scheduler there has no workers" in result.stderr
    result = weightmill(*command(source, tmp_path / "run", "dask.address=tcp://127.0.0.1:9"))
    assert result.returncode == 6
    assert "no scheduler answers there" in result.stderr


# The source changes


@pytest.mark.parametrize(
    ("what", "how"), [("vanished", []), ("vanished", DISTRIBUTED), ("touched", []), ("cut", [])], ids=str
)
def test_a_source_that_changes_while_it_is_read(own_source, tmp_path, what, how):
    weights = own_source / "model-00002-of-00002.safetensors"
    private = own_source / "copy"
    private.write_bytes(weights.read_bytes())
    private.replace(weights)
    run = tmp_path / "run"
    process = start(*command(own_source, run, *how))
    after_chunks(run, 3, process)
    if what == "vanished":
        weights.unlink()
    elif what == "touched":
        os.utime(weights, ns=(1, 1))
    else:
        os.truncate(weights, weights.stat().st_size // 2)
    result = end(process)
    assert result.returncode == 4, result.stderr
    assert str(weights) in result.stderr
    assert "Traceback" not in result.stderr
    assert not (run / "model").exists()


def test_a_source_that_changed_between_runs(own_source, source, expected, tmp_path):
    run = tmp_path / "run"
    process = start(*command(own_source, run))
    after_chunks(run, 3, process)
    process.kill()
    end(process)
    weights = own_source / "model-00001-of-00002.safetensors"
    copy = own_source / "copy"
    copy.write_bytes(weights.read_bytes())
    copy.replace(weights)
    result = weightmill(*command(own_source, run))
    assert result.returncode == 4
    assert f"{weights}: changed since the run in {run} began; overwrite=true" in result.stderr
    assert done(*command(own_source, run, "overwrite=true"))["chunks"]["reused"] == 0
    assert digests(run / "model") == expected


# The target cannot be written


def test_a_file_that_may_not_grow(source, expected, tmp_path):
    """RLIMIT_FSIZE: the stand-in for a full disk that needs no disk. Reserving the file fails."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, unlimited[1]))  # inherited; a preexec_fn would fork beside JAX
    try:
        process = start(*command(source, tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    result = end(process)
    assert result.returncode == 5
    assert "model.safetensors" in result.stderr
    assert "bytes are free there" in result.stderr
    assert not (tmp_path / "model").exists()
    done(*command(source, tmp_path))
    assert digests(tmp_path / "model") == expected


@pytest.mark.parametrize("how", [[], DISTRIBUTED], ids=["threads", "distributed"])
def test_a_write_that_fails_in_the_middle(source, expected, tmp_path, how):
    process = start(*command(source, tmp_path, *how))
    after_chunks(tmp_path, 5, process)
    for p in workers_of(process) or [psutil.Process(process.pid)]:
        p.rlimit(psutil.RLIMIT_FSIZE, (1 << 20, -1))
    result = end(process)
    assert result.returncode == 5, result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "model").exists()
    had = len(journaled(tmp_path))
    assert done(*command(source, tmp_path, *how))["chunks"]["reused"] == had > 0
    assert digests(tmp_path / "model") == expected


def test_a_full_disk(source, expected, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    try:
        to = command(source, tmp_path / "run", f"export.path={disk / 'model'}")
        filler = disk / "filler"
        filler.write_bytes(bytes(8 << 20))
        result = weightmill(*to)
        assert result.returncode == 5
        assert "free, the output needs" in result.stderr
        assert sorted(p.name for p in disk.iterdir()) == ["filler"]  # before anything was written
        filler.unlink()

        process = start(*to)
        after_chunks(tmp_path / "run", 5, process)
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass
        assert end(process).returncode == 5  # chunks have their blocks, config.json has not
        assert not (disk / "model").exists()
        filler.unlink()
        chunks = done(*to)["chunks"]
        assert chunks["reused"] == chunks["all"]
        assert digests(disk / "model") == expected
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_target_below_a_file(source, tmp_path):
    (tmp_path / "file").write_text("")
    result = weightmill(*command(source, tmp_path / "run", f"export.path={tmp_path / 'file' / 'model'}"))
    assert result.returncode == 5, result.stderr
    assert "Traceback" not in result.stderr
    result = weightmill(*command(source, tmp_path / "file" / "run"))
    assert result.returncode == 5, result.stderr
    assert str(tmp_path / "file" / "run") in result.stderr


# Others in the way


def test_two_runs_in_one_folder(source, expected, tmp_path):
    process = start(*command(source, tmp_path))
    after_chunks(tmp_path, 1, process)
    process.send_signal(signal.SIGSTOP)
    second = weightmill(*command(source, tmp_path))
    process.send_signal(signal.SIGCONT)
    assert second.returncode == 5
    assert f"{tmp_path}: another run is at work in this folder" in second.stderr
    assert end(process).returncode == 0
    assert digests(tmp_path / "model") == expected


def test_two_runs_with_one_target(source, expected, tmp_path):
    """The lock holds until the target is in place, dies with its process, and leaves nothing behind."""
    target = tmp_path / "shelf" / "model"
    first = command(source, tmp_path / "first", f"export.path={target}")
    second = command(source, tmp_path / "second", f"export.path={target}", "quant.scale_rule=even")
    process = start(*first)
    after_chunks(tmp_path / "first", 3, process)
    process.send_signal(signal.SIGSTOP)
    for more in ([], ["overwrite=true"]):
        result = weightmill(*second, *more)
        assert result.returncode == 5
        assert f"{target}: another run is writing there" in result.stderr
    process.kill()
    end(process)
    [half] = partials(target)
    before = digests(half)
    done(*second)  # the lock is free, and the other's half is not touched
    assert digests(half) == before
    result = weightmill(*first)
    assert result.returncode == 5
    assert f"{target} exists already" in result.stderr
    assert done(*first, "overwrite=true")["chunks"]["reused"] >= 3
    assert digests(target) == expected
    assert [p.name for p in target.parent.iterdir()] == ["model"]


def test_an_existing_target(source, expected, tmp_path):
    target = tmp_path / "elsewhere" / "model"
    target.mkdir(parents=True)
    (target / "precious").write_text("x")
    to = command(source, tmp_path / "run", f"export.path={target}")
    for more in ([], ["overwrite=true"]):  # nothing says that it is ours
        result = weightmill(*to, *more)
        assert result.returncode == 5
        assert f"export.path: {target} exists already, and has no .weightmill.json" in result.stderr
    assert [p.name for p in target.iterdir()] == ["precious"]
    (target / "precious").unlink()
    target.rmdir()
    done(*to)
    other = command(source, tmp_path / "other", f"export.path={target}", "quant.scale_rule=even")
    result = weightmill(*other)
    assert result.returncode == 5
    assert f"export.path: {target} exists already; choose another, or overwrite=true" in result.stderr
    assert digests(target) == expected
    done(*other, "overwrite=true")
    assert digests(target) != expected
    assert sorted(p.name for p in target.parent.iterdir()) == ["model"]


def test_a_target_that_appears_while_a_run_is_down(source, tmp_path):
    target = tmp_path / "elsewhere" / "model"
    to = command(source, tmp_path / "run", f"export.path={target}")
    process = start(*to)
    after_chunks(tmp_path / "run", 3, process)
    process.kill()
    end(process)
    partials(target)[0].rename(target)  # as if another run had finished there
    before = digests(target)
    result = weightmill(*to)
    assert result.returncode == 5
    assert "exists already" in result.stderr
    assert digests(target) == before


def test_a_complete_run_is_not_run_again(nearly, source, expected):
    first = done(*command(source, nearly))
    again = weightmill(*command(source, nearly))
    assert again.returncode == 0
    assert "complete already, outputs verified" in again.stderr
    assert manifest(nearly) == first
    made_again = done(*command(source, nearly, "overwrite=true"))
    assert made_again["chunks"]["reused"] == 0
    assert made_again["started"] > first["started"]
    assert digests(nearly / "model") == expected
