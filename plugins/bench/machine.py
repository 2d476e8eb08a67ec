"""What figures are held against: which machine this is, what it can do at most, and who else is at work on it.

Limits are the best that was seen, in short pieces: a busy machine hides them from whoever takes the average. A figure
that is measured beside other people's work says how much of that there was (`pipeline.bench.others`).
"""

import ctypes
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from pipeline.cpu import instructions
from pipeline.planning.rates import machine
from plugins.bench.ops import on_device
from plugins.kernels.native import compiler, library

TOLD = (  # of the instruction sets, those that kernels may use
    "avx2", "fma", "f16c", "avx512f", "avx512vbmi", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
    "amx_bf16", "asimd", "asimddp", "i8mm", "bf16",
)  # fmt: skip
PIECE_NBYTES = 1 << 25
PIECES = 16  # of a thread, which goes round in them: 512 MiB, more than caches keep
ROUNDS = 400


def describe() -> dict[str, Any]:
    """The machine, and what it runs: for people who read figures later."""
    return {
        "cpu": machine(), "architecture": platform.machine(),
        "instructions": [name for name in TOLD if name in instructions()],
        "isa": library.ISAS[library.isa()], "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(), "python": platform.python_version(), "compiler": _compiled_by(),
        "packages": {name: version(name) for name in ("jax", "jaxlib", "numpy")},
    }  # fmt: skip


def _compiled_by() -> str:
    # The command is the user's own, or one on the path.
    said = subprocess.run([*compiler.command(), "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return said.stdout.splitlines()[0]


def read_rate(threads: int, rounds: int = ROUNDS) -> float:
    """Bytes a second that `threads` threads together read from memory: the best of `rounds`."""
    call, isa = limits().wm_limit_read, library.isa()
    parts = [np.ones(PIECES * PIECE_NBYTES, np.uint8) for _ in range(threads)]
    calls = (
        (lambda part, at=i % PIECES * PIECE_NBYTES: call(isa, part.ctypes.data + at, PIECE_NBYTES))
        for i in range(rounds)
    )
    return threads * PIECE_NBYTES / _best(threads, calls, parts)


def multiply_add_rate(threads: int, rounds: int = ROUNDS) -> float:
    """float32 operations a second of `threads` threads that do nothing but multiply and add: the best of `rounds`."""
    call, isa, steps = limits().wm_limit_multiply_add, library.isa(), 1 << 17
    results = [np.zeros(1, np.float32) for _ in range(threads)]
    ops: int = call(isa, steps, 0.5, results[0].ctypes.data)
    calls = (lambda result: call(isa, steps, 0.5, result.ctypes.data) for _ in range(rounds))
    return threads * ops / _best(threads, calls, results)


def _best(threads: int, calls: Iterable[Callable[[Any], Any]], args: list[Any]) -> float:
    """Seconds of the shortest round, in which every thread makes one call."""
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for call in calls:
            start = time.perf_counter()
            list(pool.map(call, args))
            best = min(best, time.perf_counter() - start)
    return best


def limits() -> Any:
    """The functions of src/limits.cc, for the instruction set that runs."""
    found = library.load("limits", library.isa())
    found.wm_limit_read.restype = ctypes.c_uint64
    found.wm_limit_read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
    for operations in (found.wm_limit_multiply_add, found.wm_limit_dot_int8):
        operations.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p)
        operations.restype = ctypes.c_int64
    return found


def of(threads: int) -> dict[str, float]:
    """The limits that models meet with so many threads: bytes read and float32 operations, a second."""
    return {"threads": threads, "read": read_rate(threads), "multiply_add": multiply_add_rate(threads)}


def headline(told: dict[str, Any]) -> str:
    """`describe` in a line or two."""
    packages = ", ".join(f"{name} {number}" for name, number in told["packages"].items())
    cpu = f"{told['cpu']}, {told['memory'] / 2**30:.0f} GiB"
    has = f"{' '.join(told['instructions'])}; {packages}; {told['compiler']}"
    return f"{cpu}, native kernels {told['isa']}, load {os.getloadavg()[0]:.1f}\n{has}"


@dataclass(frozen=True)
class Limits:
    """See `pipeline.bench.limits.Limits`: of the GPU, where JAX computes on one, else of threads of the CPU."""

    def of(self, threads: int) -> Mapping[str, Any]:
        if on_device.is_gpu():
            return on_device.limits()
        return {name: rate for name, rate in of(threads).items() if name != "threads"}
