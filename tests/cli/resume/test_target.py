"""Targets that cannot be written, that are there already, or that others write to."""

import resource
import shutil
import signal
import subprocess

import psutil
import pytest

from tests.cases.resumed import DISTRIBUTED, command, partials
from tests.cases.runs import after_chunks, digests, journaled, workers_of
from tests.cli.run import done, end, pipeline, start

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
    assert result.code == 5
    assert "model.safetensors" in result.err
    assert "bytes are free there" in result.err
    assert not (tmp_path / "model").exists()
    done(*command(source, tmp_path))
    assert digests(tmp_path / "model") == expected


@pytest.mark.parametrize("how", [[], DISTRIBUTED], ids=["threads", "distributed"])
@pytest.mark.brief("threads")
def test_a_write_that_fails_in_the_middle(source, expected, tmp_path, how):
    process = start(*command(source, tmp_path, *how))
    after_chunks(tmp_path, 5, process)
    for p in workers_of(process) or [psutil.Process(process.pid)]:
        p.rlimit(psutil.RLIMIT_FSIZE, (1 << 20, -1))
    result = end(process)
    assert result.code == 5, result.err
    assert "Traceback" not in result.err
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
        result = pipeline(*to)
        assert result.code == 5
        assert "free, the output needs" in result.err
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
        assert end(process).code == 5  # chunks have their blocks, config.json has not
        assert not (disk / "model").exists()
        filler.unlink()
        chunks = done(*to)["chunks"]
        assert chunks["reused"] == chunks["all"]
        assert digests(disk / "model") == expected
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_target_below_a_file(source, tmp_path):
    (tmp_path / "file").write_text("")
    result = pipeline(*command(source, tmp_path / "run", f"export.path={tmp_path / 'file' / 'model'}"))
    assert result.code == 5, result.err
    assert "Traceback" not in result.err
    result = pipeline(*command(source, tmp_path / "file" / "run"))
    assert result.code == 5, result.err
    assert str(tmp_path / "file" / "run") in result.err


# Others in the way


def test_two_runs_in_one_folder(source, expected, tmp_path):
    process = start(*command(source, tmp_path))
    after_chunks(tmp_path, 1, process)
    process.send_signal(signal.SIGSTOP)
    second = pipeline(*command(source, tmp_path))
    process.send_signal(signal.SIGCONT)
    assert second.code == 5
    assert f"{tmp_path}: another run is at work in this folder" in second.err
    assert end(process).code == 0
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
        result = pipeline(*second, *more)
        assert result.code == 5
        assert f"{target}: another run is writing there" in result.err
    process.kill()
    end(process)
    [half] = partials(target)
    before = digests(half)
    done(*second)  # the lock is free, and the other's half is not touched
    assert digests(half) == before
    result = pipeline(*first)
    assert result.code == 5
    assert f"{target} exists already" in result.err
    assert done(*first, "overwrite=true")["chunks"]["reused"] >= 3
    assert digests(target) == expected
    assert [p.name for p in target.parent.iterdir()] == ["model"]


def test_an_existing_target(source, expected, tmp_path):
    target = tmp_path / "elsewhere" / "model"
    target.mkdir(parents=True)
    (target / "precious").write_text("x")
    to = command(source, tmp_path / "run", f"export.path={target}")
    for more in ([], ["overwrite=true"]):  # nothing says that it is ours
        result = pipeline(*to, *more)
        assert result.code == 5
        assert f"export.path: {target} exists already, and has no .weightmill.json" in result.err
    assert [p.name for p in target.iterdir()] == ["precious"]
    (target / "precious").unlink()
    target.rmdir()
    done(*to)
    other = command(source, tmp_path / "other", f"export.path={target}", "quant.scale_rule=even")
    result = pipeline(*other)
    assert result.code == 5
    assert f"export.path: {target} exists already; choose another, or overwrite=true" in result.err
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
    result = pipeline(*to)
    assert result.code == 5
    assert "exists already" in result.err
    assert digests(target) == before
