"""Watching runs of the command line, and comparing what they wrote. `tests.cli.run` starts them."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import xxhash

from pipeline.running.target import MARKER


def journaled(run: Path) -> list[str]:
    """Whole lines of the journal that are about chunks of the export."""
    path = run / "journal.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [k for k in (json.loads(line)["key"] for line in lines) if k.startswith("export-")]


def until(
    condition: Callable[[], Any], process: subprocess.Popen[str], timeout_s: float = 60, every_s: float = 0.002
) -> None:
    """Poll until `condition` holds; a process that ends before is a failure."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended too early ({process.returncode}): {process.communicate()}")
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(every_s)


def after_chunks(run: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until the run has done `count` chunks."""
    until(lambda: len(journaled(run)) >= count, process)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Dask's worker processes."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [c for c in children if any("spawn_main" in part for part in c.cmdline())]


def digests(folder: Path) -> dict[str, str]:
    """xxh3-128 of every file; the marker, which names the run, must be there, and is left out."""
    files = {p.name: xxhash.xxh3_128_hexdigest(p.read_bytes()) for p in sorted(folder.iterdir())}
    del files[MARKER]
    return files
