"""Runs a target in a child process, and watches: what it raises, how long an input takes, how much memory it needs.

A child says the number of each input before it runs it, so that whoever kills it (a hang, a crash in C, a limit on
memory) knows by which one; a new child goes on with the next.
"""

import importlib
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pipeline.errors import WeightmillError

TARGETS = ("safetensors_header", "gguf", "npy", "orbax", "config_json", "tokenizer_files", "chat_templates")
ROOT = Path(__file__).parents[2]
HANG_S = 60.0  # of one input, on a loaded machine; the slowest takes a few seconds
MEMORY_NBYTES = 3 << 30  # more than a child has before its first input
START_S = 300.0

Files = dict[str, bytes]


class Target(Protocol):
    """A module of `tests.fuzz`."""

    def make(self, rng: random.Random) -> Files:
        """An input: files by name."""
        ...

    def run(self, files: Mapping[str, bytes], folder: Path) -> None:
        """Reads them. Raises a WeightmillError, or nothing."""
        ...


@dataclass
class Result:
    """What a target did.

    Attributes:
        inputs: how many it had.
        accepted: how many of them were read.
        refused: how many were a WeightmillError.
        findings: number of an input → what it did instead.
        seconds: for all of them, without starting.
        rss: the largest memory of a child, in bytes.
        most: how much more than before its first input a child had, in bytes.
    """

    target: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    findings: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    rss: int = 0
    most: int = 0

    def __str__(self) -> str:
        hangs = sum(f.startswith("hang") for f in self.findings.values())
        crashes = len(self.findings) - hangs
        return (
            f"{self.target:20} {self.inputs:9,} inputs {self.inputs / max(self.seconds, 1e-9):9,.0f}/s "
            f"{self.accepted:9,} accepted {self.refused:9,} refused {crashes:4} crashes {hangs:4} hangs "
            f"{self.rss / 2**20:6,.0f} MiB, {self.most / 2**20:5,.0f} of them by inputs"
        )


def load(name: str) -> Target:
    module: Target = importlib.import_module(f"tests.fuzz.{name}")  # type: ignore[assignment]
    return module


def make(name: str, number: int) -> Files:
    """The input of that number, the same every time."""
    return load(name).make(random.Random(f"{name} {number}"))


def fuzz(
    name: str,
    count: int | None,
    seconds: float = float("inf"),
    begin: int = 0,
    saved: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Run inputs `begin` to `begin + count` of a target, or for so many seconds.

    Args:
        saved: folder that inputs which find something are put into.
        say: is told of each finding.
    """
    result, number, until = Result(name), begin, time.monotonic() + seconds
    end = None if count is None else begin + count
    while (end is None or number < end) and time.monotonic() < until:
        number = _child(result, number, end, until)
    for finding, what in result.findings.items():
        say(f"{name} {finding}: {what}")
        if saved is not None:
            for file, content in make(name, finding).items():
                path = saved / f"{name}-{finding}" / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            (saved / f"{name}-{finding}.txt").write_text(what)
    return result


def _child(result: Result, begin: int, end: int | None, until: float) -> int:
    """One child's life; returns the number of the next input."""
    command = [sys.executable, "-m", "tests.fuzz", "--child", result.target, str(begin), str(end or -1)]
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
    environment = {**os.environ, "FUZZ_BEGIN": str(begin), "RUST_BACKTRACE": "0"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=environment)
    assert child.stdout is not None
    number, before, started, rest = begin - 1, Result(result.target), 0.0, b""
    why = ""
    while True:
        limit = HANG_S if started else START_S
        if not select.select([child.stdout], [], [], limit)[0]:
            why = f"hang: more than {limit:.0f} s"
            break
        if not (got := os.read(child.stdout.fileno(), 1 << 16)):
            break
        *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            told = json.loads(line)
            number = told["number"]
            started = started or time.monotonic()
            if "finding" in told:
                result.findings[number] = told["finding"]
            before.accepted, before.refused = told["accepted"], told["refused"]
            result.rss, result.most = max(result.rss, told["rss"]), max(result.most, told["most"])
        if time.monotonic() > until:
            break
    child.kill()
    code = child.wait()
    child.stdout.close()
    done = end is not None and number >= end
    stopped = time.monotonic() > until
    if not why and not done and not stopped:
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2000))
        why = f"crash: the process ended with {code}: {errors.read().decode(errors='replace')}"
    errors.close()
    if why:
        result.findings[max(number, begin)] = why
    result.seconds += time.monotonic() - started if started else 0.0
    result.accepted, result.refused = result.accepted + before.accepted, result.refused + before.refused
    after = max(number, begin) + 1 if why else number if done or stopped else number + 1
    result.inputs += max(0, after - begin)
    if why and number < begin:
        raise RuntimeError(f"{result.target}: {why} before its first input")
    return after


def serve(name: str, begin: int, end: int) -> None:
    """The child: says `{"number": …}` before each input, and at the end of all."""
    target = load(name)
    fd = os.dup(1)
    os.dup2(2, 1)  # what libraries print is none of our lines
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
        folder = Path(root)
        _try(target, make(name, -1), folder)  # imports what it needs
        warnings.simplefilter("error")  # of NumPy above all: an overflow is a wrong value
        first = _rss()
        soft = _address_space() + MEMORY_NBYTES
        resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        counts = {"accepted": 0, "refused": 0}
        number = begin
        while number != end:
            rss = _rss()
            _say(fd, {"number": number, **counts, "rss": rss, "most": rss - first})
            found = _try(target, make(name, number), folder)
            if found in counts:
                counts[found] += 1
            else:
                _say(fd, {"number": number, **counts, "rss": rss, "most": rss - first, "finding": found})
            number += 1
        rss = _rss()
        _say(fd, {"number": number, **counts, "rss": rss, "most": rss - first})


def _try(target: Target, files: Files, folder: Path) -> str:
    try:
        target.run(files, folder)
    except WeightmillError as why:
        str(why).encode()
        return "refused"
    except KeyboardInterrupt:
        raise
    except BaseException:
        return traceback.format_exc()[-4000:]
    return "accepted"


def _say(fd: int, what: Mapping[str, object]) -> None:
    os.write(fd, json.dumps(what).encode() + b"\n")


def _rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def put(files: Mapping[str, bytes], folder: Path) -> None:
    """Make `folder` hold exactly these files."""
    for old in sorted(folder.rglob("*"), reverse=True):
        if old.is_dir() and not old.is_symlink():
            old.rmdir()
        else:
            old.unlink()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
