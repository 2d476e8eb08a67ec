"""Runs of the command line as processes that can be watched, killed and compared."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import xxhash

from pipeline.running.target import MARKER
from tests.cli.run import converting

ROOT = Path(__file__).parents[2]


def start(*args: str, **popen: Any) -> subprocess.Popen[str]:
    """`python -m pipeline +model=gpt_oss ARGS…`, left running in a process group of its own."""
    # Each run folder has its own results, or a test would be handed the export of another.
    apart = [a.replace("paths.run=", "paths.outputs=", 1) + ".outputs" for a in args if a.startswith("paths.run=")]
    given = ("+model=gpt_oss", "progress=false", *(apart or ()), *args)
    command = [sys.executable, "-m", "pipeline", *converting(*given)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **{**pipes, **popen})


def end(process: subprocess.Popen[str], timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Wait for `process`; one that hangs is killed, and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        raise AssertionError(f"still running after {timeout_s} s: {process.args}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def weightmill(*args: str, **popen: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return end(start(*args, **popen))


def done(*args: str, **popen: Any) -> dict[str, Any]:
    """Run to the end, successfully and without a warning; returns the manifest of `paths.run=…`."""
    result = weightmill(*args, **popen)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert "warn" not in result.stderr.lower(), result.stderr
    [run] = [a.removeprefix("paths.run=") for a in args if a.startswith("paths.run=")]
    return manifest(Path(run))


def manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return found


def journaled(run: Path) -> list[str]:
    """Whole lines of the journal that are about chunks of the export."""
    path = run / "journal.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [k for k in (json.loads(line)["key"] for line in lines) if k.startswith("export-")]


def until(condition: Callable[[], Any], process: subprocess.Popen[str], timeout_s: float = 60) -> None:
    """Poll until `condition` holds; a process that ends before is a failure."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended too early ({process.returncode}): {process.communicate()}")
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.002)


def after_chunks(run: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until the run has done `count` chunks."""
    until(lambda: len(journaled(run)) >= count, process)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Dask's worker processes."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [c for c in children if any("spawn_main" in part for part in c.cmdline())]


def kill_tree(pid: int) -> None:
    root = psutil.Process(pid)
    for p in [*root.children(recursive=True), root]:
        p.kill()


def digests(folder: Path) -> dict[str, str]:
    """xxh3-128 of every file; the marker, which names the run, must be there, and is left out."""
    files = {p.name: xxhash.xxh3_128_hexdigest(p.read_bytes()) for p in sorted(folder.iterdir())}
    del files[MARKER]
    return files


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}
