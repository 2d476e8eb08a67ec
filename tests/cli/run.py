"""`python -m pipeline` as people run it: in a process of its own, from a folder of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAIN = ("+model=gpt_oss", "quant=mxfp4")


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


def converting(*args: str) -> list[str]:
    """The arguments, with `flow=convert` where no flow and no stages are chosen: most tests need no model to run."""
    flowing = any(a.startswith(("flow=", "stages=", "--help", "-h")) for a in args)
    modelled = any(a.startswith("+model=") for a in args)
    return [*args] if flowing or not modelled else [*args, "flow=convert"]


def pipeline(*args: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 120) -> Said:
    command = [sys.executable, "-m", "pipeline", *converting(*args)]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False,
        timeout=timeout_s, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr)
