"""A process for each thing that is measured: its own memory, its own libraries, and the cores that all get alike."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from pipeline.bench.cell import Job
from pipeline.bench.others import Others
from pipeline.config import extend
from pipeline.errors import short

EVERY_S = 0.5  # between two looks at its memory: seldom, as whoever looks is at work beside what is measured
LAST_LINES = 5  # of what a process said that ended without a word to us
# What libraries take the number of their threads from, where nobody tells them otherwise.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Done:
    """What came of a job.

    Attributes:
        found: what it measured; empty when it failed.
        failed: why.
        others: cores that other processes took meanwhile.
        seconds: that the process took.
        nbytes: memory that it had at its most, with all that it started.
    """

    found: Mapping[str, Any]
    failed: str
    others: float
    seconds: float
    nbytes: int


def done(job: Job, threads: int, log: Path) -> Done:
    """Do a job in a process that has `threads` cores.

    Args:
        log: what it says goes there.
    """
    from pipeline.testing.peak import Tree

    ours = f"import {extend.NAME}; " if extend.by_name() else ""
    program = f"{ours}import runpy; runpy.run_module('pipeline.bench.cell', run_name='__main__', alter_sys=True)"
    env = {**os.environ, **dict.fromkeys(THREADS, str(threads))}
    env["PYTHONPATH"] = os.pathsep.join(p for p in (os.getcwd(), *sys.path) if p)
    own = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="weightmill-bench-") as folder, log.open("wb") as said:
        answer = Path(folder) / "found.json"
        with Others() as others:
            os.sched_setaffinity(0, sorted(own)[-threads:])  # which a child has from the thread that starts it
            try:
                child = subprocess.Popen(  # noqa: S603  this program again
                    [sys.executable, "-c", program, str(answer)], stdin=subprocess.PIPE, stdout=said, stderr=said,
                    env=env,
                )  # fmt: skip
            finally:
                os.sched_setaffinity(0, own)
            assert child.stdin is not None
            try:
                with suppress(BrokenPipeError):  # it has ended already
                    child.stdin.write(pickle.dumps(job))
                    child.stdin.flush()
                with Tree(child.pid, EVERY_S) as tree:
                    child.wait()
            finally:
                child.kill()  # nobody waits for it any more
                child.wait()
                with suppress(BrokenPipeError):
                    child.stdin.close()
        told: dict[str, Any] = json.loads(answer.read_text()) if answer.is_file() else {}
        if not told:
            told = {"failed": _ended(child.returncode, log)}
    return Done(told.get("found", {}), told.get("failed", ""), others.cores, others.seconds, tree.highest_nbytes)


def _ended(code: int, log: Path) -> str:
    last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    how = f"was killed by {Signals(-code).name}" if code < 0 else f"ended with exit {code}"
    return short(f"its process {how}: {' / '.join(last)}" if last else f"its process {how}", 400)
