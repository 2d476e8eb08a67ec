"""Starts `jinja_process.py`, hands it templates, and says what became of them. One process serves this one for long."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.units import show_bytes

PROGRAM = Path(__file__).with_name("jinja_process.py")
# Bounds on one rendering, beside what it is given. The largest template of a published checkpoint takes 20 ms and a few
# MiB for a conversation of a hundred messages.
SECONDS = 5
NBYTES, NBYTES_PER_CHAR = 256 << 20, 64
CHARS, CHARS_PER_CHAR = 4 << 20, 8

_lock = threading.Lock()
_process: subprocess.Popen[str] | None = None
_owner = 0  # who started it: what forks must not talk to its parent's


def render(template: str, variables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What the template makes of plain JSON values: `text`; or `refused`; or `error`, `kind` and `line`.

    Raises:
        SourceError: it takes more time or memory, or gives more text, than the bounds allow.
    """
    request: dict[str, Any] = {"template": template, "variables": variables, "seconds": SECONDS}
    chars = len(json.dumps(request))
    request |= {"nbytes": NBYTES + NBYTES_PER_CHAR * chars, "chars": CHARS + CHARS_PER_CHAR * chars}
    with _lock:
        said = _ask(json.dumps(request))
    bounds = {
        "seconds": f"{SECONDS} s of CPU time",
        "nbytes": f"{show_bytes(request['nbytes'])} of memory",
        "chars": f"{request['chars']:,} characters of text",
    }
    if "beyond" in said:
        raise SourceError(f"{where}: the chat template was stopped: it takes more than {bounds[said['beyond']]}")
    if "ended" in said:
        raise SourceError(f"{where}: the chat template broke the process that ran it ({said['ended']})")
    return said


def _ask(line: str) -> dict[str, Any]:
    process = _running()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        said: dict[str, Any] = json.loads(answer) if answer else _end(process)
    except BrokenPipeError:
        said = _end(process)
    except BaseException:  # an interrupt above all: what it would still say is the answer to nothing
        stop()
        raise
    if "text" not in said and "error" not in said and "refused" not in said:
        stop()
    return said


def _end(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Why there is no answer."""
    code = process.wait()
    if -code == signal.SIGXCPU:
        return {"beyond": "seconds"}
    return {"ended": signal.Signals(-code).name if code < 0 else f"exit code {code}"}


def _running() -> subprocess.Popen[str]:
    global _process, _owner
    if _process is None or _owner != os.getpid() or _process.poll() is not None:
        stop()
        path = os.pathsep.join(p for p in sys.path if p)
        _process = subprocess.Popen(  # noqa: S603  this interpreter, and a program of ours
            [sys.executable, "-P", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            encoding="ascii", env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C is for this process, which may go on
        )  # fmt: skip
        _owner = os.getpid()
    return _process


@atexit.register
def stop() -> None:
    """End the process; the next template starts another."""
    global _process
    if _process is not None and _owner == os.getpid():
        _process.kill()
        _process.wait()
        for pipe in (_process.stdin, _process.stdout):
            if pipe is not None:
                pipe.close()
    _process = None
