"""`python -m pipeline` as people run it: in a process of its own. Every test that starts one starts it here."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.cases.model_runs import quick_environment
from tests.cli import warm

ROOT = Path(__file__).parents[2]
MAIN = ("+model=gpt_oss", "quant=mxfp4")
QUIETLY = ("+model=gpt_oss", "progress=false")
OPTIMIZED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
"""For commands whose programs are to be as people have them; all others compile theirs quickly."""


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


def command(*args: str) -> list[str]:
    """The words of `python -m pipeline ARGS…`.

    `flow=convert` is added where no flow and no stages are chosen: most tests need no model to run.
    """
    flowing = any(a.startswith(("flow=", "stages=", "--help", "-h")) for a in args)
    modelled = any(a.startswith("+model=") for a in args)
    flow = [] if flowing or not modelled else ["flow=convert"]
    return [sys.executable, "-m", "pipeline", *args, *flow, *_apart(args)]


def _apart(args: tuple[str, ...]) -> list[str]:
    """Results of its own for each run folder that is named, or a test would be handed the export of another."""
    if any(a.startswith("paths.outputs=") for a in args):
        return []
    return [a.replace("paths.run=", "paths.outputs=", 1) + ".outputs" for a in args if a.startswith("paths.run=")]


def start(
    *args: str, cwd: Path | bytes = ROOT, env: Mapping[str, str] | None = None, **popen: Any
) -> subprocess.Popen[str]:
    """`python -m pipeline ARGS…`, left running in a process group of its own.

    Args:
        args: as typed.
        cwd: where. In the project's folder only runs that say `paths.run=`.
        env: variables beside those of this process, and of quick compilation.
        popen: to `subprocess.Popen`; streams, for one.
    """
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        command(*args), cwd=cwd, env=_environment(env), text=True, start_new_session=True, **{**streams, **popen}
    )


def end(process: subprocess.Popen[str], timeout_s: float = 120) -> Said:
    """Wait for `process`; one that hangs is killed with all it started, and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        raise AssertionError(f"still running after {timeout_s} s: {process.args}") from None
    except KeyboardInterrupt:  # of these tests: the process is in another group
        kill_tree(process.pid)
        raise
    return Said(process.returncode, out or "", err or "")


def pipeline(
    *args: str, cwd: Path | bytes = ROOT, env: Mapping[str, str] | None = None, timeout_s: float = 120, **popen: Any
) -> Said:
    """Run to the end."""
    environment = _environment(env)
    if not popen and warm.serves(cwd, environment):
        return Said(*warm.run(command(*args)[3:], cwd, environment, timeout_s))
    return end(start(*args, cwd=cwd, env=env, **popen), timeout_s)


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, **quick_environment(), **(env or {})}


def done(*args: str, cwd: Path | bytes = ROOT, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run to the end, successfully and without a warning; returns the manifest of `paths.run=…`."""
    said = pipeline(*args, cwd=cwd, env=env)
    assert said.code == 0, said.err
    assert "Traceback" not in said.err
    assert "warn" not in said.err.lower(), said.err
    [run] = [a.removeprefix("paths.run=") for a in args if a.startswith("paths.run=")]
    return manifest(Path(run))


def manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return found


def kill_tree(pid: int) -> None:
    root = psutil.Process(pid)
    for p in [*root.children(recursive=True), root]:
        p.kill()
