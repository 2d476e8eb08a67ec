"""Whatever stops a run, the same command finishes it: nothing done is done again, and no byte differs."""

import os
import shutil
import signal

import psutil
import pytest

from pipeline.running.target import KEY_CHARS, read_marker
from tests.cases import two_layers
from tests.cases.resumed import DISTRIBUTED, command, partials
from tests.cases.runs import after_chunks, digests, journaled, workers_of
from tests.cli.run import done, end, manifest, pipeline, start

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


def test_what_steps_gained_outlives_a_kill(tmp_path):
    def asked(name):
        few = ("quant=int4", "calibrate=gptq", "calibrate.method.grid=[]", "calibrate.windows.tokens=256")
        where = (
            f"paths.outputs={tmp_path}/{name}",
            f"paths.run={tmp_path}/{name}/run",
        )  # what one has found, none takes
        model = ("+model=gpt_oss", f"model.source={two_layers.folder()}")
        return (*model, "flow=convert", *few, "dask.workers=1", "dask.chunk=128KiB", *where)

    assert pipeline(*asked("whole")).code == 0
    run = tmp_path / "killed" / "run"
    process = start(*asked("killed"))
    after_chunks(run, 10, process)
    process.kill()
    end(process)
    had = len(journaled(run))
    assert done(*asked("killed"))["chunks"]["reused"] == had
    gains = [{row["name"]: row for row in manifest(tmp_path / of / "run")["gains"]} for of in ("whole", "killed")]
    assert gains[0]
    assert gains[1].keys() == gains[0].keys()
    for name, row in gains[0].items():
        assert gains[1][name]["by"] == row["by"] == "products"
        assert gains[1][name]["lost"] == pytest.approx(row["lost"], rel=1e-12), "in whatever order chunks are added up"


@pytest.mark.repeats
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
    assert result.code == 0, result.err
    assert result.err.strip().startswith("Dask cluster: 2 workers")
    assert len(result.err.strip().splitlines()) == 1  # nothing of Dask's own
    chunks = manifest(tmp_path)["chunks"]
    assert chunks["reused"] == 0
    assert digests(tmp_path / "model") == expected


@pytest.mark.repeats
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
@pytest.mark.brief("threads")
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
@pytest.mark.brief("threads")
def test_interrupted(source, expected, tmp_path, how):
    process = start(*command(source, tmp_path, *how))
    after_chunks(tmp_path, 5, process)
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    result = end(process, 30)
    assert result.code == 130
    assert result.err.strip().splitlines()[-1] == "interrupted; the same command goes on from here"
    assert "Traceback" not in result.err
    assert not psutil.wait_procs(workers, timeout=10)[1]
    had = len(journaled(tmp_path))
    assert had >= 5
    assert done(*command(source, tmp_path, *how))["chunks"]["reused"] == had
    assert digests(tmp_path / "model") == expected


def test_a_complete_run_is_not_run_again(nearly, source, expected):
    first = done(*command(source, nearly))
    again = pipeline(*command(source, nearly))
    assert again.code == 0
    assert "complete already, outputs verified" in again.err
    assert manifest(nearly) == first
    made_again = done(*command(source, nearly, "overwrite=true"))
    assert made_again["chunks"]["reused"] == 0
    assert made_again["started"] > first["started"]
    assert digests(nearly / "model") == expected


# The source changes


@pytest.mark.parametrize(
    ("what", "how"), [("vanished", []), ("vanished", DISTRIBUTED), ("touched", []), ("cut", [])], ids=str
)
@pytest.mark.brief(when=lambda how: not how)
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
    assert result.code == 4, result.err
    assert str(weights) in result.err
    assert "Traceback" not in result.err
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
    result = pipeline(*command(own_source, run))
    assert result.code == 4
    assert f"{weights}: changed since the run in {run} began; overwrite=true" in result.err
    assert done(*command(own_source, run, "overwrite=true"))["chunks"]["reused"] == 0
    assert digests(run / "model") == expected
