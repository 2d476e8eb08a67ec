"""Native kernels on random calls: under sanitizers, and with any number of threads. See tests/fuzz/native.py."""

import json
import os
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from plugins.kernels.native import build, compiler
from tests.cases.model_runs import quick_environment
from tests.cases.native import needs_compiler
from tests.cli.run import ROOT
from tests.fuzz import native

pytestmark = needs_compiler

SANITIZERS = "address,undefined"
COUNT = 3  # calls of each op


def fuzzed(seed: int, count: int, **env: str) -> Any:
    """What the script said.

    Raises:
        AssertionError: it failed; with the call at which it did, and what a sanitizer found.
    """
    command = [sys.executable, "-m", "tests.fuzz.native", str(seed), str(count)]
    environment = {**os.environ, **quick_environment(), **env}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-8000:]
    return json.loads(ran.stdout)


@cache
def preloaded() -> str:
    """Libraries that have to be loaded first, for a process whose libraries are sanitized.

    The C++ library is one, because the sanitizer looks for it at once, and Python has none until it needs it.
    """
    found = []
    for name in ("libasan.so", "libstdc++.so"):
        command = [*compiler.command(), f"-print-file-name={name}"]
        said = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        if not os.path.isabs(said) or not Path(said).exists():
            pytest.skip(f"{shlex.join(compiler.command())} has no {name}")
        found.append(said)
    return " ".join(found)


TRAP = "-fsanitize-undefined-trap-on-error"  # what is undefined ends the process, and says no more; compiles faster


@pytest.mark.parametrize("options", [f"-DWM_X86=0 {TRAP}", ""], ids=["portable", "every instruction set"])
@pytest.mark.brief("portable")
def test_sanitizers_find_nothing(options: str, thorough: bool) -> None:
    """What is portable, of the same templates, compiles in a third of the time. Under other instruction sets kernels
    run before pages that nobody may touch, without sanitizers (`guarded`)."""
    env = {"WEIGHTMILL_SANITIZE": SANITIZERS, "LD_PRELOAD": preloaded(), "ASAN_OPTIONS": "detect_leaks=0", "NPROC": "3"}
    said = fuzzed(0, COUNT + thorough, **env, CXX=shlex.join([*compiler.command(), *shlex.split(options)]))
    assert {tuple(done.split(" ")[:2]) for done in said["done"]} == {*native.ops()}
    assert {*said["entered"]} == native.entry_points()


PLANTED = """
#include <cstdint>
extern "C" __attribute__((visibility("default"))) int wm_isa() { return 0; }
extern "C" __attribute__((visibility("default"))) int64_t past(const int32_t* x, int64_t n, int wrong) {
  return wrong == 1 ? x[n] : wrong == 2 ? *(const int32_t*)((const char*)x + 1) : x[0];
}
"""
CALL = """
import ctypes, sys
from pathlib import Path
import numpy as np
from plugins.kernels.native import build
build.SOURCES = Path(sys.argv[1])
past = ctypes.CDLL(str(build.library("planted"))).past
past.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
x = np.zeros(1001, np.int32)
print(past(x.ctypes.data, x.size, int(sys.argv[2])))
"""


@pytest.mark.parametrize(
    ("wrong", "options", "ends", "said"),
    [
        (0, TRAP, (0,), ""),
        (1, TRAP, (1,), "heap-buffer-overflow"),
        (2, TRAP, (-signal.SIGILL, -signal.SIGTRAP), ""),
        (2, "", (1,), "misaligned address"),
    ],
    ids=["nothing", "past the end", "undefined", "undefined, and said"],
)
def test_they_would_find_what_is_wrong(
    tmp_path: Path, wrong: int, options: str, ends: tuple[int, ...], said: str
) -> None:
    (tmp_path / "planted.cc").write_text(PLANTED)
    env = {"WEIGHTMILL_SANITIZE": SANITIZERS, "LD_PRELOAD": preloaded(), "ASAN_OPTIONS": "detect_leaks=0"}
    env["CXX"] = shlex.join([*compiler.command(), *shlex.split(options)])
    command = [sys.executable, "-c", CALL, str(tmp_path), str(wrong)]
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
    assert ran.returncode in ends, ran.stderr[-3000:]
    assert said in ran.stderr


def test_a_read_past_the_end_of_a_guarded_array_ends_the_process() -> None:
    code = (
        "import ctypes, numpy as np; from tests.fuzz.native import guarded;"
        "x = guarded(np.arange(999, dtype=np.uint8)); assert x.sum() == np.arange(999, dtype=np.uint8).sum();"
        "print('read', flush=True); ctypes.string_at(x.ctypes.data + x.nbytes, 1)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.returncode) == ("read\n", -11)


def test_numbers_are_equal_for_any_number_of_threads(thorough: bool) -> None:
    count = 2 * COUNT if thorough else COUNT
    assert fuzzed(1, count, NPROC="1") == fuzzed(1, count, NPROC="5")


def test_every_op_is_fuzzed_or_has_named_calls() -> None:
    assert all(op in native.CALLS or (ROOT / f"plugins/kernels/{op}/cases.py").exists() for op, _ in native.ops())
    assert build.units()
