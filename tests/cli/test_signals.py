"""Told to stop: at once, with nothing left behind, whichever signal and however often."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.cases import big_gpt_oss
from tests.cases.native import needs_compiler
from tests.cases.runs import after_chunks, journaled, until, workers_of
from tests.cli.run import QUIETLY, ROOT, done, end, start

SIZES = big_gpt_oss.Sizes(
    layers=1, experts=8, hidden=1024, inter=1088, heads=8, kv_heads=2, head_dim=64, vocab=512
)  # 55 MB
HOW = ["quant=mxfp4", "dask.chunk=256KiB", "dask.workers=2"]
DISTRIBUTED = ["dask=distributed", "dask.dashboard=false"]
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
SAID = {INT: "interrupted", TERM: "terminated", HUP: "hung up"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return big_gpt_oss.write(tmp_path_factory.mktemp("source"), SIZES)


def ended(process, signum, children):
    result = end(process, 30)
    assert result.code == 128 + signum, result.err
    lines = [line for line in result.err.splitlines() if not line.startswith("Dask cluster")]
    assert lines == [f"{SAID[signum]}; the same command goes on from here"]
    assert not psutil.wait_procs(children, timeout=10)[1]


@pytest.mark.parametrize(
    ("signals", "how", "everybody"),
    [
        ([TERM], [], False),
        ([TERM], DISTRIBUTED, False),
        ([HUP], DISTRIBUTED, True),  # as a terminal that closes does
        ([INT, INT], DISTRIBUTED, True),
    ],
)
@pytest.mark.brief(when=lambda signals, how: not how or signals == [HUP])
def test_stopped(source, tmp_path, signals, how, everybody):
    args = [*QUIETLY, f"model.source={source}", f"paths.run={tmp_path}", *HOW]
    process = start(*args, *how)
    after_chunks(tmp_path, 2, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert bool(children) == bool(how)
    for signum in signals:
        (os.killpg if everybody else os.kill)(process.pid, signum)
    ended(process, signals[0], children)
    had = len(journaled(tmp_path))
    assert had >= 2
    assert done(*args)["chunks"]["reused"] == had


def test_stopped_while_workers_start(source, tmp_path):
    process = start(*QUIETLY, f"model.source={source}", f"paths.run={tmp_path}", *HOW, *DISTRIBUTED)
    until(lambda: workers_of(process), process, every_s=0.05)  # it looks at every process there is
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(TERM)
    ended(process, TERM, children)


@needs_compiler
def test_what_cannot_go_on_does_not_say_so():
    process = start("tune")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("timing ")
    process.send_signal(INT)
    said = end(process, 30)
    left = "interrupted; nothing of CPUs is kept; of a GPU what was timed"
    assert (said.code, said.err.splitlines()[-1]) == (128 + INT, left)


def test_told_again_while_it_ends():
    """What `end` imports takes a while, in which others come: here as soon as it begins."""
    code = """if True:
        import os, signal, sys
        from pipeline.running import stopping

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "psutil._common":  # half of psutil is there
                    os.kill(os.getpid(), signal.SIGTERM)

        assert "psutil" not in sys.modules
        sys.meta_path.insert(0, Finder())
        stopping.listen()
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as why:
            stopping.end(why.signum)
    """
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (128 + INT, "interrupted; the same command goes on from here\n")


def test_what_is_ignored_stays_ignored(source, tmp_path):
    """`nohup`: a terminal that closes does not stop the run."""
    before = signal.signal(HUP, signal.SIG_IGN)
    try:
        process = start(*QUIETLY, f"model.source={source}", f"paths.run={tmp_path}", *HOW)
    finally:
        signal.signal(HUP, before)
    after_chunks(tmp_path, 1, process)
    process.send_signal(HUP)
    assert end(process).code == 0
